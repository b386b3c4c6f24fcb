"""Fuzzer of the formats: edited headers give an error of ours or a right result, in bounded time and memory.

    python tests/fuzz.py --tries 5000           # every format
    python tests/fuzz.py --format run.json --seed 7

Each try edits the header of a good file at random places, knowing its structure; seals it again where a checksum
covers it, as an attacker would; then opens the file and uses everything in it. `tests/unit/test_fuzz.py` does this with
few tries.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import random
import resource
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow.parquet

from multibit import Codes, Config, FeatureStore, Index, Run, Split, load_evaluations
from multibit.data.manifest import read_manifest, write_manifest
from multibit.data.split_files import read_roles
from multibit.errors import MultibitError
from multibit.evaluation.metric import MAP
from multibit.evaluation.tables import accuracy_table
from multibit.features.shards import Shard
from multibit.files import read_arrays, write_arrays
from multibit.hashing.code_model import CodeModel
from multibit.hashing.lengths import PerLength
from multibit.hashing.linear_codes import LinearCodes
from multibit.hashing.methods.dpsih import PolysemicCodes
from multibit.hashing.model import HashModel
from multibit.paper import join, reproduction
from multibit.paper.finished import read_finished
from multibit.records import content_of
from multibit.relation import load_teacher
from multibit.runs import describe_code, read_history
from multibit.search import storage
from multibit.search.exchange import export_index, import_index
from multibit.selection import SelectionRecord

STORED = Path(__file__).parent / "golden" / "stored"
SECONDS = 20  # of a single try, on a slow machine
GROWTH = 600  # megabytes, of all tries together

VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 7, 2**31, 2**40, 2**63, -(2**63) - 1, 10**30, 0.5, -0.5, 1e-320, 1e308,
    float("nan"), float("inf"), "", "0", "1", "x", "image", "text", "i2t", "float32", "range", "string", "multibit",
    "../../../etc/passwd", "/etc/passwd", "a/b", "\0", "\ud800", "{}", "\x1b[31m", "[link=x]", "é" * 3000, [], {},
    [[]], [0], [1, 1], ["x"], [None], {"x": 1}, {"": None}, [2**62] * 4, [10**9, 10**9],
]  # fmt: skip


def places(content: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value in JSON content, its own excluded."""
    found = []
    keys = content.keys() if isinstance(content, dict) else range(min(len(content), 12))
    for key in keys:
        found.append((*path, key))
        if isinstance(content[key], dict | list) and len(path) < 12:
            found += places(content[key], (*path, key))
    return found


def edited(content: Any, rng: random.Random) -> Any:
    """A copy of JSON content with one to three edits."""
    content = copy.deepcopy(content)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        where = places(content)
        if not where:
            return rng.choice(VALUES)
        *path, key = rng.choice(where)
        inner = content
        for each in path:
            inner = inner[each]
        _edit(inner, key, content, where, rng)
    return content


def _edit(inner: Any, key: Any, whole: Any, where: list[tuple[Any, ...]], rng: random.Random) -> None:
    value = inner[key]
    match rng.randrange(9):
        case 0:
            del inner[key]
        case 1 | 2 | 3:
            inner[key] = copy.deepcopy(rng.choice(VALUES))
        case 4 if isinstance(value, int | float) and not isinstance(value, bool):
            inner[key] = rng.choice([-value, value + 1, value * 1000, value / 2, str(value), [value], value - 1])
        case 5 if isinstance(value, list):
            inner[key] = rng.choice([value * 2, value[1:], value[::-1], value[:1] * 50])
        case 6 if isinstance(inner, dict):
            inner[rng.choice(["x", f"{key} ", str(key).upper(), ""])] = inner.pop(key)
        case 7:  # a value from elsewhere in the file
            other = whole
            for each in rng.choice(where):
                other = other[each]
            inner[key] = copy.deepcopy(other)
        case _:
            inner[key] = _deep(rng.choice([3, 30, 150])) if rng.random() < 0.2 else [value]


def _deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def damaged(raw: bytes, rng: random.Random) -> bytes:
    """The bytes of a file, cut, with a byte changed, or with something else in it."""
    place = rng.randrange(len(raw) + 1)
    return rng.choice(
        [raw[:place], raw[:place] + bytes([rng.randrange(256)]) + raw[place + 1 :], raw[:place] + b"{" * 9, raw + b"]"]
    )


@dataclass(frozen=True)
class Format:
    """A format that is fuzzed.

    Attributes:
        make: writes good files into a folder and returns the one whose header is edited.
        load: path -> its header. store: writes an edited header, sealed again. use: opens the file and uses all of it.
        edit: makes an edited header.
    """

    make: Callable[[Path], Path]
    load: Callable[[Path], Any]
    store: Callable[[Path, Any], None]
    use: Callable[[Path], object]
    edit: Callable[[Any, random.Random], Any] = edited


def _copied(name: str, file: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        shutil.copytree(STORED / name, folder / name, dirs_exist_ok=True)
        return folder / name / file

    return make


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _dump(path: Path, content: Any) -> None:
    path.write_bytes(json.dumps(content).encode("utf-8", "surrogatepass"))


def _sealed(field: str, seal: Callable[[Any], str]) -> Callable[[Path, Any], None]:
    def store(path: Path, content: Any) -> None:
        if isinstance(content, dict) and field in content:
            with contextlib.suppress(AttributeError, TypeError, ValueError, RecursionError):  # nothing to be sealed
                content[field] = seal(content)
        _dump(path, content)

    return store


def _header(path: Path) -> Any:
    """The whole header of a file of arrays: what our own header says, and where each array is."""
    about = _entries(path)["__metadata__"]
    return {"own": json.loads(about["header"]), "version": about["version"], "format": about["format"]}


def _store_header(path: Path, content: Any) -> None:
    """Write the arrays again, with a checksum of the edited header."""
    arrays = _ARRAYS.setdefault(path.name, {})
    if not arrays:
        kind = _header(path)["format"].removeprefix("multibit ")
        found, _ = read_arrays(path, kind=kind, version=99)
        arrays.update({name: np.array(array) for name, array in found.items()})
    content = content if isinstance(content, dict) else {}
    kind = str(content.get("format", "")).removeprefix("multibit ").encode("utf-8", "replace").decode()
    version: Any = str(content.get("version")).encode("utf-8", "replace").decode()
    write_arrays(path, arrays, content.get("own"), kind=kind, version=version)  # type: ignore[arg-type]


_ARRAYS: dict[str, dict[str, Any]] = {}


# What is done with each


def _use_run(path: Path) -> object:
    run = Run.load(path.parent)
    codes = run.model.encode(np.ones((2, run.model.image_dim)), "image") if not run.model.reads_tokens else None
    return repr(run), run.name, run.lengths, describe_code(run), str(run.record.selection), codes, run.recipe.is_joint


def _use_history(path: Path) -> object:
    return [row["total"] + row["epoch"] for row in read_history(Run.load(path.parent))]


def _use_evaluations(path: Path) -> object:
    found = load_evaluations(path)
    for each in found:
        each.to_dict(), each.undefined, each.metrics, each.references
        if each.lengths and (MAP, "i2t", each.lengths[0]) in each.values:
            accuracy_table(each).markdown()
    return found


def _use_store(path: Path) -> object:
    store = FeatureStore.open(path.parent)
    store.require_finite()
    return store.take(np.arange(len(store))), store.fingerprint(), store.recipe.difference(store.recipe)


def _use_index(path: Path) -> object:
    folder = path.parent if path.parent.suffix == ".mbx" else path
    index = Index.load(folder)
    codes = Codes.from_bits(np.ones((1, index.bits), bool)) if index.bits else None
    views = 1 if index.codes is None else index.codes.views
    found = index.search(codes, 3).hits() if codes is not None and views == 1 else []
    return found, list(index.ids), [index.payloads[row] for row in range(len(index))]


def _use_whole_index(path: Path) -> object:
    """As `_use_index`, and with all ids, all columns and a change, of a copy."""
    found, copied = _use_index(path), path.parent.with_name("copy.mbx")
    shutil.rmtree(copied, ignore_errors=True)
    shutil.copytree(path.parent, copied)
    index = Index.open(copied)
    ones = Codes.from_bits(np.ones((1, index.bits), bool))
    for where in ({"t": "é"}, {"l": "x"}, {"l": ["x"]}, {"t": {"$gte": "a"}}, {"n": {"$lt": 2}}):
        index.search(ones, 2, where=where)
    export_index(index, path.parent.with_name("whole.parquet"))
    with Index.editing(copied) as writer:
        writer.upsert(["a", "new"], Codes.from_bits(np.ones((2, index.bits), bool)), [{}, {}])
        writer.remove(["c"])
        writer.compact()
    return found


def _use_model(path: Path) -> object:
    model = CodeModel.load(path)
    return None if model.reads_tokens else model.encode(np.ones((2, model.image_dim)), "image")


def _use_teacher(path: Path) -> object:
    teacher = load_teacher(path)
    labels = np.eye(len(teacher.graph.specificity), dtype=np.uint8)[:2]
    return teacher.scores(labels, labels), teacher.fingerprint()


def _use_reproduction(path: Path) -> object:
    finished = read_finished(path.parent)
    return [table.markdown() for table in join.joined_tables([finished]).values()]


# Good files


def _evaluation(folder: Path) -> Path:
    return _copied("run", "evaluation.json")(folder)


def _selection(folder: Path) -> Path:
    content = {
        "format": "multibit selection", "version": 1, "method": "multibit", "config": {"epochs": 3, "seed": 42},
        "alpha": [0.5, 1.0], "eta": [0.1], "bits": 64, "stages": [1, 3], "margin": 0.001, "data": "a", "split": "b",
        "dataset": {"items": 3, "fingerprint": "c"}, "features": None, "device": "cpu", "versions": {"torch": "2"},
        "settings": [{"alpha": 0.5, "eta": 0.1, "scores": [0.4, 0.5]}, {"alpha": 1.0, "eta": 0.1, "scores": [0.3]}],
        "chosen": {"alpha": 0.5, "eta": 0.1, "scores": [0.4, 0.5]},
    }  # fmt: skip
    _dump(folder / "selection.json", content)
    return folder / "selection.json"


def _use_selection(path: Path) -> object:
    record = SelectionRecord.read(path.parent)
    return (record.choice.best, record.choice.best_score) if record.chosen else record.scores


def _reproduction(folder: Path) -> Path:
    cells = [{"row": "r", "column": "mAP 16", "got": [0.5, None], "paper": 0.4}]
    table = {"label": "t", "bits": 64, "note": "", "columns": {"mAP 16": {"form": ".3f", "larger_is_better": True}}}
    tables = {"main-comparison": {**table, "cells": cells, "claims": {"a": True}, "found": {"a": "b"}}}
    content = {
        "format": "multibit reproduction", "version": 1, "config": Config().to_dict(), "data": "a", "column": "coco",
        "split": "b", "seeds": [42, 43], "text_encoder": None, "compared": [], "left_out": {}, "tables": tables,
    }  # fmt: skip
    _dump(folder / "reproduction.json", content)
    return folder / "reproduction.json"


def _seal(folder: Path) -> Path:
    _copied("run", "run.json")(folder)
    reproduction._seal(folder / "run", 3.5)
    return folder / "run" / "seal.json"


def _index(folder: Path) -> Path:
    index = Index("model", "exact", "image")
    index.add(["a", "b", "c"], Codes.from_bits(np.eye(3, 20, dtype=bool)), [{"n": 1, "l": ["x"]}, {"t": "é"}, {}])
    index.save(folder / "image.mbx")
    with Index.editing(folder / "image.mbx") as writer:
        writer.remove(["b"])
    return folder / "image.mbx" / "manifest.json"


def _segment(folder: Path) -> Path:
    return next(iter(sorted(_index(folder).parent.glob("segment-*"))))


def _listed(folder: Path) -> Path:
    """An index of pruned lists: the file of its lists."""
    centres = np.random.default_rng(0).integers(0, 2, (4, 40)).astype(bool)
    bits = np.repeat(centres, 32, axis=0)
    codes = Codes.from_bits(bits)
    index = Index("model", "lists", "image")
    index.add(range(128), codes)
    with mock.patch("multibit.codes.lists.SMALLEST", 8), mock.patch("multibit.codes.lists.WORTHWHILE", 1.0):
        index.save(folder / "image.mbx")
    return next(iter(sorted((folder / "image.mbx").glob("lists-*"))))


def _use_lists(path: Path) -> object:
    with mock.patch("multibit.codes.lists.WORTHWHILE", 1.0):
        index = Index.load(path.parent)
        queries = Codes.from_bits(np.eye(5, 40, dtype=bool))
        return index.search(queries, 3).hits(), index.search(queries, 3, max_distance=9).hits()


def _values(path: Path) -> Any:
    """The values of the arrays of a file."""
    kind = _entries(path)["__metadata__"]["format"].removeprefix("multibit ")
    arrays, _ = read_arrays(path, kind=kind, version=99)
    return {name: array.ravel().tolist() for name, array in arrays.items()}


def _store_values(path: Path, content: Any) -> None:
    """Write other values of the same types, with a checksum of them."""
    about = _entries(path)["__metadata__"]
    kind, version = about["format"].removeprefix("multibit "), int(about["version"])
    if path.name not in _BEFORE:
        arrays, _ = read_arrays(path, kind=kind, version=version)
        _BEFORE[path.name] = {name: np.array(array) for name, array in arrays.items()}
    edited_arrays = {
        name: np.array(content[name], array.dtype).reshape(array.shape if len(content[name]) == array.size else -1)
        for name, array in _BEFORE[path.name].items()
    }
    write_arrays(path, edited_arrays, json.loads(about["header"]), kind=kind, version=version)


def edited_values(content: Any, rng: random.Random) -> Any:
    """Lists of whole numbers with one to three edits."""
    content = copy.deepcopy(content)
    for _ in range(rng.choice([1, 1, 2, 3])):
        name = rng.choice([name for name in sorted(content) if content[name]] or [""])
        if not name:
            return content
        values = content[name]
        place, largest = rng.randrange(len(values)), max(values)
        small = [0, 1, 2, len(values), values[place] + 1, max(values[place] - 1, 0), rng.choice(values), 255, largest]
        wide = [2**31, 2**40, 2**62, 2**63 - 1] if largest > 2**16 or "offsets" in name or "row" in name else []
        signed = [-1, -5, -(2**62)] if name in ("ids_offsets", "id_rows", "order", "rings") else []
        if rng.random() < 0.1:
            content[name] = rng.choice([values[:place], values * 2, values[::-1]])
        else:
            bound = 255 if name == "ids" else 65535 if name in ("words", "centroids") else 2**63 - 1
            values[place] = min(rng.choice([*small, *(2 * (wide + signed))]), bound)
    return content


_BEFORE: dict[str, dict[str, Any]] = {}


def _items(folder: Path) -> Path:
    rows = [
        {"id": "a", "image": "a.png", "texts": ["x", {"raw": "y"}], "labels": ["l", "m"]},
        {"id": 7, "image": None, "texts": "x", "labels": [0, 1]},
        {"id": "c", "image": "d\\c.png", "texts": [], "labels": 3},
    ]
    _store_lines(folder / "items.jsonl", rows)
    return folder / "items.jsonl"


def _use_items(path: Path) -> object:
    data = read_manifest(path)
    write_manifest(data, path.with_name("again.csv"))
    assert read_manifest(path.with_name("again.csv")).label_names == data.label_names
    return data.fingerprint()


def _roles(folder: Path) -> Path:
    content = {"train": [0, 1], "query": ["c", "d.png"], "val": [False, True, False, False, True], "extra": {"x": 1}}
    _dump(folder / "split.json", content)
    return folder / "split.json"


def _exported(folder: Path) -> Path:
    export_index(Index.open(_index(folder).parent), folder / "index.parquet")
    return folder / "index.parquet"


def _facts(path: Path) -> Any:
    return json.loads(pyarrow.parquet.read_schema(path).metadata[b"multibit"])


def _store_facts(path: Path, content: Any) -> None:
    table = pyarrow.parquet.read_table(path)
    text = json.dumps(content).encode("utf-8", "surrogatepass")
    pyarrow.parquet.write_table(table.replace_schema_metadata({b"multibit": text}), path)


def _codes(folder: Path) -> Path:
    Codes.from_bits(np.eye(6, 20, dtype=bool).reshape(3, 2, 20)).save(folder / "codes")
    return folder / "codes"


def _entries(path: Path) -> Any:
    raw = path.read_bytes()
    return json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])


def _store_entries(path: Path, content: Any) -> None:
    raw, text = path.read_bytes(), json.dumps(content).encode("utf-8", "surrogatepass")
    path.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + int.from_bytes(raw[:8], "little") :])


def _use_arrays(path: Path) -> object:
    arrays, _ = read_arrays(path, kind="codes", version=2, verify=False)
    return [array.sum() for array in arrays.values()]


def _model(model: CodeModel) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        for parameter in model.state_dict().values():
            parameter.copy_(parameter.new_zeros(parameter.shape))  # those of some are not set before they are solved
        model.save(folder / "model.safetensors")
        return folder / "model.safetensors"

    return make


def _json(make: Callable[[Path], Path], use: Callable[[Path], object], store: Any = _dump) -> Format:
    return Format(make, _read, store, use)


def _arrays(make: Callable[[Path], Path], use: Callable[[Path], object]) -> Format:
    return Format(make, _header, _store_header, use)


def _lines(path: Path) -> Any:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _store_lines(path: Path, content: Any) -> None:
    rows = content if isinstance(content, list) else [content]
    path.write_bytes(b"".join(json.dumps(row).encode("utf-8", "surrogatepass") + b"\n" for row in rows))


FORMATS: dict[str, Format] = {
    "run.json": _json(_copied("run", "run.json"), _use_run, _sealed("content", content_of)),
    "history.jsonl": Format(_copied("run", "history.jsonl"), _lines, _store_lines, _use_history),
    "evaluation.json": _json(_evaluation, _use_evaluations),
    "selection.json": _json(_selection, _use_selection),
    "reproduction.json": _json(_reproduction, _use_reproduction),
    "seal.json": _json(_seal, lambda path: (reproduction._intact(path.parent), reproduction._read_seal(path.parent))),
    "store.json": _json(_copied("features", "store.json"), _use_store),
    "manifest.json": _json(_index, _use_index, _sealed("xxh3", storage._checksum)),
    "segment": _arrays(_segment, _use_index),
    "arrays of a segment": Format(_segment, _values, _store_values, _use_whole_index, edited_values),
    "pruned lists": Format(_listed, _values, _store_values, _use_lists, edited_values),
    "items.jsonl": Format(_items, _lines, _store_lines, _use_items),
    "split.json": _json(_roles, lambda path: read_roles(path, ["a", "b", "c", "d", "7"])),
    "index of an earlier version": _arrays(_copied("index", "image.mbx"), _use_index),
    "exported index": Format(_exported, _facts, _store_facts, import_index),
    "shard": _arrays(_copied("features", "shard-00000.safetensors"), Shard.read),
    "codes": _arrays(_codes, Codes.load),
    "places of arrays": Format(_codes, _entries, _store_entries, _use_arrays),
    "split": _arrays(lambda folder: Path(shutil.copy(STORED / "split.safetensors", folder)), Split.load),
    "teacher": _arrays(_copied("run", "teacher.safetensors"), _use_teacher),
    "model": _arrays(_model(HashModel(6, 5, (4, 4), 8, 8)), _use_model),
    "model for each length": _arrays(
        _model(PerLength.join([HashModel(6, 5, (4,), 8, 8), HashModel(6, 5, (8,), 8, 8)])), _use_model
    ),
    "linear codes": _arrays(_model(LinearCodes(6, 5, [4, 8])), _use_model),
    "model that reads tokens": _arrays(_model(PolysemicCodes(6, 5, 8, {"image": (2, 3), "text": (4, 3)})), _use_model),
}


class Timeout(BaseException):
    """A try took too long."""


def _stop(*_: object) -> None:
    raise Timeout


def fuzz(name: str, tries: int, seed: int = 0) -> dict[str, int]:
    """Try a format.

    Returns:
        Number of tries that gave an error of ours, and of those that gave a result.

    Raises:
        AssertionError: another error, too much time or too much memory; with the edited header.
    """
    form, rng = FORMATS[name], random.Random(f"{name} {seed}")
    counts = {"refused": 0, "read": 0}
    _ARRAYS.clear()
    signal.signal(signal.SIGALRM, _stop)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = form.make(Path(folder))
        good, raw = form.load(path), path.read_bytes()
        form.store(path, copy.deepcopy(good))
        form.use(path)  # also sealed again it is good
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for number in range(tries):
            content: Any = None
            path.write_bytes(raw)
            if rng.random() < 0.1:
                path.write_bytes(damaged(raw, rng))
            else:
                content = form.edit(good, rng)
                try:
                    form.store(path, copy.deepcopy(content))
                except (RecursionError, UnicodeError, ValueError, TypeError, OverflowError):
                    continue  # cannot be written, so it cannot be read
            try:
                signal.alarm(SECONDS)
                form.use(path)
                counts["read"] += 1
            except MultibitError as error:
                assert str(error), name
                counts["refused"] += 1
            except (Exception, Timeout) as error:
                about = f"{name}, seed {seed}, try {number}: {type(error).__name__}: {error}\n{content!r:.4000}"
                raise AssertionError(about) from error
            finally:
                signal.alarm(0)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < GROWTH, f"{name}: {grown:.0f} MB more memory"
    return counts


def main() -> None:
    """Fuzz all formats or one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--format", choices=list(FORMATS))
    options = parser.parse_args()
    failed = False
    for name in [options.format] if options.format else FORMATS:
        try:
            counts = fuzz(name, options.tries, options.seed)
            print(f"{name}: {counts['refused']:,} refused, {counts['read']:,} read", flush=True)
        except AssertionError as error:
            failed = True
            print(f"FAILED {error}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()

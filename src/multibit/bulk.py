"""Codes of data in object stores, part by part, and indices of them: nothing is ever on one machine as a whole."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow
import pyarrow.parquet

from multibit.codes import Codes
from multibit.data.objects import fetch, joined, listed, put
from multibit.data.parts import Parts
from multibit.errors import DataError, FormatError, MismatchError
from multibit.features.parts import features_of_part, work_on_parts
from multibit.hashing.encode import encode_store
from multibit.indices import index_names
from multibit.progress import track
from multibit.search.batches import ID, unpacked
from multibit.search.building import create_index
from multibit.search.columns import whole_array
from multibit.search.names import index_path
from multibit.search.parquet import read_table

if TYPE_CHECKING:
    from multibit.pipeline import AnyRun
    from multibit.runs import Run

FIELDS = ("text", "labels")  # metadata of the items, as in the indices of a run
MODEL = b"multibit model"  # key of the fingerprint in the files


def code_parts(run: Run, parts: Parts, out: str, *, engine: str = "local", workers: int = 2) -> int:
    """Write the codes of data in a store, a Parquet file for each part, with ids, first texts and labels.

    `index_parts` has an example.
    There is a column of packed codes for each index of the run, see `index_names`. What was stopped is resumed by the
    same call.

    Args:
        run: with the model. parts: of the data. out: URL of the folder of the files. engine: "local", or "ray" for a
            Ray cluster whose machines all reach both stores. workers: threads that decode images, or Ray workers.

    Returns:
        Number of items that were coded now.

    Raises:
        MismatchError: another result is there, or an installed encoder differs from that of the features.
        DataError: as `Parts.fetch`, or a part without a readable image.
    """
    encoders = run.image_encoder(), run.text_encoder()
    names = {f"{name} code": place for name, place in index_names(run).items()}
    make = partial(_code_part, run.model, run.record.model, names, parts, encoders, out)
    what = {"codes of model": run.record.model}
    return work_on_parts(parts, out, what, make, partial(_file, out), engine=engine, workers=workers)


def _file(out: str, number: int) -> str:
    return joined(out, f"codes-{number:05d}.parquet")


def _code_part(
    model: Any, fingerprint: str, names: dict[str, Any], parts: Parts, encoders: Any, out: str, number: int
) -> int:
    with tempfile.TemporaryDirectory() as folder:
        image_encoder, text_encoder = encoders
        store = features_of_part(parts, number, image_encoder, text_encoder, Path(folder))
        coded, data = encode_store(model, store), store.dataset
        columns: dict[str, Any] = {
            ID: list(data.ids),
            "text": [texts[0] for texts in data.texts],
            "labels": [data.label_names_of(row) for row in range(len(data))],
        }
        about = {MODEL: fingerprint.encode()}
        for name, (modality, bits) in names.items():
            codes = coded.at(bits).codes(modality)
            packed = codes.to_bytes().reshape(len(codes), -1)
            columns[name] = pyarrow.array(list(map(bytes, packed)), pyarrow.binary(packed.shape[1]))
            about[name.encode()] = f"{codes.bits} {codes.views}".encode()
        table = pyarrow.table(columns)
        local = Path(folder) / "codes.parquet"
        pyarrow.parquet.write_table(table.replace_schema_metadata(about), local)
        put(local, _file(out, number))
        return len(store)


def index_parts(run: AnyRun, source: str, folder: Path, *, engine: str = "exact") -> dict[str, int]:
    """Build the indices of a run from the files of `code_parts`, in memory that does not grow with them.

    Args:
        run: with the model. source: URL of the folder of the files. folder: of the indices. engine: of the search.

    Returns:
        Name of an index -> number of items.

    Raises:
        DataError: no files, or an id in two of them. MismatchError: codes of another model. FormatError: corrupt.

    Example:
        >>> from multibit import write_dataset
        >>> base = f"file://{Path.cwd()}"
        >>> manifest = write_dataset(data, "items.jsonl")
        >>> parts = Parts.of(f"{base}/items.jsonl", Path("local"))
        >>> code_parts(run, parts, f"{base}/codes")
        24
        >>> index_parts(run, f"{base}/codes", Path("index"))
        {'image': 24, 'text': 24}
    """
    sizes = {}
    for name, (modality, _) in index_names(run).items():
        files = listed(source, (".parquet",))
        path = index_path(folder, name)
        folder.mkdir(parents=True, exist_ok=True)
        with create_index(path, model=run.record.model, engine=engine, modality=modality) as builder:
            with track("Indexing parts", len(files), "parts") as advance:
                for url in files:
                    for ids, codes, metadata in _blocks(url, f"{name} code", run.record.model):
                        builder.add(ids, codes, metadata)
                    advance()
            sizes[name] = len(builder)
    return sizes


def _blocks(url: str, name: str, model: str) -> Iterator[tuple[Any, Codes, Any]]:
    """Ids, codes and metadata of a file."""
    with tempfile.TemporaryDirectory() as folder:
        local = Path(folder) / "codes.parquet"
        fetch(url, local)
        try:
            table = read_table(local)
        except DataError as error:
            raise FormatError(error.problem, file=url) from None
    about = table.schema.metadata or {}
    found = about.get(MODEL, b"").decode()
    if found != model:
        raise MismatchError(f"holds codes of model {found or 'unknown'}, the run has {model}.", field=url)
    if name not in table.column_names or name.encode() not in about:
        raise DataError(f"no column {name!r}; found {', '.join(table.column_names)}.", field=url)
    bits, views = map(int, about[name.encode()].split())
    codes = unpacked(whole_array(table.column(name)), views, bits)
    yield table.column(ID), codes, table.select([field for field in FIELDS if field in table.column_names])

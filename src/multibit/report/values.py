"""Evaluations on disk: JSON of what people read, and beside it a Parquet file of the per-query values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
from numpy.typing import NDArray

from multibit.errors import DataError, FormatError
from multibit.evaluation.metrics import PrecisionRecall
from multibit.evaluation.protocol import Evaluation
from multibit.files import checksum_file, read_json, replacing, require_writable, write_json

FloatArray = NDArray[np.float64]
KIND, VERSION = "evaluation", 1
COLUMNS = ("evaluation", "protocol", "metric", "direction", "bits")
FLOOR = "floor "  # before the name of a floor, where values have the name of a metric


def check_target(path: Path) -> None:
    """Refuse a target of `save_evaluations` before the work, not after it.

    Raises:
        DataError: it cannot be written. FormatError: one of its two files is there and is no evaluation.
    """
    values = path.with_suffix(".parquet")
    require_writable(path)
    require_writable(values)
    if path.exists():
        read_json(path, kind=KIND, version=VERSION)
    if values.exists() and not _is_values(values):
        raise FormatError(f"{values}: holds no values of an evaluation, but would be replaced. Choose another name.")


def _is_values(path: Path) -> bool:
    try:
        return list(pyarrow.parquet.read_schema(path).names) == [*COLUMNS, "query", "value"]
    except (OSError, pyarrow.ArrowException):
        return False


def save_evaluations(path: Path, evaluations: Sequence[Evaluation]) -> list[Path]:
    """Write evaluations so that `load_evaluations` gives equal ones.

    Args:
        path: of the JSON file: protocol, fingerprints, means, floors, precision-recall points. The values of each
            query go beside it, into the same name with .parquet, a row per evaluation, metric, direction, bits and
            query; floors have no direction and 0 bits.

    Returns:
        Both files.

    Raises:
        DataError: the name does not end in .json.
    """
    if path.suffix != ".json":
        raise DataError(f"{path}: must end in .json; the per-query values go beside it into a .parquet file.")
    values = path.with_suffix(".parquet")
    with replacing(values) as temporary:
        pyarrow.parquet.write_table(_table(evaluations), temporary)
    content = {"values": checksum_file(values), "evaluations": [each.to_dict() for each in evaluations]}
    write_json(path, content, kind=KIND, version=VERSION)
    return [path, values]


def load_evaluations(path: Path | str) -> list[Evaluation]:
    """Read what `save_evaluations` wrote.

    Raises:
        FormatError: a folder, or a file is missing, torn, newer, or the two do not belong together.
    """
    path = Path(path)
    if path.is_dir():
        there = ", ".join(sorted(each.name for each in path.glob("*.json"))) or "no .json file"
        raise FormatError(f"{path}: is a folder; name the .json file that `multibit evaluate` wrote. It has {there}.")
    content = read_json(path, kind=KIND, version=VERSION, fields=("values", "evaluations"))
    values = path.with_suffix(".parquet")
    if not values.is_file():
        raise FormatError(f"{values}: no such file, but {path.name} needs it for the values of each query.")
    if checksum_file(values) != content["values"]:
        raise FormatError(f"{values}: not the values that {path.name} describes. Evaluate again or restore a copy.")
    streams = _read_streams(values)
    try:
        return [_evaluation(each, streams.get(number, {})) for number, each in enumerate(content["evaluations"])]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(f"{path}: lacks something ({error!r}), so it was edited. Evaluate again.") from None


def _streams(evaluation: Evaluation) -> Iterator[tuple[tuple[str, str, int], FloatArray]]:
    yield from evaluation.values.items()
    for name, values in evaluation.floors.items():
        yield (FLOOR + name, "", 0), values


def _table(evaluations: Sequence[Evaluation]) -> pyarrow.Table:
    blocks = [
        (number, evaluation.protocol, *key, values)
        for number, evaluation in enumerate(evaluations)
        for key, values in _streams(evaluation)
    ]
    sizes = [len(block[-1]) for block in blocks]
    columns: dict[str, Any] = {}
    for place, name in enumerate(COLUMNS):
        distinct, which = np.unique([block[place] for block in blocks], return_inverse=True)
        codes = np.repeat(which, sizes).astype(np.int32)  # a text in every row would be large
        texts = distinct.dtype.kind == "U"
        columns[name] = pyarrow.DictionaryArray.from_arrays(codes, distinct) if texts else distinct[codes]
    columns["query"] = np.concatenate([np.arange(size) for size in sizes])
    columns["value"] = np.concatenate([block[-1] for block in blocks])
    return pyarrow.table(columns)


def _read_streams(path: Path) -> dict[int, dict[tuple[str, str, int], FloatArray]]:
    """Number of the evaluation -> (metric, direction, bits) -> values."""
    table = pyarrow.parquet.read_table(path)
    starts = np.flatnonzero(table["query"].to_numpy() == 0)
    parts = np.split(table["value"].to_numpy(), starts[1:])
    streams: dict[int, dict[tuple[str, str, int], FloatArray]] = {}
    for key, part in zip(table.drop_columns(["query", "value"]).take(starts).to_pylist(), parts, strict=True):
        streams.setdefault(key["evaluation"], {})[key["metric"], key["direction"], key["bits"]] = part
    return streams


def _evaluation(content: dict[str, Any], streams: dict[tuple[str, str, int], FloatArray]) -> Evaluation:
    return Evaluation(
        protocol=content["protocol"],
        lengths=tuple(content["lengths"]),
        queries=content["queries"],
        database=content["database"],
        values={key: values for key, values in streams.items() if not key[0].startswith(FLOOR)},
        floors={key[0].removeprefix(FLOOR): values for key, values in streams.items() if key[0].startswith(FLOOR)},
        curves={(curve["direction"], curve["bits"]): _curve(curve) for curve in content["curves"]},
        name=content["name"],
        fingerprints=content["fingerprints"],
    )


def _curve(content: dict[str, Any]) -> PrecisionRecall:
    precision, recall = (np.array(content[each], np.float64) for each in ("precision", "recall"))
    return PrecisionRecall(np.array(content["radius"], np.int64), precision, recall)

"""Evaluations on disk: a human-readable JSON file, and next to it a Parquet file of the per-query values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow
import pyarrow.parquet

from multibit.arrays import FloatArray
from multibit.codes.items import Direction
from multibit.config import MAX_BITS
from multibit.errors import DataError, FormatError, require_kind
from multibit.evaluation.evaluation import Evaluation
from multibit.evaluation.metric import MAP, Metric
from multibit.evaluation.metrics import PrecisionRecall
from multibit.files import building, checksum_file, read_json, write_json
from multibit.paths import replacing, require_writable

KIND, VERSION = "evaluation", 1
COLUMNS = ("evaluation", "protocol", "metric", "direction", "bits")
FLOOR = "floor "  # prefix of the name of a floor, in the column of metric names


def require_evaluation_target(path: Path, *, own: bool = False) -> None:
    """Refuse a path that `save_evaluations` cannot write, before the work that ends there.

    Args:
        path: of the JSON file. own: whether nothing else can be there, so that damaged files are replaced.

    Raises:
        DataError: it cannot be written, or does not end in .json. FormatError: one of the two files exists and is not
            of an evaluation.
    """
    path = Path(path)
    _require_json(path)
    values = path.with_suffix(".parquet")
    require_writable(path)
    require_writable(values)
    if own:
        return
    if path.exists():
        read_json(path, kind=KIND, version=VERSION)
    if values.exists() and not _is_values(values):
        raise FormatError(
            "exists and does not hold values of an evaluation.",
            file=values,
            hint="Choose another name for the evaluation.",
        )


_AGAIN = "Evaluate again or restore a copy."
Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 40)]
Bits = Annotated[int, msgspec.Meta(ge=1, le=MAX_BITS)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1.000001)] | None
"""None where it is undefined."""


class _Curve(msgspec.Struct):
    """Precision and recall within each radius."""

    direction: Direction
    bits: Bits
    radius: list[Annotated[int, msgspec.Meta(ge=0, le=MAX_BITS)]]
    precision: list[Share]
    recall: list[Share]


class _Stored(msgspec.Struct):
    """An evaluation without its per-query values; the means are not read, they follow from these."""

    name: str
    protocol: str
    fingerprints: dict[str, str]
    lengths: Annotated[tuple[Bits, ...], msgspec.Meta(min_length=1)]
    queries: Count
    database: Count
    curves: list[_Curve]


class _Header(msgspec.Struct):
    """What the JSON file must have: the checksum of the other file, and the evaluations."""

    values: str
    evaluations: list[_Stored]


def _require_json(path: Path) -> None:
    if path.suffix != ".json":
        raise DataError(f"must end in .json, got {path.name}; the per-query values are written next to it.", file=path)


def _is_values(path: Path) -> bool:
    try:
        return list(pyarrow.parquet.read_schema(path).names) == [*COLUMNS, "query", "value"]
    except (OSError, pyarrow.ArrowException):
        return False


def save_evaluations(path: Path | str, evaluations: Sequence[Evaluation]) -> list[Path]:
    """Write evaluations so that `load_evaluations` gives equal ones.

    Args:
        path: of the JSON file: protocol, fingerprints, means, floors, precision-recall points. The per-query values
            are written next to it, to the same name with .parquet, one row per evaluation, metric, direction, bits and
            query; floors have no direction and 0 bits.
        evaluations: to write, such as those of both protocols.

    Returns:
        The paths of both files.

    Raises:
        DataError: the name does not end in .json, or no list of evaluations, of at least one.

    Example:
        >>> import tempfile
        >>> from multibit.codes import CodedItems
        >>> from multibit.evaluation.protocol import evaluate
        >>> labels = np.eye(2, dtype=np.uint8)[np.arange(6) % 2]
        >>> items = CodedItems.binarize({"image": labels - 0.5, "text": labels - 0.5}, labels)
        >>> measured = evaluate(items, items, [2], training_labels=labels)
        >>> json_file, parquet_file = save_evaluations(Path(tempfile.mkdtemp()) / "evaluation.json", [measured])
        >>> load_evaluations(json_file) == [measured]
        True
    """
    path = Path(path)
    _require_json(path)
    _require_evaluations(evaluations)
    values = path.with_suffix(".parquet")
    with replacing(values) as temporary:
        pyarrow.parquet.write_table(_table(evaluations), temporary)
    content = {"values": checksum_file(values), "evaluations": [each.to_dict() for each in evaluations]}
    write_json(path, content, kind=KIND, version=VERSION)
    return [path, values]


def _require_evaluations(evaluations: Sequence[Evaluation]) -> None:
    """Refuse anything but one evaluation or more in a list."""
    if isinstance(evaluations, Evaluation):
        raise DataError("need a list, got one evaluation.", option="evaluations", hint="Pass [evaluation].")
    require_kind(evaluations, Sequence, "evaluations", "Pass a list of what evaluate returned.")
    if not evaluations:
        raise DataError("need at least 1, got none.", option="evaluations")
    for each in evaluations:
        require_kind(each, Evaluation, "evaluations", "Pass a list of what evaluate returned.")


def load_evaluations(path: Path | str) -> list[Evaluation]:
    """Read evaluations that `save_evaluations` wrote.

    Args:
        path: of the JSON file.

    Raises:
        FormatError: a folder, or a file is missing, corrupt, newer, or the two do not belong together.

    Example:
        >>> from multibit import evaluate_run
        >>> written = save_evaluations("evaluation.json", evaluate_run(run, store))
        >>> [evaluation.protocol for evaluation in load_evaluations("evaluation.json")]
        ['training items in the database', 'training items kept out of the database']
    """
    path = Path(path)
    if path.is_dir():
        found = ", ".join(sorted(each.name for each in path.glob("*.json"))) or "no .json file"
        raise FormatError(f"is a folder, with {found}.", file=path, hint="Name the .json file of an evaluation.")
    content = read_json(path, kind=KIND, version=VERSION, form=_Header, hint=_AGAIN)
    values = path.with_suffix(".parquet")
    if not values.is_file():
        raise FormatError(f"no such file; {path.name} needs it for the per-query values.", file=values, hint=_AGAIN)
    if checksum_file(values) != content.values:
        raise FormatError(f"does not hold the values that {path.name} describes.", file=values, hint=_AGAIN)
    if not _is_values(values):
        raise FormatError("does not hold values of an evaluation.", file=values, hint=_AGAIN)
    with building(values, _AGAIN):
        streams = _read_streams(values)
    with building(path, _AGAIN):
        return [_evaluation(each, streams.get(number, {})) for number, each in enumerate(content.evaluations)]


def _streams(evaluation: Evaluation) -> Iterator[tuple[tuple[str, str, int], FloatArray]]:
    for (metric, direction, bits), values in evaluation.values.items():
        yield (str(metric), direction, bits), values
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
        codes = np.repeat(which, sizes).astype(np.int32)  # a string in every row would be large
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


def _evaluation(content: _Stored, streams: dict[tuple[str, Any, int], FloatArray]) -> Evaluation:
    wrong = [key for key, values in streams.items() if len(values) != content.queries]
    labelled = any(Metric.parse(name) == MAP for name, _, _ in streams if not name.startswith(FLOOR))
    if wrong or not streams or labelled != ((FLOOR + "random", "", 0) in streams):
        raise ValueError(f"not one value for each of {content.queries} queries: {wrong or 'the random floor'}")
    return Evaluation(
        protocol=content.protocol,
        lengths=content.lengths,
        queries=content.queries,
        database=content.database,
        values={
            (Metric.parse(name), direction, bits): values
            for (name, direction, bits), values in streams.items()
            if not name.startswith(FLOOR)
        },
        floors={key[0].removeprefix(FLOOR): values for key, values in streams.items() if key[0].startswith(FLOOR)},
        curves={(curve.direction, curve.bits): _curve(curve) for curve in content.curves},
        name=content.name,
        fingerprints=content.fingerprints,
    )


def _curve(content: _Curve) -> PrecisionRecall:
    precision, recall = (np.array(each, np.float64) for each in (content.precision, content.recall))
    if not len(precision) == len(recall) == len(content.radius):
        raise ValueError(f"{len(precision)} and {len(recall)} values for {len(content.radius)} radii")
    return PrecisionRecall(np.array(content.radius, np.int64), precision, recall)

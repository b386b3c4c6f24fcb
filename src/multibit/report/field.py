"""A run's codes and numbers in the files that the field's repositories write, for scripts that read those."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from multibit.data import FeatureStore
from multibit.errors import FormatError
from multibit.evaluation.metrics import PrecisionRecall, average_precision
from multibit.evaluation.protocol import DIRECTIONS, CodedPairs, Evaluation
from multibit.files import replacing, require_writable
from multibit.progress import progress
from multibit.report.assessment import precision_curve
from multibit.runs import Run
from multibit.search.exchange import save_mat
from multibit.training import encode

STEP, LAST = 200, 10_000  # ranks of the top-N precision points
FOLDER = "PR_cruve"  # as those repositories spell it
WITHIN = {"MAP(t->t)": "text", "MAP(i->i)": "image"}
"""Name in the log -> modality of both queries and database."""
EXPLANATION = (
    "MAP(validation) is multibit's own: validation queries against training items, the mean over both directions and "
    "all lengths; its largest picks the epoch. All other MAPs are of the picked epoch, queries against database, equal "
    "distances by row, queries without relevant items left out."
)


def check_target(folder: Path) -> None:
    """Refuse a folder of `write_field_files` before the work, not after it.

    Raises:
        DataError: it cannot be written.
    """
    for each in (folder, folder / FOLDER):
        require_writable(each, folder=True)


def write_field_files(run: Run, store: FeatureStore, evaluation: Evaluation, folder: Path) -> list[Path]:
    """Write codes, top-N precision, precision-recall points and a log, for every length and direction.

    <dataset> is the name of the features, <mode> is i2t or t2i:

    * `PR_cruve/<bits>-ours-<dataset>-<mode>.mat`: q_img q_txt r_img r_txt (-1, +1), q_l r_l
    * `PR_cruve/<bits>-ours-<dataset>-<mode>-topN.csv`: mean precision of the first N = 200, 400, ... ranks
    * `PR_cruve/<bits>-ours-<dataset>-<mode>-PR.csv`: precision and recall within each Hamming radius, over all pairs
    * `<dataset>-<bits>-train.log`: a line per epoch and the final mAPs

    Args:
        run: whose. store: the features that it was split by. evaluation: of its whole database, the usual protocol.
        folder: their `--save-dir`; files of these names are replaced.

    Returns:
        The files.

    Raises:
        MismatchError: other features. FormatError: the run's history is missing or torn.
    """
    run.require_own(store)
    history = _read_history(run.folder / "history.jsonl")
    query, database = (encode(run.model, store.take(rows)) for rows in (run.split.query, run.split.database))
    dataset = store.source.stem if store.source else "data"
    written = []
    with progress("Writing the field's files", len(DIRECTIONS) * len(evaluation.lengths), "files") as advance:
        for bits in evaluation.lengths:
            for mode, (asked, searched) in DIRECTIONS.items():
                path = folder / FOLDER / f"{bits}-ours-{dataset}-{mode}"
                sides = query.codes(asked), database.codes(searched), query.labels, database.labels
                precision = precision_curve(*sides, LAST, bits)
                mat = path.with_name(f"{path.name}.mat")
                save_mat(
                    mat, (query.image, query.text, query.labels), (database.image, database.text, database.labels), bits
                )
                top, points = _top_rows(precision.tolist()), _radius_rows(evaluation.curves[mode, bits])
                written += [
                    mat,
                    _write_csv(path.with_name(f"{path.name}-topN.csv"), ("N", "precision"), top),
                    _write_csv(path.with_name(f"{path.name}-PR.csv"), ("radius", "precision", "recall"), points),
                ]
                advance()
            log = folder / f"{dataset}-{bits}-train.log"
            with replacing(log) as temporary:
                lines = _log_lines(run, dataset, history, _maps(evaluation, query, database, bits), bits)
                temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            written.append(log)
    return written


def top_ranks(items: int) -> list[int]:
    """N = 200, 400, ... up to 10,000 or the database; all of a database that is smaller than 200.

    Example:
        >>> top_ranks(700), top_ranks(50)
        ([200, 400, 600], [50])
    """
    return list(range(STEP, min(items, LAST) + 1, STEP)) or [items]


def _top_rows(precision: Sequence[float]) -> Iterator[tuple[int, float]]:
    for rank in top_ranks(len(precision)):
        yield rank, precision[rank - 1]


def _radius_rows(curve: PrecisionRecall) -> Iterator[tuple[int, float | str, float]]:
    """The points; precision is empty where nothing lies within the radius."""
    for radius, precision, recall in zip(curve.radius, curve.precision.tolist(), curve.recall.tolist(), strict=True):
        yield int(radius), "" if np.isnan(precision) else precision, recall


def _maps(evaluation: Evaluation, query: CodedPairs, database: CodedPairs, bits: int) -> dict[str, float]:
    """Name in the log -> mAP@all."""
    across = {
        "MAP(i->t)": evaluation.mean("mAP", "i2t", bits),
        "MAP(t->i)": evaluation.mean("mAP", "t2i", bits),
    }
    within = {
        name: float(
            np.nanmean(average_precision(query.codes(side), database.codes(side), query.labels, database.labels, bits))
        )
        for name, side in WITHIN.items()
    }
    return across | within


def _log_lines(
    run: Run, dataset: str, history: Sequence[dict[str, float]], maps: dict[str, float], bits: int
) -> Iterator[str]:
    split, best = run.split, run.record["selection"]["epoch"]
    settings = {
        "method": "MultiBit", "dataset": dataset, "output_dim": bits, "query_num": len(split.query),
        "train_num": len(split.train), **run.config.to_dict(),
    }  # fmt: skip
    yield f"Namespace({', '.join(f'{name}={value!r}' for name, value in settings.items())})"
    yield EXPLANATION
    largest = -np.inf
    for row in history:
        epoch = f">>>>>> [{row['epoch']}/{run.config.epochs}]"
        yield f"{epoch} loss: {row['total']:.6f}, lr: {row['learning_rate']:.9f}"
        if "validation_mAP" in row:
            largest = max(largest, row["validation_mAP"])
            yield f"{epoch}, MAP(validation): {row['validation_mAP']:.4f}, MAX MAP(validation): {largest:.4f}"
    measured = ", ".join(f"{name}: {value:.4f}" for name, value in maps.items())
    i2t, t2i = maps["MAP(i->t)"], maps["MAP(t->i)"]
    yield f">>>>>> [{best}/{run.config.epochs}], {measured}, MAX MAP(i->t): {i2t:.4f}, MAX MAP(t->i): {t2i:.4f}"
    yield f">>>>>>> FINISHED >>>>>> Best epoch, I-T: {best}, mAP: {i2t:.4f}, T-I: {best}, mAP: {t2i:.4f}"


def _read_history(path: Path) -> list[dict[str, float]]:
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for row in rows:
            if not all(isinstance(row[name], int | float) for name in ("epoch", "total", "learning_rate")):
                raise ValueError(f"no numbers in {row}")
        return rows
    except FileNotFoundError:
        raise FormatError(f"{path}: no such file, so there is nothing to write a log from. Train again.") from None
    except (ValueError, TypeError, KeyError, UnicodeDecodeError) as error:
        raise FormatError(f"{path}: torn or edited ({error}). Train again or restore a copy.") from None


def _write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> Path:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([header, *rows])
    with replacing(path) as temporary:
        temporary.write_text(out.getvalue(), encoding="utf-8")
    return path

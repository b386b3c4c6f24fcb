"""Codes and numbers of a run in the file formats of the field's repositories."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from multibit.arrays import FloatArray
from multibit.cells import write_csv
from multibit.codes.items import DIRECTIONS, CodedItems, Modality
from multibit.evaluation.evaluation import Evaluation
from multibit.evaluation.metric import MAP
from multibit.evaluation.metrics import PrecisionRecall
from multibit.evaluation.protocol import within_modality
from multibit.evaluation.ranking import Key
from multibit.features.store import FeatureStore
from multibit.folders import renewing
from multibit.hashing.methods import METHODS
from multibit.measurement import MeasuredRun
from multibit.paths import replacing
from multibit.progress import track
from multibit.runs import read_history
from multibit.search.exchange import save_mat

STEP, LAST = 200, 10_000  # ranks of the top-N precision points
FOLDER = "PR_cruve"  # spelled as in those repositories
WITHIN: dict[str, Modality] = {"MAP(t->t)": "text", "MAP(i->i)": "image"}
"""Name in the log -> modality of both queries and database."""
EXPLANATION = (
    "MAP(validation) is multibit's own: validation queries against training items, mean over both directions and all "
    "lengths; the epoch with the largest value is selected. All other MAPs are of the selected epoch: queries against "
    "database, ties by row, without queries that have no relevant item."
)


@dataclass(frozen=True, eq=False)
class FieldRecord:
    """What the field's files contain about a run.

    Attributes:
        dataset: name of the dataset, part of the file names. method: that was trained. settings: of the run, by name.
        epochs: of the training. best: length -> the selected epoch.
        history: a row per epoch: loss parts, learning rate, validation score; where each length has a model of its
            own, a row per length and epoch, with "bits".
        query, database: coded items. evaluation: of the whole database.
        precision: (direction, length) -> (n,) mean precision of the first 1..n ranks.
        within: modality -> length -> mAP where queries and database are of that modality.
    """

    dataset: str
    method: str
    settings: Mapping[str, Any]
    epochs: int
    best: Mapping[int, int]
    history: Sequence[Mapping[str, float]]
    query: CodedItems
    database: CodedItems
    evaluation: Evaluation
    precision: Mapping[Key, FloatArray]
    within: Mapping[Modality, Mapping[int, float]]


def field_record(measured: MeasuredRun, store: FeatureStore) -> FieldRecord:
    """The record of a measured run.

    Args:
        measured: the run, with precision curves of depth `LAST`. store: its features, which name the files.

    Raises:
        FormatError: the run's history is missing or corrupt.
    """
    run, split, selection = measured.run, measured.run.split, measured.run.record.selection
    return FieldRecord(
        dataset=store.source.stem if store.source else "data",
        method=METHODS[run.record.method].title if run.record.method in METHODS else "MultiBit",
        settings={"train_num": len(split.train), **run.config.to_dict()},
        epochs=getattr(run.config, "epochs", 1),
        best={bits: selection.by_length.get(str(bits), selection.epoch) for bits in run.lengths},
        history=read_history(run),
        query=measured.query,
        database=measured.database,
        evaluation=measured.evaluations[0],
        precision={key: ranking.first.precision for key, ranking in measured.rankings[0].items()},
        within=within_modality(measured.query, measured.database, run.lengths),
    )


def write_field_files(record: FieldRecord, folder: Path) -> list[Path]:
    """Write codes, top-N precision, precision-recall points and a log for every length and direction.

    `<mode>` is i2t or t2i:

    * `PR_cruve/<bits>-ours-<dataset>-<mode>.mat`: q_img q_txt r_img r_txt (-1, +1), q_l r_l
    * `PR_cruve/<bits>-ours-<dataset>-<mode>-topN.csv`: mean precision of the first N = 200, 400, ... ranks
    * `PR_cruve/<bits>-ours-<dataset>-<mode>-PR.csv`: precision and recall within each Hamming radius, over all pairs
    * `<dataset>-<bits>-train.log`: a line per epoch and the final mAPs

    Args:
        record: of a run. folder: what those repositories call the save directory; files of these names are replaced.

    Returns:
        The paths of the files.
    """
    with renewing(folder) as fresh:  # on a full disk the earlier files stay
        written = _write_field_files(record, fresh)
    return [folder / path.relative_to(fresh) for path in written]


def _write_field_files(record: FieldRecord, folder: Path) -> list[Path]:
    written = []
    with track("Writing the field's files", len(record.precision), "files") as advance:
        for bits in record.evaluation.lengths:
            for mode in DIRECTIONS:
                path = folder / FOLDER / f"{bits}-ours-{record.dataset}-{mode}"
                mat = path.with_name(f"{path.name}.mat")
                save_mat(mat, record.query.at(bits), record.database.at(bits), bits)
                top = _top_rows(record.precision[mode, bits].tolist())
                points = _radius_rows(record.evaluation.curves[mode, bits])
                written += [
                    mat,
                    _write_csv(path.with_name(f"{path.name}-topN.csv"), ("N", "precision"), top),
                    _write_csv(path.with_name(f"{path.name}-PR.csv"), ("radius", "precision", "recall"), points),
                ]
                advance()
            log = folder / f"{record.dataset}-{bits}-train.log"
            with replacing(log) as temporary:
                temporary.write_text("".join(f"{line}\n" for line in _log_lines(record, bits)), encoding="utf-8")
            written.append(log)
    return written


def top_ranks(items: int) -> list[int]:
    """N = 200, 400, ... up to 10,000 or the number of items; all items if there are fewer than 200.

    Example:
        >>> top_ranks(700), top_ranks(50)
        ([200, 400, 600], [50])
    """
    return list(range(STEP, min(items, LAST) + 1, STEP)) or [items]


def _top_rows(precision: Sequence[float]) -> Iterator[tuple[int, float]]:
    for rank in top_ranks(len(precision)):
        yield rank, precision[rank - 1]


def _radius_rows(curve: PrecisionRecall) -> Iterator[tuple[int, float | str, float]]:
    """A row per radius; precision is empty where no item lies within the radius."""
    for radius, precision, recall in zip(curve.radius, curve.precision.tolist(), curve.recall.tolist(), strict=True):
        yield int(radius), "" if np.isnan(precision) else precision, recall


def _log_lines(record: FieldRecord, bits: int) -> Iterator[str]:
    evaluation, epochs, best = record.evaluation, record.epochs, record.best[bits]
    i2t, t2i = (evaluation.mean(MAP, direction, bits) for direction in DIRECTIONS)
    maps = {"MAP(i->t)": i2t, "MAP(t->i)": t2i}
    maps |= {name: record.within[modality][bits] for name, modality in WITHIN.items()}
    settings = {
        "method": record.method, "dataset": record.dataset, "output_dim": bits, "query_num": len(record.query),
        **record.settings,
    }  # fmt: skip
    yield f"Namespace({', '.join(f'{name}={value!r}' for name, value in settings.items())})"
    yield EXPLANATION
    largest = -np.inf
    for row in record.history:
        if row.get("bits", bits) != bits:
            continue  # of the model of another length
        epoch = f">>>>>> [{int(row['epoch'])}/{epochs}]"
        yield f"{epoch} loss: {row['total']:.6f}, lr: {row['learning_rate']:.9f}"
        if "validation_mAP" in row:
            largest = max(largest, row["validation_mAP"])
            yield f"{epoch}, MAP(validation): {row['validation_mAP']:.4f}, MAX MAP(validation): {largest:.4f}"
    measured = ", ".join(f"{name}: {value:.4f}" for name, value in maps.items())
    yield f">>>>>> [{best}/{epochs}], {measured}, MAX MAP(i->t): {i2t:.4f}, MAX MAP(t->i): {t2i:.4f}"
    yield f">>>>>>> FINISHED >>>>>> Best epoch, I-T: {best}, mAP: {i2t:.4f}, T-I: {best}, mAP: {t2i:.4f}"


def _write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> Path:
    out = io.StringIO()
    write_csv(out, [header, *rows])
    with replacing(path) as temporary:
        temporary.write_text(out.getvalue(), encoding="utf-8")
    return path

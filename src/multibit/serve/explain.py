"""What the second tab of the page shows: fields with counts, accuracy, bit budget, warnings, related labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from multibit.arrays import mean_of
from multibit.codes import DIRECTIONS, Modality
from multibit.errors import MultibitError
from multibit.evaluation.health import code_health, code_warnings
from multibit.evaluation.storage import load_evaluations
from multibit.indices import index_names
from multibit.records import RECORD
from multibit.search import Index
from multibit.search.remote import RemoteIndex
from multibit.serve.collection import HIDDEN, Collection
from multibit.serve.problems import not_found

if TYPE_CHECKING:
    from multibit.pipeline import AnyRun

MOST_VALUES = 100  # of a field, the most common ones
MOST_DISTINCT = 10_000  # a field with more values is not for choosing
COUNTED = ("string", "integer", "boolean", "date")  # kinds, next to lists
SAMPLED = 20_000  # items whose bits are examined


def field_counts(index: Index | RemoteIndex, every: bool = False) -> dict[str, dict[str, Any]]:
    """Fields of an index: kind, and the most common values with counts where at least two items share one.

    Args:
        index: of the items. every: all values, as a router needs them to add up those of all shards.
    """
    return {
        name: {"kind": kind, "values": common_values(_counted(index, name, kind), len(index), kind, every)}
        for name, kind in index.fields.items()
        if name not in HIDDEN
    }


def _counted(index: Index | RemoteIndex, name: str, kind: str) -> list[tuple[Any, int]] | None:
    """Values of a field with counts; None where they are not for choosing."""
    if kind == "list":
        return index.values(name, MOST_DISTINCT)
    if kind not in COUNTED:
        return None
    if isinstance(index, RemoteIndex):
        found = index.values(name, MOST_DISTINCT + 1)
        return None if len(found) > MOST_DISTINCT else found
    return index.values(name, MOST_DISTINCT, most=MOST_DISTINCT)


def common_values(
    found: list[tuple[Any, int]] | None, items: int, kind: str, every: bool = False
) -> list[tuple[Any, int]] | None:
    """The values of a field to choose from, the most common first.

    Args:
        found: values with counts. items: number of all items. kind: of the field. every: all of them.
    """
    if found is None or every:
        return found
    if kind != "list" and not 0 < len(found) <= min(MOST_DISTINCT, items // 2):
        return None
    return sorted(found, key=lambda pair: -pair[1])[:MOST_VALUES]


def explain(collection: Collection) -> dict[str, Any]:
    """Accuracy by length, bit budget by scale, and warnings about the codes."""
    run = collection.run
    teacher = run.teacher
    scales = []
    if teacher is not None and len(run.record.blocks) == teacher.scales:
        scales = [
            {"tau": float(tau), "rho": float(rho), "bits": bits}
            for tau, rho, bits in zip(teacher.tau, teacher.rho, run.record.blocks, strict=True)
        ]
    accuracy = _accuracy(run)
    return {
        "accuracy": accuracy,
        "scales": scales,
        "has_teacher": teacher is not None,
        "warnings": _warnings(collection),
        "missing": _missing(run, bool(accuracy)),
    }


def _missing(run: AnyRun, evaluated: bool) -> dict[str, str]:
    """What cannot be explained -> why, and what helps."""
    exported, found = not (run.folder / RECORD).exists(), {}
    if not evaluated:
        found["accuracy"] = (
            "This model was exported before its run was evaluated: evaluate the run, then export it again."
            if exported
            else "This run has not been evaluated: multibit evaluate RUN measures it, then this page shows the result."
        )
    if run.teacher is None:
        found["teacher"] = (
            "The exported model was written without the relation teacher: export its run again."
            if exported and (run.record.teacher or not run.label_names)
            else "The method of this run learns without a relation teacher."
        )
    return found


def _accuracy(run: AnyRun) -> list[dict[str, Any]]:
    """The saved evaluations of a run; none if it was not evaluated, or another model was."""
    try:
        evaluations = load_evaluations(run.folder / "evaluation.json")
    except MultibitError:
        return []
    return [
        {
            "protocol": each.protocol,
            "metric": str(each.headline),
            "queries": each.queries,
            "database": each.database,
            "means": {
                direction: {bits: float(each.mean(each.headline, direction, bits)) for bits in each.lengths}
                for direction in DIRECTIONS
                if (each.headline, direction, each.lengths[0]) in each.values
            },
            "floors": {name: mean_of(values) for name, values in each.floors.items()},
        }
        for each in evaluations
        if each.fingerprints.get("run") == run.record.model
    ]


def _warnings(collection: Collection) -> list[str]:
    found = []
    for _, (modality, bits) in index_names(collection.run).items():
        if modality in collection.modalities:
            found += _index_warnings(collection, modality, bits)
    return found


def _index_warnings(collection: Collection, modality: Modality, bits: int) -> list[str]:
    index, layout = collection.index(modality, bits), collection.run.model.layout
    if not len(index):
        return []
    chosen = index.some_codes(SAMPLED)
    lengths = [each for each in collection.run.lengths if layout.serving(each) == bits]
    return code_warnings(code_health(chosen, lengths), len(chosen), modality)


def related_labels(run: AnyRun, name: str, count: int) -> dict[str, Any]:
    """What the teacher considers related to a label, nearest first, with the score at each scale.

    Raises:
        RefusedError: an unknown label, or a run without a teacher.
    """
    if name not in run.label_names:
        raise not_found(f"label {name!r}")
    if run.teacher is None:
        raise not_found("relation teacher in this run")
    place, every = run.label_names.index(name), np.eye(len(run.label_names), dtype=np.uint8)
    scores = run.teacher.scores(every[[place]], every)[0]
    by_scale = run.teacher.scale_scores(every[[place]], every)[:, 0]
    order = [each for each in np.argsort(-scores, kind="stable").tolist() if each != place and scores[each] > 0]
    return {
        "label": name,
        "items": int(run.teacher.graph.cooccurrence[place, place]),
        "neighbours": [
            {"label": run.label_names[each], "score": float(scores[each]), "scales": by_scale[:, each].tolist()}
            for each in order[:count]
        ],
    }

"""All metrics of the protocol on one stored set of codes of the shipped sample.

`sample_codes.npz` holds the packed 128-bit codes and labels of 200 queries and 1,000 database items of the OpenClipart
sample, and the queries' relaxed codes in steps of 1/127, from a run with the default settings (30 epochs, seed 42).
`sample_values.json` holds the values of these codes; the metrics are tested against slow references elsewhere.
MULTIBIT_UPDATE_GOLDEN=1 replaces the stored values.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from multibit.codes import Codes
from multibit.codes.items import DIRECTIONS, MODALITIES, CodedItems
from multibit.evaluation.agreement import cross_length_agreement
from multibit.evaluation.health import code_health
from multibit.evaluation.protocol import add_asymmetric, add_resolution, evaluate_rankings
from multibit.evaluation.ranking import Rankings
from multibit.evaluation.relevance import GradedRelevance

HERE = Path(__file__).parent
LENGTHS = (16, 32, 64, 128)


@pytest.fixture(scope="module")
def sides():
    with np.load(HERE / "sample_codes.npz") as file:
        relaxed = {modality: file[f"query_{modality}_relaxed"] / 127 for modality in MODALITIES}
        return [
            CodedItems(
                Codes.from_bytes(file[f"{side}_image"]),
                Codes.from_bytes(file[f"{side}_text"]),
                np.unpackbits(file[f"{side}_labels"], axis=1)[:, : int(file["labels"])],
                known,
            )
            for side, known in (("query", relaxed), ("database", {}))
        ]


@pytest.fixture(scope="module")
def measured(sides):
    """Name -> number."""
    query, database = sides
    graded = [GradedRelevance.idf(database.labels), GradedRelevance.shared_labels(database.labels.shape[1])]
    rankings = Rankings(query, database, LENGTHS)
    evaluation = evaluate_rankings(rankings, training_labels=database.labels, at=50)
    evaluation = add_asymmetric(add_resolution(evaluation, rankings, graded), rankings)
    found = {f"floor {name}": evaluation.floor(name) for name in evaluation.floors}
    found |= {" ".join(map(str, key)): evaluation.mean(*key) for key in evaluation.values}
    for (direction, bits), curve in evaluation.curves.items():
        found[f"precision within radius 2 {direction} {bits}"] = float(curve.precision[2])
        found[f"recall within radius 2 {direction} {bits}"] = float(curve.recall[2])
    for direction, (asked, searched) in DIRECTIONS.items():
        for pair in cross_length_agreement(query.codes(asked), database.codes(searched), LENGTHS):
            name = f"{direction} {pair.lengths[0]}-{pair.lengths[1]}"
            found[f"tau-b of lengths {name}"] = float(pair.tau.mean())
            found[f"rank displacement {name}"] = float(pair.displacement.mean())
    for modality in MODALITIES:
        health = code_health(database.codes(modality), LENGTHS)
        found |= {f"distinct {modality} {bits}": count for bits, count in health.distinct.items()}
    return found


def test_all_metrics_of_the_protocol_are_as_stored(measured):
    path = HERE / "sample_values.json"
    if os.environ.get("MULTIBIT_UPDATE_GOLDEN") == "1":
        path.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    stored = json.loads(path.read_text(encoding="utf-8"))
    assert list(measured) == list(stored)
    assert measured == pytest.approx(stored, rel=1e-9)


def test_stored_values_are_complete_and_plausible(measured):
    """Two directions, four lengths: seven ways to rank or cut, and four resolution metrics under two references."""
    assert (
        sum(name.endswith(("16", "32", "64", "128")) and "t2i" in name for name in measured) == 15 * 4 + 2 * 4 + 2 * 6
    )
    for direction in DIRECTIONS:
        values = [measured[f"mAP {direction} {bits}"] for bits in LENGTHS]
        assert values == sorted(values) and values[0] > measured["floor popularity"] + 0.2

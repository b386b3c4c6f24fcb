"""Strata without a common label: both strata against a loop over all pairs."""

import math

import numpy as np
import pytest

from multibit.codes import Codes
from multibit.errors import ConfigError, DataError
from multibit.evaluation import strata
from multibit.evaluation.relevance import GradedRelevance
from multibit.evaluation.strata import no_shared_label

COLUMNS = 6
BITS = 5


def graph(kind, seed=0):
    """Symmetric label weights of which many, most or all are 0."""
    rng = np.random.default_rng(seed)
    weights = rng.random((COLUMNS, COLUMNS)) * (rng.random((COLUMNS, COLUMNS)) < 0.6)
    if kind == "sparse":
        weights[:] = 0
        weights[0, 1] = 0.7
    if kind == "empty":
        weights[:] = 0
    weights = np.triu(weights, 1)
    return weights + weights.T


def semantic(seed=0):
    vectors = np.random.default_rng(seed).normal(size=(COLUMNS, 2))
    return GradedRelevance.semantic([f"thing {i}" for i in range(COLUMNS)], lambda _: vectors)


def data(queries=7, items=40, seed=1):
    rng = np.random.default_rng(seed)
    bits = [rng.integers(0, 2, size=(count, BITS)) for count in (queries, items)]
    labels = [(rng.random((count, COLUMNS)) < 0.2).astype(np.uint8) for count in (queries, items)]
    return *bits, *labels


def measured(sides, weights, **options):
    query, database, *labels = sides
    codes = [(Codes.from_bits(query), Codes.from_bits(database))]
    (found,) = no_shared_label(codes, *labels, semantic(), weights, **options)
    return found


def strata_by_pairs(sides, weights, bits=BITS, k=100, compared=500):
    """Pairs and NDCG of each query in both strata."""
    query, database, query_labels, labels = sides
    query, query_labels = query[:compared], query_labels[:compared]
    scores = semantic().scores(query_labels, labels)
    related = {}  # (query, item) without a common label -> label-graph similarity
    for q, wanted in enumerate(query_labels):
        for i, has in enumerate(labels):
            if not (wanted & has).any():
                related[q, i] = sum(weights[a, b] for a in np.flatnonzero(wanted) for b in np.flatnonzero(has))
    by_relation = sorted(related, key=lambda pair: (-round(related[pair], 6), pair))
    closest = by_relation[: max(len(related) // 4, 1)]
    found = []
    for pairs in (list(related), closest):
        values = []
        for q in range(len(query)):
            rows = sorted(i for other, i in pairs if other == q)
            distance = {i: sum(query[q, :bits] != database[i, :bits]) for i in rows}
            ranked = sorted(rows, key=lambda i: (distance[i], i))[:k]
            ideal = sorted((scores[q, i] for i in rows), reverse=True)[:k]
            gain, best = (
                sum(r / math.log2(rank + 2) for rank, r in enumerate(gains))
                for gains in ([scores[q, i] for i in ranked], ideal)
            )
            values.append(gain / best if best > 0 else math.nan)
        found.append((len(pairs), values))
    return found


@pytest.mark.parametrize("kind", ["dense", "sparse", "empty"])
@pytest.mark.parametrize(
    "options", [{}, {"bits": 2}, {"k": 3}, {"compared": 4}, {"bits": 3, "k": 1, "compared": 1}, {"k": 1000}]
)
def test_both_strata_equal_the_pairs_one_by_one(kind, options):
    sides, weights = data(), graph(kind)
    found = measured(sides, weights, **options)
    expected = strata_by_pairs(sides, weights, **options)
    assert [stratum.name for stratum in found] == ["no shared label", "no shared label, graph top 25 %"]
    for stratum, (pairs, values) in zip(found, expected, strict=True):
        assert stratum.pairs == pairs
        np.testing.assert_allclose(stratum.values, values, rtol=1e-12)


@pytest.mark.parametrize("kind", ["dense", "sparse", "empty"])
def test_the_closest_stratum_is_exactly_a_quarter_of_the_pairs_however_many_are_tied(kind):
    apart, closest = measured(data(), graph(kind))
    assert closest.pairs == apart.pairs // 4 > 0


def test_tied_pairs_are_taken_by_query_row_then_database_row():
    """Without any relation all pairs are tied, so the stratum is the first quarter of them."""
    labels = np.zeros((2, COLUMNS), np.uint8), np.zeros((8, COLUMNS), np.uint8)
    sides = np.zeros((2, BITS), int), np.zeros((8, BITS), int), *labels
    relations = strata._Relations(*labels, graph("empty"))
    assert sum(len(values) for values in relations.apart()) == 16
    _, closest = measured(sides, graph("empty"))
    assert closest.pairs == 4


def test_a_quarter_of_the_pairs_is_close_where_all_relations_differ():
    rng = np.random.default_rng(0)
    weights = np.triu(rng.random((COLUMNS, COLUMNS)), 1)
    query_labels, labels = np.eye(COLUMNS, dtype=np.uint8)[:2], np.eye(COLUMNS, dtype=np.uint8)[2:]
    sides = np.zeros((2, BITS), int), np.zeros((4, BITS), int), query_labels, labels
    apart, closest = measured(sides, weights + weights.T)
    assert (apart.pairs, closest.pairs) == (8, 2)


def test_strata_by_hand():
    """Label 0 is close to label 1 in both name and graph, and far from label 2; the near code is of label 2."""
    vectors = np.array([[2.0, 1.0], [2.0, -1.0], [-4.0, 0.0]])
    relevance = GradedRelevance.semantic(["a", "b", "c"], lambda _: vectors)
    query, database = Codes.from_bits([[0, 0]]), Codes.from_bits([[0, 0], [0, 1], [0, 0], [1, 1]])
    weights = np.array([[0, 0.9, 0.1], [0.9, 0, 0], [0.1, 0, 0]])
    labels = [[1, 0, 0]], [[0, 0, 1], [0, 1, 0], [1, 0, 0], [0, 0, 1]]
    (found,) = no_shared_label([(query, database)], *labels, relevance, weights)
    assert [stratum.pairs for stratum in found] == [3, 1]
    assert found[0].values == pytest.approx([1 / math.log2(3)])  # the only relevant one comes second
    assert found[1].values == pytest.approx([1])


def test_items_and_queries_without_labels_share_none():
    sides = data()
    sides[2][0], sides[3][:3] = 0, 0
    apart, _ = measured(sides, graph("dense"))
    assert apart.pairs == sum(not (a & b).any() for a in sides[2] for b in sides[3])
    assert math.isnan(apart.values[0])


def test_data_where_all_pairs_share_a_label_is_refused():
    labels = np.ones((3, COLUMNS), np.uint8), np.ones((5, COLUMNS), np.uint8)
    sides = np.zeros((3, BITS), int), np.zeros((5, BITS), int), *labels
    with pytest.raises(DataError) as caught:
        measured(sides, graph("dense"))
    assert caught.value.field == "labels"


def test_both_directions_at_once_are_both_alone():
    (query, database, *labels), weights = data(), graph("dense")
    sides = [tuple(map(Codes.from_bits, pair)) for pair in ((query, database), (1 - query, database[::-1]))]
    together = no_shared_label(sides, *labels, semantic(), weights)
    assert len(together) == 2
    for side, found in zip(sides, together, strict=True):
        (alone,) = no_shared_label([side], *labels, semantic(), weights)
        for one, other in zip(found, alone, strict=True):
            assert (one.name, one.pairs) == (other.name, other.pairs)
            np.testing.assert_array_equal(one.values, other.values)


@pytest.mark.parametrize("kept", [0, 10**9])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_blocks_change_nothing(kind, kept, monkeypatch):
    sides, weights = data(queries=9, items=50), graph(kind)
    whole = measured(sides, weights)
    monkeypatch.setattr(strata, "BLOCK", 2)
    monkeypatch.setattr(strata, "CHUNK", 7)
    monkeypatch.setattr(strata, "KEPT", kept)
    for one, other in zip(measured(sides, weights), whole, strict=True):
        assert one.pairs == other.pairs
        np.testing.assert_array_equal(one.values, other.values)


@pytest.mark.parametrize("seed", range(4))
def test_the_value_at_a_rank_is_that_of_the_sorted_values(seed):
    rng = np.random.default_rng(seed)
    values = np.abs(rng.normal(size=300) * 10.0 ** rng.integers(-30, 30, size=300)).astype(np.float32)
    values[rng.random(300) < 0.4] = 0
    for rank in (0, 1, 150, 224, 225, 299):
        found = strata._value_at(rank, lambda: iter(np.split(values, [10, 10, 200])))
        assert found == np.sort(values)[rank]


def test_no_query_to_compare_is_refused():
    with pytest.raises(ConfigError) as caught:
        measured(data(), graph("dense"), compared=0)
    assert caught.value.option == "compared" and "got 0" in caught.value.problem

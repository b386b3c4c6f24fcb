"""Resolution metrics against sorting loops, pair by pair counts, scipy and scikit-learn."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import kendalltau
from sklearn.metrics import ndcg_score

from multibit.codes import Codes
from multibit.codes.distance import nearest
from multibit.codes.items import CodedItems
from multibit.errors import DataError
from multibit.evaluation import resolution
from multibit.evaluation.metric import COLLISION, INVERSION, NDCG, TAU_B
from multibit.evaluation.protocol import evaluate
from multibit.evaluation.ranking import Ranking, Rankings
from multibit.evaluation.relevance import GradedRelevance, LabelSetRelevance
from multibit.evaluation.resolution import ideal_gains, kendall_tau, ndcg, ndcg_of_rows, pair_order, pool_resolution

LABELS = 5
REFERENCES = ["shared labels", "IDF", "label names"]


def reference(name, database_labels):
    if name == "shared labels":
        return GradedRelevance.shared_labels(LABELS)
    if name == "IDF":
        return GradedRelevance.idf(database_labels)
    vectors = np.random.default_rng(3).normal(size=(LABELS, 3))
    return GradedRelevance.semantic([f"thing {i}" for i in range(LABELS)], lambda _: vectors)


def data(queries, items, bits=6, seed=0):
    """Bits and labels of both sides: many ties, items and one query without labels, and a label of one query only."""
    rng = np.random.default_rng(seed)
    sides = [rng.integers(0, 2, size=(count, bits)) for count in (queries, items)]
    labels = [(rng.random((count, LABELS)) < 0.3).astype(np.uint8) for count in (queries, items)]
    labels[1][:, -1] = 0
    labels[0][-1] = 0
    labels[0][0] = [0] * (LABELS - 1) + [1]
    return *sides, *labels


def packed(query, database, query_labels, database_labels):
    return Codes.from_bits(query), Codes.from_bits(database), query_labels, database_labels


def ndcg_of(query, database, query_labels, database_labels, graded, bits=None, k=100, ideal=None):
    """NDCG@k of the ranking by the codes."""
    rows = nearest(query, database, min(k, len(database)), bits).rows
    ideal = ideal_gains(graded, query_labels, database_labels, k) if ideal is None else ideal
    (sets,) = LabelSetRelevance.of([graded], query_labels, database_labels)
    return ndcg_of_rows(rows, sets, ideal)


def pools_of(query, database, query_labels, database_labels, graded, bits=None, anchor=None):
    """Tau-b, collision and inversion (3, Q) on the pools of the ranking by the codes and of an anchor."""
    ranking = Ranking(query, database, query_labels, database_labels, bits or query.bits)
    sets = LabelSetRelevance.of([graded], query_labels, database_labels)
    (found,) = pool_resolution(ranking, sets, ranking.first.rows if anchor is None else anchor)
    return found


def hamming(query, database, bits=None):
    return (query[:, None, :bits] != database[None, :, :bits]).sum(axis=2)


def dcg(gains):
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, start=1))


def ndcg_by_sorting(relevance, distance, k):
    order = sorted(range(len(distance)), key=lambda row: (distance[row], row))
    best = dcg(sorted(relevance, reverse=True)[:k])
    return dcg([relevance[row] for row in order[:k]]) / best if best > 0 else math.nan


def order_by_pairs(relevance, distance):
    """Tau-b, collision and inversion rate by the definitions, over ordered pairs of which the first is worth more."""
    pairs = list(itertools.permutations(range(len(relevance)), 2))
    worth = [(i, j) for i, j in pairs if relevance[i] > relevance[j]]
    collided = sum(distance[i] == distance[j] for i, j in worth)
    inverted = sum(distance[i] > distance[j] for i, j in worth)
    apart = sum(distance[i] < distance[j] for i, j in pairs)
    scale = math.sqrt(len(worth) * apart)
    tau = (len(worth) - collided - 2 * inverted) / scale if scale else 0.0
    return tau, *((collided / len(worth), inverted / len(worth)) if worth else (math.nan, math.nan))


def as_tuple(order):
    return order.tau, order.collision, order.inversion


# NDCG


@pytest.mark.parametrize(
    ("ranked", "ideal", "expected"),
    [
        ([3, 2, 1], [3, 2, 1], 1),
        ([3, 2, 1], [1, 3, 2], 1),  # the ideal is put in order
        ([0, 0, 5], [5, 0, 0], 1 / 2),  # log2(4) = 2
        ([0, 1], [1, 1], (1 / math.log2(3)) / (1 + 1 / math.log2(3))),
        ([0], [2], 0),
        ([2.5], [2.5], 1),
        ([1, 1, 1], [1, 1, 1], 1),
    ],
)
def test_ndcg_by_hand(ranked, ideal, expected):
    assert ndcg(ranked, ideal) == pytest.approx(expected)


@pytest.mark.parametrize("nothing", [[], [0.0], [0.0, 0.0]])
def test_ndcg_is_undefined_when_nothing_is_relevant(nothing):
    assert math.isnan(ndcg(nothing, nothing))


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize(("items", "k"), [(1, 1), (1, 100), (7, 3), (90, 1), (90, 100), (140, 100), (140, 1000)])
def test_ndcg_of_a_hamming_ranking_equals_sorting(name, items, k):
    sides = data(8, items)
    graded = reference(name, sides[3])
    expected = [ndcg_by_sorting(*each, k) for each in zip(graded.scores(*sides[2:]), hamming(*sides[:2]), strict=True)]
    got = ndcg_of(*packed(*sides), graded, k=k)
    np.testing.assert_allclose(got, expected, rtol=1e-12)
    assert np.isnan(got[-1])  # the query without labels


@pytest.mark.parametrize("bits", [1, 4, 6, None])
def test_ndcg_ranks_at_the_prefix(bits):
    sides = data(8, 60)
    graded = reference("IDF", sides[3])
    distances = hamming(*sides[:2], bits)
    expected = [ndcg_by_sorting(*each, 20) for each in zip(graded.scores(*sides[2:]), distances, strict=True)]
    np.testing.assert_allclose(ndcg_of(*packed(*sides), graded, bits, 20), expected, rtol=1e-12)


@pytest.mark.parametrize("k", [1, 5, 30, 60, 500])
def test_ndcg_without_ties_agrees_with_scikit_learn(k):
    """Its score averages over ties, and calls a query without relevant items 0; so neither occurs here."""
    rng = np.random.default_rng(4)
    relevance = rng.integers(0, 4, size=(20, 60)).astype(float)
    relevance[:, 7] = 3
    for worth in relevance:
        score = rng.permutation(60)
        ranked = worth[np.argsort(-score)][:k]
        got = ndcg(ranked, np.sort(worth)[::-1][:k])
        assert got == pytest.approx(ndcg_score([worth], [score], k=k), rel=1e-12)


@pytest.mark.parametrize("k", [1, 10, 100])
def test_ndcg_is_one_when_all_are_equally_relevant(k):
    query, database, *_ = data(3, 40)
    sides = packed(query, database, np.ones((3, LABELS)), np.ones((40, LABELS)))
    got = ndcg_of(*sides, GradedRelevance.shared_labels(LABELS), k=k)
    np.testing.assert_allclose(got, 1)


def test_ndcg_is_zero_when_the_relevant_item_ranks_after_the_cutoff():
    database = Codes.from_bits([[0, 0], [1, 0], [1, 1]])
    labels = [[1]], [[0], [0], [1]]
    sides = Codes.from_bits([[0, 0]]), database, *labels, GradedRelevance.shared_labels(1)
    assert ndcg_of(*sides, k=2).tolist() == [0]
    assert ndcg_of(*sides, k=3).tolist() == [0.5]


def test_equal_distances_are_ranked_by_row():
    labels = [[0], [1], [0], [1]]
    same = Codes.from_bits(np.zeros((4, 3)))
    got = ndcg_of(same.take([0]), same, [[1]], labels, GradedRelevance.shared_labels(1))
    assert got == pytest.approx([(1 / math.log2(3) + 1 / math.log2(5)) / (1 + 1 / math.log2(3))])


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize(("queries", "items", "k"), [(1, 1, 5), (3, 50, 50), (64, 50, 10), (130, 30, 100)])
def test_ideal_gains_are_the_largest_relevances(name, queries, items, k):
    """130 queries are more than two blocks."""
    *_, query_labels, database_labels = data(queries, items)
    graded = reference(name, database_labels)
    expected = [sorted(row, reverse=True)[:k] for row in graded.scores(query_labels, database_labels)]
    got = ideal_gains(graded, query_labels, database_labels, k)
    assert got.shape == (queries, min(k, items))
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-15)


def test_given_ideal_gains_are_used_unchanged():
    sides = data(6, 40)
    graded = reference("IDF", sides[3])
    ideal = ideal_gains(graded, *sides[2:], 15)
    np.testing.assert_array_equal(
        ndcg_of(*packed(*sides), graded, k=15, ideal=ideal), ndcg_of(*packed(*sides), graded, k=15)
    )
    np.testing.assert_allclose(
        ndcg_of(*packed(*sides), graded, k=15, ideal=2 * ideal), ndcg_of(*packed(*sides), graded, k=15) / 2
    )


# Pairs of a pool


@pytest.mark.parametrize(
    ("relevance", "distance", "expected"),
    [
        ([3, 2, 1], [0, 1, 2], (1, 0, 0)),
        ([1, 2, 3], [0, 1, 2], (-1, 0, 1)),
        ([2, 1, 0], [4, 4, 4], (0, 1, 0)),  # all equally far
        ([1, 1, 1], [0, 1, 2], (0, math.nan, math.nan)),  # all equally relevant
        ([0, 0], [5, 5], (0, math.nan, math.nan)),
        ([7], [3], (0, math.nan, math.nan)),  # one candidate has no pair
        ([], [], (0, math.nan, math.nan)),
        ([1, 0, 0], [2, 2, 1], (-1 / 2, 1 / 2, 1 / 2)),  # (right 0 - wrong 1) / sqrt(2 of 3 differ, twice)
        ([1.5, 1.0, 0.5], [0, 0, 3], (2 / math.sqrt(6), 1 / 3, 0)),
    ],
)
def test_pair_order_by_hand(relevance, distance, expected):
    assert as_tuple(pair_order(relevance, distance)) == pytest.approx(expected, nan_ok=True)


def test_pair_order_of_every_pattern_of_four_candidates():
    patterns = list(itertools.product(range(3), repeat=4))
    for relevance, distance in itertools.product(patterns, patterns[::2]):
        expected = order_by_pairs(relevance, distance)
        assert as_tuple(pair_order(relevance, distance)) == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize("levels", [2, 3, 10, 1000])
@pytest.mark.parametrize("count", [2, 9, 60, 200])
def test_tau_of_a_pool_agrees_with_scipy(count, levels):
    rng = np.random.default_rng(count)
    for _ in range(10):
        relevance, distance = rng.integers(levels, size=count) / 7, rng.integers(levels, size=count)
        expected = kendalltau(relevance, -distance).statistic
        got = pair_order(relevance, distance)
        assert got.tau == pytest.approx(0 if math.isnan(expected) else expected, abs=1e-12)
        assert as_tuple(got) == pytest.approx(order_by_pairs(relevance, distance), nan_ok=True)


@pytest.mark.parametrize(("relevance", "distance"), [([1, 2], [1, 2, 3]), ([[1, 2]], [[1, 2]]), (1, 2)])
def test_relevance_and_distance_must_be_of_the_same_candidates(relevance, distance):
    with pytest.raises(DataError) as caught:
        pair_order(relevance, distance)
    assert caught.value.field == "distance"
    assert all(str(np.shape(each)) in caught.value.problem for each in (relevance, distance))


def pool_by_hand(sides, graded, other=None, bits=None):
    """The three measures on the union of the first 100 rows of two rankings."""
    scores = graded.scores(*sides[2:])
    values = []
    for q, distance in enumerate(hamming(*sides[:2], bits)):
        first = np.argsort(distance, kind="stable")[:100].tolist()
        pool = sorted(set(first) | set(first if other is None else other[q].tolist()))
        values.append(order_by_pairs(scores[q][pool], distance[pool]))
    return np.array(values).T


@pytest.mark.parametrize("bits", [3, None])
@pytest.mark.parametrize("items", [1, 2, 40, 100, 250])
def test_the_pool_of_a_run_with_itself_is_its_first_hundred(items, bits):
    sides = data(5, items)
    graded = reference("shared labels", sides[3])
    got = pools_of(*packed(*sides), graded, bits)
    np.testing.assert_allclose(got, pool_by_hand(sides, graded, bits=bits), rtol=1e-12, atol=1e-15)


def test_a_run_that_is_its_own_anchor_has_the_same_pool():
    sides = data(5, 250)
    first = np.argsort(hamming(*sides[:2]), axis=1, kind="stable")[:, :100]
    graded = reference("shared labels", sides[3])
    with_itself = pools_of(*packed(*sides), graded, anchor=first)
    np.testing.assert_array_equal(with_itself, pools_of(*packed(*sides), graded))


@pytest.mark.parametrize("items", [60, 150, 400])
def test_the_pool_with_an_anchor_is_the_union(items):
    sides, others = data(5, items), data(5, items, seed=9)
    first = np.argsort(hamming(*others[:2]), axis=1, kind="stable")[:, :100]
    graded = reference("shared labels", sides[3])
    got = pools_of(*packed(*sides), graded, anchor=first)
    np.testing.assert_allclose(got, pool_by_hand(sides, graded, first), rtol=1e-12, atol=1e-15)
    alone = pools_of(*packed(*sides), graded)
    assert (np.array_equal(got[0], alone[0])) == (items <= 100)


def test_the_pools_of_several_references_are_those_of_each():
    sides = data(5, 150)
    ranking = Ranking(*packed(*sides), bits=6)
    references = [reference(name, sides[3]) for name in REFERENCES]
    together = pool_resolution(ranking, LabelSetRelevance.of(references, *sides[2:]), ranking.first.rows)
    assert together.shape == (3, 3, 5)
    for each, found in zip(references, together, strict=True):
        np.testing.assert_array_equal(found, pools_of(*packed(*sides), each))


def test_an_anchor_of_other_queries_is_refused():
    sides = data(5, 30)
    with pytest.raises(DataError) as caught:
        pools_of(*packed(*sides), reference("IDF", sides[3]), anchor=np.zeros((4, 30), np.int64))
    assert caught.value.option == "anchor"
    assert all(number in caught.value.problem for number in ("4 queries", "5"))


def test_candidates_of_equal_label_sets_are_equally_relevant():
    """All items have the same two labels, so no pair differs in relevance."""
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(24, 16))
    graded = GradedRelevance.semantic([f"thing {i}" for i in range(24)], lambda _: vectors)
    for _ in range(300):
        query_labels, one = (rng.random((1, 24)) < 0.3).astype(np.uint8), (rng.random((1, 24)) < 0.3).astype(np.uint8)
        items = int(rng.integers(2, 100))
        query, database = Codes.from_bits([[0]]), Codes.from_bits(rng.integers(0, 2, size=(items, 1)))
        _, collision, _ = pools_of(query, database, query_labels, np.repeat(one, items, axis=0), graded)
        assert np.isnan(collision[0])


# Tau-b of integer scores


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([0, 1, 2], [5, 6, 9], 1),
        ([0, 1, 2], [9, 6, 5], -1),
        ([0, 0, 1], [0, 1, 1], 1 / 2),
        ([3, 3, 3], [0, 1, 2], 0),
        ([3, 3, 3], [1, 1, 1], 0),
        ([4], [2], 0),
        ([0, 1, 0, 1], [0, 0, 1, 1], 0),
    ],
)
def test_kendall_tau_by_hand(a, b, expected):
    assert kendall_tau(a, b) == pytest.approx(expected)


@pytest.mark.parametrize(("a_levels", "b_levels"), [(1, 4), (2, 2), (17, 129), (129, 17), (400, 3)])
@pytest.mark.parametrize("count", [2, 10, 300, 3000])
def test_kendall_tau_agrees_with_scipy(count, a_levels, b_levels):
    rng = np.random.default_rng(count)
    a = rng.integers(a_levels, size=count)
    b = np.clip(a * b_levels // a_levels + rng.integers(-2, 3, size=count), 0, b_levels - 1)
    expected = kendalltau(a, b).statistic
    assert kendall_tau(a, b) == pytest.approx(0 if math.isnan(expected) else expected, abs=1e-12)


def test_kendall_tau_of_nothing_is_zero():
    assert kendall_tau(np.zeros(0, np.int64), np.zeros(0, np.int64)) == 0


def test_kendall_tau_counts_more_pairs_than_32_bits_hold():
    """Two halves of 200,000 items: half of the 2 x 10^10 pairs are tied."""
    a = np.arange(200_000) % 2
    assert kendall_tau(a, a) == 1
    assert kendall_tau(a, 1 - a) == -1


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.int32, np.int64])
def test_kendall_tau_accepts_integers_of_any_width(kind):
    assert kendall_tau(np.array([0, 1, 200], kind), np.array([0, 1, 200], kind)) == 1


def test_kendall_tau_accepts_large_scores():
    assert kendall_tau([0, 1, 65_536], [0, 1, 2]) == 1
    assert kendall_tau([70_000, 70_000], [0, 1]) == 0
    assert kendall_tau([0, 5_000, 1], [9_000, 0, 9_000]) == pytest.approx(-2 / math.sqrt(6))


@pytest.mark.parametrize(
    ("a", "b", "numbers"),
    [
        ([0.5, 1.0], [0, 1], ("float64 (2,)", "int64 (2,)")),
        ([0, 1], [0, 1, 2], ("int64 (2,)", "int64 (3,)")),
        ([[0, 1]], [[0, 1]], ("int64 (1, 2)",)),
        ([0, -1], [0, 1], ("got -1",)),
        ([0, 1], [-3, 1], ("got -3",)),
    ],
)
def test_scores_that_are_not_levels_are_refused(a, b, numbers):
    with pytest.raises(DataError) as caught:
        kendall_tau(a, b)
    assert caught.value.field == "scores"
    assert all(number in caught.value.problem for number in numbers)


# In the evaluation of a run


def pairs_of(items, seed, bits=8):
    rng = np.random.default_rng(seed)
    image, text = (Codes.from_bits(rng.integers(0, 2, size=(items, bits))) for _ in range(2))
    labels = (rng.random((items, LABELS)) < 0.4).astype(np.uint8)
    labels[:, 0] |= ~labels.any(axis=1)
    return CodedItems(image, text, labels)


@pytest.fixture
def sides():
    return pairs_of(6, seed=1), pairs_of(130, seed=2)


def measured(sides, graded, **options):
    query, database = sides
    return evaluate(query, database, (4, 8), training_labels=database.labels, graded=graded, **options)


@pytest.mark.parametrize("anchored", [False, True])
def test_an_evaluation_measures_resolution_by_each_reference(sides, anchored):
    graded = [reference("IDF", sides[1].labels), reference("label names", sides[1].labels)]
    other = pairs_of(6, seed=3), pairs_of(130, seed=4)
    anchor = Rankings(*other, (4, 8)).anchor if anchored else None
    got = measured(sides, graded, anchor=anchor)
    query, database = sides
    for direction, asked, searched in [("i2t", query.image, database.text), ("t2i", query.text, database.image)]:
        for each, bits in itertools.product(graded, (4, 8)):
            arguments = asked, searched, query.labels, database.labels, each, bits
            np.testing.assert_array_equal(
                got.values[NDCG.under(each.name), direction, bits], ndcg_of(*arguments), strict=True
            )
            rows = anchor[direction, bits] if anchored else None
            for metric, values in zip((TAU_B, COLLISION, INVERSION), pools_of(*arguments, rows), strict=True):
                np.testing.assert_array_equal(got.values[metric.under(each.name), direction, bits], values)


def test_resolution_is_measured_only_with_references(sides):
    alone = measured(sides, ())
    assert alone.references == [] and not {NDCG.name, TAU_B.name} & {metric.name for metric in alone.metrics}
    graded = measured(sides, [reference("IDF", sides[1].labels)])
    assert graded.references == ["IDF"]
    found = [metric for metric in graded.metrics if metric.reference == "IDF"]
    assert found == [metric.under("IDF") for metric in (NDCG, TAU_B, COLLISION, INVERSION)]


@pytest.mark.parametrize("items", [30, 130])
def test_the_rows_of_an_anchor_are_its_first_hundred_ranks(items):
    query, database = pairs_of(4, seed=5), pairs_of(items, seed=6)
    rows = Rankings(query, database, (4, 8)).anchor
    assert list(rows) == [("i2t", 4), ("i2t", 8), ("t2i", 4), ("t2i", 8)]
    distances = hamming(query.text.to_bits(), database.image.to_bits(), 4)
    np.testing.assert_array_equal(rows["t2i", 4], np.argsort(distances, axis=1, kind="stable")[:, :100])


def test_an_anchor_changes_neither_precision_nor_ndcg(sides):
    graded = [reference("IDF", sides[1].labels)]
    anchor = Rankings(pairs_of(6, seed=3), pairs_of(130, seed=4), (4, 8)).anchor
    alone, anchored = measured(sides, graded), measured(sides, graded, anchor=anchor)
    for key in alone.values:
        same = np.array_equal(alone.values[key], anchored.values[key])
        assert same == (key[0].name not in {metric.name for metric in (TAU_B, COLLISION, INVERSION)})


@pytest.mark.parametrize("name", REFERENCES)
def test_blocks_of_queries_change_nothing(name, monkeypatch):
    sides = data(9, 30)
    whole = ndcg_of(*packed(*sides), reference(name, sides[3]), k=5)
    monkeypatch.setattr(resolution, "BLOCK", 2)
    np.testing.assert_array_equal(ndcg_of(*packed(*sides), reference(name, sides[3]), k=5), whole)

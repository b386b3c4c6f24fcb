"""Properties of the resolution, agreement and comparison of any rankings."""

import itertools
import math

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import kendalltau

from multibit.codes import Codes
from multibit.codes.distance import nearest
from multibit.codes.items import CodedItems
from multibit.evaluation.agreement import cross_length_agreement, quantization, rank_displacement, ranks
from multibit.evaluation.comparison import compare_queries
from multibit.evaluation.health import code_health
from multibit.evaluation.metrics import average_precision
from multibit.evaluation.ranking import Ranking
from multibit.evaluation.relevance import GradedRelevance, LabelSetRelevance
from multibit.evaluation.resolution import ideal_gains, kendall_tau, ndcg, ndcg_of_rows, pair_order, pool_resolution

quick = settings(max_examples=50, deadline=None)
shuffles = st.randoms(use_true_random=False)
levels = st.integers(0, 4)
scores = st.lists(levels, min_size=0, max_size=25)
two_scores = st.integers(0, 25).flatmap(
    lambda n: st.tuples(st.lists(levels, min_size=n, max_size=n), st.lists(levels, min_size=n, max_size=n))
)


@st.composite
def rankings(draw, most_items=12):
    """Bits and labels of some queries and of a database; short codes, so most distances are tied."""
    queries, items = draw(st.integers(1, 4)), draw(st.integers(1, most_items))
    length, labels = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    shapes = (queries, length), (items, length), (queries, labels), (items, labels)
    return tuple(draw(arrays(np.uint8, shape, elements=st.integers(0, 1))) for shape in shapes)


def packed(ranking):
    query, database, query_labels, database_labels = ranking
    return Codes.from_bits(query), Codes.from_bits(database), query_labels, database_labels


def ndcg_of(query, database, query_labels, labels, graded, k=100):
    """NDCG@k of the ranking by the codes."""
    rows = nearest(query, database, min(k, len(database))).rows
    (sets,) = LabelSetRelevance.of([graded], query_labels, labels)
    return ndcg_of_rows(rows, sets, ideal_gains(graded, query_labels, labels, k))


def pools_of(query, database, query_labels, labels, graded, anchor=None):
    """Tau-b, collision and inversion (3, Q) on the pools of the ranking by the codes and of an anchor."""
    ranking = Ranking(query, database, query_labels, labels, query.bits)
    sets = LabelSetRelevance.of([graded], query_labels, labels)
    (found,) = pool_resolution(ranking, sets, ranking.first.rows if anchor is None else anchor)
    return found


def weighted(labels, seed=0):
    """A reference with a weight of its own for each label, in eighths so that sums are exact."""
    weights = np.random.default_rng(seed).integers(1, 40, size=np.shape(labels)[1]) / 8
    return GradedRelevance("weighted", np.diag(weights))


def shuffled(count, random):
    order = list(range(count))
    random.shuffle(order)
    return order


# NDCG


@given(rankings(), st.integers(1, 15))
@quick
def test_ndcg_is_a_share_of_the_ideal(ranking, k):
    values = ndcg_of(*packed(ranking), weighted(ranking[2]), k=k)
    shares = (ranking[2].astype(int) @ ranking[3].T).any(axis=1)
    np.testing.assert_array_equal(~np.isnan(values), shares)
    assert ((values[shares] >= 0) & (values[shares] <= 1 + 1e-12)).all()


@given(st.lists(st.floats(0, 100, allow_subnormal=False), min_size=1, max_size=20), st.integers(1, 25))
@quick
def test_ndcg_of_the_ideal_ranking_is_one(relevance, k):
    assume(max(relevance) > 1e-6)
    ideal = sorted(relevance, reverse=True)[:k]
    assert math.isclose(ndcg(ideal, relevance if k >= len(relevance) else ideal), 1)


@given(rankings(), st.integers(1, 15))
@quick
def test_codes_in_the_order_of_relevance_have_an_ndcg_of_one(ranking, k):
    """Items in one column order of a unary code, nearest first."""
    *_, query_labels, labels = ranking
    asked = query_labels[:1]
    relevance = weighted(labels)
    place = np.argsort(np.argsort(-relevance.scores(asked, labels)[0], kind="stable"), kind="stable")
    bits = np.arange(len(labels)) < place[:, None]
    query = Codes.from_bits(np.zeros((1, len(labels))))
    value = ndcg_of(query, Codes.from_bits(bits), asked, labels, relevance, k=k)[0]
    assert math.isnan(value) or math.isclose(value, 1)


@given(rankings(), shuffles)
@quick
def test_the_order_of_queries_does_not_matter(ranking, random):
    query, database, query_labels, labels = ranking
    order = shuffled(len(query), random)
    moved = query[order], database, query_labels[order], labels
    graded = weighted(labels)
    np.testing.assert_allclose(
        ndcg_of(*packed(moved), graded, k=5), ndcg_of(*packed(ranking), graded, k=5)[order], rtol=1e-12
    )
    before, after = pools_of(*packed(ranking), graded), pools_of(*packed(moved), graded)
    np.testing.assert_array_equal(after, before[:, order])


@given(rankings(), shuffles)
@quick
def test_the_order_of_label_columns_does_not_matter(ranking, random):
    query, database, query_labels, labels = ranking
    order = shuffled(labels.shape[1], random)
    graded = weighted(labels)
    turned = GradedRelevance("turned", graded.kernel[np.ix_(order, order)])
    moved = query, database, query_labels[:, order], labels[:, order]
    np.testing.assert_allclose(ndcg_of(*packed(moved), turned), ndcg_of(*packed(ranking), graded), rtol=1e-12)
    before, after = pools_of(*packed(ranking), graded), pools_of(*packed(moved), turned)
    np.testing.assert_array_equal(after, before)


@given(rankings(), st.integers(1, 15))
@quick
def test_ideal_gains_only_grow_with_more_items_and_fall_with_the_rank(ranking, k):
    *_, query_labels, labels = ranking
    graded = weighted(labels)
    gains = ideal_gains(graded, query_labels, labels, k)
    assert (np.diff(gains, axis=1) <= 0).all()
    more = ideal_gains(graded, query_labels, np.concatenate([labels, labels]), k)
    assert (more[:, : gains.shape[1]] >= gains).all()


# Relevance


@given(rankings())
@quick
def test_relevance_is_symmetric_and_at_least_zero(ranking):
    *_, a, b = ranking
    for graded in (weighted(a), GradedRelevance.idf(b), GradedRelevance.shared_labels(a.shape[1])):
        found = graded.scores(a, b)
        assert (found >= 0).all()
        np.testing.assert_allclose(found, graded.scores(b, a).T, atol=1e-12)


@given(rankings(), st.integers(0, 100))
@quick
def test_semantic_relevance_is_one_for_identical_label_sets_and_nowhere_negative(ranking, seed):
    *_, a, b = ranking
    columns = a.shape[1]
    vectors = np.random.default_rng(seed).normal(size=(columns, 3))
    graded = GradedRelevance.semantic([f"thing {i}" for i in range(columns)], lambda _: vectors)
    assert (graded.scores(a, b) >= 0).all()
    np.testing.assert_allclose(np.diag(graded.scores(a, a)), a.any(axis=1), atol=1e-12)


@given(rankings(), st.integers(0, 100))
@quick
def test_normalised_relevance_is_at_most_one_by_a_kernel_that_is_an_inner_product(ranking, seed):
    """Where clipping left the kernel one, as vectors without negative entries do."""
    *_, a, b = ranking
    vectors = np.random.default_rng(seed).random((a.shape[1], 3)) + 0.01
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    found = GradedRelevance("inner product", vectors @ vectors.T, normalized=True).scores(a, b)
    assert (found <= 1 + 1e-12).all()


# Pairs


@given(two_scores)
@quick
def test_pairs_are_concordant_collided_or_inverted(two):
    relevance, distance = two
    found = pair_order(relevance, distance)
    worth = [(i, j) for i, j in itertools.permutations(range(len(relevance)), 2) if relevance[i] > relevance[j]]
    assert math.isnan(found.collision) == math.isnan(found.inversion) == (not worth)
    if worth:
        concordance = sum(distance[i] < distance[j] for i, j in worth) / len(worth)
        assert math.isclose(found.collision + found.inversion + concordance, 1)


@given(two_scores)
@quick
def test_tau_is_symmetric_and_in_bounds_and_agrees_with_scipy(two):
    a, b = (np.array(each, np.int64) for each in two)
    found = kendall_tau(a, b)
    assert -1 <= found <= 1
    assert found == kendall_tau(b, a)
    turned = pair_order(a, -b).tau
    assert math.isclose(found, turned, abs_tol=1e-12)
    if len(a) > 1 and len(set(two[0])) > 1 and len(set(two[1])) > 1:
        assert math.isclose(found, kendalltau(a, b).statistic, abs_tol=1e-12)
    else:
        assert found == 0


@given(scores)
@quick
def test_tau_of_a_score_with_itself_is_one_unless_it_is_constant(values):
    a = np.array(values, np.int64)
    expected = 1 if len(set(values)) > 1 else 0
    assert kendall_tau(a, a) == expected
    assert kendall_tau(a, 4 - a) == -expected
    assert pair_order(a, -a).tau == expected


@given(two_scores, shuffles)
@quick
def test_tau_depends_on_the_order_of_levels_only(two, random):
    a, b = (np.array(each, np.int64) for each in two)
    order = shuffled(len(a), random)
    spread = np.array([0, 3, 4, 10, 300])
    assert kendall_tau(a, b) == kendall_tau(a[order], b[order]) == kendall_tau(spread[a], b)


@given(rankings(most_items=8), shuffles)
@quick
def test_the_order_of_candidates_does_not_matter_where_the_pool_contains_all(ranking, random):
    query, database, query_labels, labels = ranking
    order = shuffled(len(database), random)
    graded = weighted(labels)
    before = pools_of(*packed(ranking), graded)
    after = pools_of(*packed((query, database[order], query_labels, labels[order])), graded)
    np.testing.assert_array_equal(after, before)


@given(rankings(), rankings())
@quick
def test_the_pool_of_any_anchor_is_the_whole_database_where_that_is_small(ranking, other):
    query, database, *_ = ranking
    anchor = np.array([[row % len(database) for row in other[1][:, 0]]] * len(query), np.int64)
    graded = weighted(ranking[3])
    alone, anchored = pools_of(*packed(ranking), graded), pools_of(*packed(ranking), graded, anchor=anchor)
    np.testing.assert_array_equal(anchored, alone)


# Tie bounds


@given(rankings(), st.one_of(st.none(), st.integers(1, 15)))
@quick
def test_stable_and_averaged_lie_between_the_worst_and_the_best_ties(ranking, at):
    worst, stable, average, best = (
        average_precision(*packed(ranking), ties=ties, at=at) for ties in ("worst", "stable", "average", "best")
    )
    for values in (stable, average):
        np.testing.assert_array_equal(np.isnan(values), np.isnan(worst))
        defined = ~np.isnan(values)
        assert (worst[defined] <= values[defined] + 1e-12).all()
        assert (values[defined] <= best[defined] + 1e-12).all()


# Agreement


@given(st.lists(levels, min_size=1, max_size=25))
@quick
def test_ranks_are_a_permutation_that_keeps_the_order(distance):
    found = ranks(distance)
    assert sorted(found) == list(range(len(distance)))
    for i, j in itertools.combinations(range(len(distance)), 2):
        assert (found[i] < found[j]) == (distance[i] <= distance[j])


@given(two_scores.filter(lambda two: two[0]))
@quick
def test_displacement_is_bounded_sums_to_zero_and_is_antisymmetric(two):
    moved = rank_displacement(*two)
    assert (np.abs(moved) <= 1).all()
    assert abs(moved.sum()) < 1e-9
    np.testing.assert_array_equal(rank_displacement(*two[::-1]), -moved)


@given(rankings())
@settings(max_examples=20, deadline=None)
def test_agreement_of_lengths_is_bounded(ranking):
    """No order moves items farther than the reverse does."""
    query, database, *_ = ranking
    assume(query.shape[1] > 1)
    items = len(database)
    farthest = (items**2 // 2) / (items * max(items - 1, 1))
    for pair in cross_length_agreement(*(Codes.from_bits(side) for side in (query, database)), (1, query.shape[1])):
        assert (np.abs(pair.tau) <= 1).all()
        assert ((pair.displacement >= 0) & (pair.displacement <= farthest + 1e-12)).all()


@given(st.integers(0, 10_000), st.integers(2, 40), st.integers(1, 8))
@quick
def test_no_tie_free_relaxed_ranking_exceeds_its_ceiling(seed, items, bits):
    rng = np.random.default_rng(seed)
    query, database = (np.tanh(rng.normal(size=(count, bits))).astype(np.float32) for count in (5, items))
    soft = query @ database.T
    assume(all(len(np.unique(row)) == items for row in soft))
    queries, items = (
        CodedItems.binarize({"image": side, "text": side}, np.ones((len(side), 1))) for side in (query, database)
    )
    found = quantization(queries, items, "i2t", bits)
    for q in range(5):
        alone = quantization(queries.take([q]), items, "i2t", bits)
        assert alone.tau[0] <= alone.ceiling + 1e-12
    assert found.gap >= -1e-12


# Comparison and use of the bits


@given(arrays(np.float64, st.integers(1, 30), elements=st.floats(-1, 1, allow_subnormal=False)))
@quick
def test_shares_sum_to_one_p_is_a_probability_and_the_interval_contains_the_mean(values):
    found = compare_queries(values, np.zeros(len(values)), resamples=200)
    assert math.isclose(found.improved + found.tied + found.degraded, 1)
    assert 0 < found.p <= 1
    assert found.low - 1e-12 <= found.mean <= found.high + 1e-12
    assert values.min() - 1e-12 <= found.low <= found.high <= values.max() + 1e-12


@given(rankings())
@quick
def test_flipped_bits_have_the_same_statistics(ranking):
    bits = ranking[1]
    lengths = range(1, bits.shape[1] + 1)
    one, other = (code_health(Codes.from_bits(values), lengths) for values in (bits, 1 - bits))
    np.testing.assert_allclose(other.balance, 1 - one.balance)
    np.testing.assert_allclose(other.entropy, one.entropy, atol=1e-12)
    np.testing.assert_allclose(other.correlation, one.correlation, atol=1e-9)
    assert other.distinct == one.distinct
    assert ((one.entropy >= 0) & (one.entropy <= 1)).all()
    assert (np.abs(one.correlation) <= 1 + 1e-9).all()

"""Properties of the metrics of any ranking."""

import itertools

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from multibit.codes import Codes
from multibit.evaluation.floors import popularity_floor, random_floor
from multibit.evaluation.metrics import (
    average_precision,
    count_rankings,
    mean_average_precision,
    precision_at,
    precision_recall,
)

quick = settings(max_examples=50, deadline=None)
cuts = st.one_of(st.none(), st.integers(1, 15))


@st.composite
def rankings(draw, most_items=12):
    """Bits and labels of some queries and of a database; short codes, so most distances are tied."""
    queries, items = draw(st.integers(1, 4)), draw(st.integers(1, most_items))
    length, labels = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    shapes = (queries, length), (items, length), (queries, labels), (items, labels)
    return tuple(draw(arrays(np.uint8, shape, elements=st.integers(0, 1))) for shape in shapes)


def packed(ranking):
    queries, database, query_labels, database_labels = ranking
    return Codes.from_bits(queries), Codes.from_bits(database), query_labels, database_labels


def pairs_of(ranking):
    """Distances and relevance (Q, N), by definition."""
    queries, database, query_labels, database_labels = ranking
    distances = (queries[:, None] != database[None]).sum(axis=2)
    return distances, (query_labels[:, None] & database_labels[None]).any(axis=2)


def ap_of_order(order, relevant, at):
    hits = relevant[order]
    precision = np.cumsum(hits) / np.arange(1, len(hits) + 1)
    possible = min(hits.sum(), len(hits) if at is None else at)
    return (precision * hits)[:at].sum() / possible if possible else np.nan


@given(rankings(), cuts)
@quick
def test_stable_is_the_ap_of_the_stable_order(ranking, at):
    expected = [ap_of_order(np.argsort(d, kind="stable"), r, at) for d, r in zip(*pairs_of(ranking), strict=True)]
    np.testing.assert_allclose(average_precision(*packed(ranking), at=at), expected, rtol=1e-12)


@given(rankings(most_items=5), cuts)
@quick
def test_tie_averaged_is_the_mean_of_stable_over_all_orders_of_the_database(ranking, at):
    distances, relevant = pairs_of(ranking)
    orders = [list(order) for order in itertools.permutations(range(distances.shape[1]))]
    expected = [
        np.mean([ap_of_order(np.take(order, np.argsort(d[order], kind="stable")), r, at) for order in orders])
        for d, r in zip(distances, relevant, strict=True)
    ]
    got = average_precision(*packed(ranking), ties="average", at=at)
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-15)


@given(rankings(), cuts)
@quick
def test_both_rules_lie_between_the_worst_and_the_best_tie_order(ranking, at):
    rules = [average_precision(*packed(ranking), ties=ties, at=at) for ties in ("stable", "average")]
    for i, (distances, relevant) in enumerate(zip(*pairs_of(ranking), strict=True)):
        best = ap_of_order(np.lexsort([~relevant, distances]), relevant, at)
        worst = ap_of_order(np.lexsort([relevant, distances]), relevant, at)
        for values in rules:
            assert np.isnan(best) == np.isnan(values[i])
            assert np.isnan(best) or worst - 1e-12 <= values[i] <= best + 1e-12


@given(rankings(), cuts, st.sampled_from(["stable", "average"]), st.randoms(use_true_random=False))
@quick
def test_the_order_of_label_columns_does_not_matter(ranking, at, ties, random):
    a, b, query_labels, database_labels = packed(ranking)
    columns = random.sample(range(query_labels.shape[1]), query_labels.shape[1])
    moved = a, b, query_labels[:, columns], database_labels[:, columns]
    np.testing.assert_array_equal(
        average_precision(*moved, ties=ties, at=at), average_precision(*packed(ranking), ties=ties, at=at)
    )


@given(rankings(), cuts, st.sampled_from(["stable", "average"]), st.randoms(use_true_random=False))
@quick
def test_moving_the_queries_moves_their_values(ranking, at, ties, random):
    a, b, query_labels, database_labels = packed(ranking)
    rows = random.sample(range(len(a)), len(a))
    moved = a.take(rows), b, query_labels[rows], database_labels
    np.testing.assert_array_equal(
        average_precision(*moved, ties=ties, at=at), average_precision(*packed(ranking), ties=ties, at=at)[rows]
    )


@given(rankings(), cuts, st.randoms(use_true_random=False))
@quick
def test_moving_the_database_does_not_change_the_tie_averaged_value(ranking, at, random):
    a, b, query_labels, database_labels = packed(ranking)
    rows = random.sample(range(len(b)), len(b))
    moved = a, b.take(rows), query_labels, database_labels[rows]
    np.testing.assert_allclose(
        average_precision(*moved, ties="average", at=at), average_precision(*packed(ranking), ties="average", at=at)
    )


@given(rankings(), st.data())
@quick
def test_flipping_the_same_bits_everywhere_changes_no_metric(ranking, data):
    queries, database, *labels = ranking
    mask = data.draw(arrays(np.uint8, queries.shape[1], elements=st.integers(0, 1)))
    flipped = packed((queries ^ mask, database ^ mask, *labels))
    np.testing.assert_array_equal(average_precision(*flipped), average_precision(*packed(ranking)))


@given(rankings(), st.data())
@quick
def test_a_prefix_is_measured_as_the_code_of_that_length(ranking, data):
    queries, database, *labels = ranking
    bits = data.draw(st.integers(1, queries.shape[1]))
    short = packed((queries[:, :bits], database[:, :bits], *labels))
    np.testing.assert_array_equal(average_precision(*packed(ranking), bits), average_precision(*short))


@given(rankings(), st.integers(1, 15))
@quick
def test_precision_at_k_is_the_share_among_the_first_k(ranking, k):
    expected = [
        r[np.argsort(d, kind="stable")[:k]].sum() / k if r.any() else np.nan
        for d, r in zip(*pairs_of(ranking), strict=True)
    ]
    np.testing.assert_allclose(precision_at(*packed(ranking), k), expected)


@given(rankings())
@quick
def test_recall_rises_to_one_and_the_last_precision_is_the_share_of_relevant_pairs(ranking):
    _, relevant = pairs_of(ranking)
    assume(relevant.any())
    points = precision_recall(*packed(ranking))
    assert (np.diff(points.recall) >= 0).all()
    assert points.recall[-1] == 1
    np.testing.assert_allclose(points.precision[-1], relevant.mean())


@given(rankings())
@quick
def test_the_mean_is_that_of_the_queries_with_a_relevant_item(ranking):
    _, relevant = pairs_of(ranking)
    assume(relevant.any(axis=1).all())
    np.testing.assert_allclose(mean_average_precision(*packed(ranking)), np.mean(average_precision(*packed(ranking))))


@given(rankings(most_items=5))
@quick
def test_the_random_floor_is_the_mean_over_all_orders(ranking):
    _, relevant = pairs_of(ranking)
    orders = list(itertools.permutations(range(relevant.shape[1])))
    expected = [np.mean([ap_of_order(list(order), row, None) for order in orders]) for row in relevant]
    np.testing.assert_allclose(random_floor(count_rankings(*packed(ranking))), expected)


@given(rankings())
@quick
def test_the_popularity_floor_ranks_the_commonest_labels_first(ranking):
    *_, query_labels, database_labels = ranking
    _, relevant = pairs_of(ranking)
    training = np.vstack([query_labels, database_labels])
    frequency = [sum(column) for column in training.T.tolist()]
    popularity = [sum(f for f, has in zip(frequency, row, strict=True) if has) for row in database_labels]
    order = sorted(range(len(database_labels)), key=lambda row: (-popularity[row], row))
    expected = [ap_of_order(order, row, None) for row in relevant]
    np.testing.assert_allclose(popularity_floor(query_labels, database_labels, training), expected)

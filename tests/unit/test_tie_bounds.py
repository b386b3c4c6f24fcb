"""The best and the worst order of equally distant items, against all orders."""

import itertools
import math

import numpy as np
import pytest

from multibit.codes import Codes
from multibit.codes.items import CodedItems
from multibit.evaluation.metric import MAP, MAP_BEST_TIES, MAP_TIE_AVERAGED, MAP_WORST_TIES
from multibit.evaluation.metrics import average_precision
from multibit.evaluation.protocol import TIES, evaluate

RULES = ("worst", "stable", "average", "best")


def at_distances(distances, length):
    """A query and a database of codes that lie at the given distances from it."""
    bits = np.arange(length) >= np.asarray(distances)[:, None]
    return Codes.from_bits(np.ones((1, length))), Codes.from_bits(bits)


def ap_of_order(relevant, at):
    """AP@at of relevances in rank order; NaN without a relevant item."""
    found, total = 0, 0.0
    for rank, hit in enumerate(relevant[:at], start=1):
        found += bool(hit)
        total += found / rank if hit else 0.0
    possible = min(sum(map(bool, relevant)), len(relevant) if at is None else at)
    return total / possible if possible else math.nan


def tied_data(queries=6, items=70, bits=2, labels=4, seed=0):
    rng = np.random.default_rng(seed)
    a, b = rng.integers(0, 2, size=(queries, bits)), rng.integers(0, 2, size=(items, bits))
    query_labels, database_labels = rng.random((queries, labels)) < 0.4, rng.random((items, labels)) < 0.3
    query_labels[:, 0] = True
    query_labels[-1] = False
    arguments = Codes.from_bits(a), Codes.from_bits(b), query_labels, database_labels
    return arguments, (a[:, None] != b[None]).sum(axis=2), (query_labels[:, None] & database_labels[None]).any(axis=2)


@pytest.mark.parametrize("at", [None, 1, 2, 3, 4, 5])
def test_bounds_are_the_best_and_worst_of_all_orders_of_four_items(at):
    """Four items at 0..2 bits give every pattern of ties; one label per item, so queries give every relevance."""
    relevant = np.array(list(itertools.product([0, 1], repeat=4)))[1:]
    for distances in itertools.product(range(3), repeat=4):
        query, database = at_distances(distances, 2)
        asked = Codes.concatenate([query] * len(relevant))
        orders = [
            list(order) for order in itertools.permutations(range(4)) if (np.diff(np.take(distances, order)) >= 0).all()
        ]
        values = np.array([[ap_of_order(row[order], at) for order in orders] for row in relevant])
        for ties, expected in {"best": values.max(axis=1), "worst": values.min(axis=1)}.items():
            got = average_precision(asked, database, relevant, np.eye(4), ties=ties, at=at)
            np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("bits", [1, 2])
@pytest.mark.parametrize("at", [None, 1, 10, 35, 70, 100])
def test_bounds_put_relevant_items_first_and_last_among_equals(at, bits):
    (a, b, *labels), _, relevant = tied_data()
    distances = (a.to_bits()[:, None, :bits] != b.to_bits()[None, :, :bits]).sum(axis=2)
    for ties, turned in {"best": ~relevant, "worst": relevant}.items():
        expected = [
            ap_of_order(row[np.lexsort([late, distance])], at)
            for row, late, distance in zip(relevant, turned, distances, strict=True)
        ]
        got = average_precision(a, b, *labels, bits, ties, at)
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("at", [None, 3, 30])
def test_the_rules_are_in_order(at):
    arguments, *_ = tied_data()
    worst, stable, average, best = (average_precision(*arguments, ties=ties, at=at)[:-1] for ties in RULES)
    assert ((worst <= stable) & (stable <= best)).all()
    assert ((worst < average) & (average < best)).all()


def test_all_rules_agree_where_nothing_is_tied():
    query, database = at_distances(np.random.default_rng(0).permutation(30), 30)
    labels = [[1]], (np.random.default_rng(1).random((30, 1)) < 0.4)
    values = [average_precision(query, database, *labels, ties=ties)[0] for ties in RULES]
    np.testing.assert_allclose(values, values[0], rtol=1e-12)


@pytest.mark.parametrize(("items", "relevant"), [(5, 2), (1000, 300), (200_000, 70_000)])
def test_bounds_of_equal_codes_by_the_formula(items, relevant):
    """All relevant items at the first ranks: 1. At the last ranks: place m has m relevant among N - R + m."""
    query, database = at_distances(np.zeros(items, int), 1)
    labels = [[1]], np.arange(items)[:, None] % items < relevant
    assert average_precision(query, database, *labels, ties="best") == pytest.approx([1], rel=1e-12)
    worst = math.fsum(m / (items - relevant + m) for m in range(1, relevant + 1)) / relevant
    assert average_precision(query, database, *labels, ties="worst") == pytest.approx([worst], rel=1e-12)


@pytest.mark.parametrize("ties", RULES)
def test_a_query_without_relevant_item_is_undefined_under_every_rule(ties):
    arguments, _, relevant = tied_data()
    np.testing.assert_array_equal(np.isnan(average_precision(*arguments, ties=ties)), ~relevant.any(axis=1))


def test_an_evaluation_has_both_bounds():
    (a, b, query_labels, labels), *_ = tied_data()
    query, database = (
        CodedItems(codes, codes, side.astype(np.uint8)) for codes, side in ((a, query_labels), (b, labels))
    )
    found = evaluate(query, database, (1, 2), training_labels=labels)
    assert found.metrics[:4] == [MAP, MAP_TIE_AVERAGED, MAP_BEST_TIES, MAP_WORST_TIES]
    for metric, ties in TIES.items():
        for direction, bits in itertools.product(("i2t", "t2i"), (1, 2)):
            expected = average_precision(a, b, query_labels, labels, bits, ties)
            np.testing.assert_array_equal(found.values[metric, direction, bits], expected)
    worst, stable, best = (found.mean(metric, "i2t", 2) for metric in (MAP_WORST_TIES, MAP, MAP_BEST_TIES))
    assert worst < stable < best

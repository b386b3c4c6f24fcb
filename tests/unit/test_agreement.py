"""Agreement of rankings against scipy and loops: between code lengths, and between relaxed and binary codes."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import kendalltau

from multibit.codes import CodedItems, Codes
from multibit.errors import ConfigError, DataError
from multibit.evaluation import real_precision
from multibit.evaluation.agreement import (
    cross_length_agreement,
    quantization,
    rank_displacement,
    ranks,
)
from multibit.evaluation.metrics import average_precision
from multibit.evaluation.real_precision import asymmetric_average_precision


def tau_by_scipy(a, b):
    """Kendall's tau-b; 0 where scipy calls it undefined."""
    value = kendalltau(a, b).statistic if len(a) > 1 else math.nan
    return 0.0 if math.isnan(value) else value


def ranks_by_loop(distance):
    order = sorted(range(len(distance)), key=lambda row: (distance[row], row))
    return [order.index(row) for row in range(len(distance))]


def displacement_by_loop(short, long):
    """Mean |change of normalised rank|."""
    before, after = ranks_by_loop(short), ranks_by_loop(long)
    return sum(abs(a - b) for a, b in zip(after, before, strict=True)) / len(before) / max(len(before) - 1, 1)


def bits_of(queries, items, bits, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 2, size=(queries, bits)), rng.integers(0, 2, size=(items, bits))


def hamming(query, database, bits):
    return (query[:, None, :bits] != database[None, :, :bits]).sum(axis=2)


def relaxed(queries, items, bits, seed=0):
    """Tie-free values in (-1, 1)."""
    rng = np.random.default_rng(seed)
    return [np.tanh(2 * rng.normal(size=(count, bits))).astype(np.float32) for count in (queries, items)]


def items_of(image, text):
    """Items with these relaxed values, all of one label."""
    return CodedItems.binarize({"image": image, "text": text}, np.ones((len(image), 1)))


def quantization_of(query, database, bits, direction="i2t", compared=500):
    """The quantisation of relaxed queries and database items, in a direction; the other modalities are 0."""
    sides = [(query, np.zeros_like(query)), (np.zeros_like(database), database)]
    turned = [side if direction == "i2t" else side[::-1] for side in sides]
    return quantization(*(items_of(*side) for side in turned), direction, bits, compared)


# Ranks


@pytest.mark.parametrize("levels", [1, 3, 50])
@pytest.mark.parametrize("items", [1, 2, 30])
def test_ranks_start_at_zero_and_break_ties_by_row(items, levels):
    distance = np.random.default_rng(items).integers(levels, size=items)
    assert ranks(distance).tolist() == ranks_by_loop(distance)


@pytest.mark.parametrize(
    ("short", "long", "expected"),
    [
        ([0, 1, 2, 3], [0, 2, 4, 6], [0, 0, 0, 0]),
        ([0, 1, 2], [2, 1, 0], [1, 0, -1]),  # the first falls to the last place
        ([5, 5, 5], [1, 1, 0], [1 / 2, 1 / 2, -1]),  # equals are ordered by row
        ([7], [3], [0]),
    ],
)
def test_rank_displacement_by_hand(short, long, expected):
    np.testing.assert_allclose(rank_displacement(short, long), expected)


def test_rank_displacements_cancel_out():
    a, b = np.random.default_rng(0).integers(0, 9, size=(2, 40))
    moved = rank_displacement(a, b)
    assert moved.sum() == pytest.approx(0, abs=1e-12)
    assert np.abs(moved).mean() == pytest.approx(displacement_by_loop(a, b))


# Between lengths


@pytest.mark.parametrize(("queries", "items"), [(1, 1), (1, 2), (3, 50), (70, 20)])
def test_agreement_of_all_pairs_of_lengths_equals_scipy_and_loops(queries, items):
    """70 queries are more than two blocks."""
    query, database = bits_of(queries, items, 40)
    found = cross_length_agreement(Codes.from_bits(query), Codes.from_bits(database), (4, 17, 40))
    assert [pair.lengths for pair in found] == [(4, 17), (4, 40), (17, 40)]
    for pair in found:
        short, long = (hamming(query, database, bits) for bits in pair.lengths)
        taus = [tau_by_scipy(*each) for each in zip(short, long, strict=True)]
        moved = [displacement_by_loop(*each) for each in zip(short.tolist(), long.tolist(), strict=True)]
        np.testing.assert_allclose(pair.tau, taus, atol=1e-12)
        np.testing.assert_allclose(pair.displacement, moved, rtol=1e-12)


def test_a_code_that_repeats_itself_agrees_with_its_prefix():
    """All distances double, so nothing moves."""
    query, database = bits_of(5, 60, 6)
    doubled = (Codes.from_bits(np.concatenate([side, side], axis=1)) for side in (query, database))
    (pair,) = cross_length_agreement(*doubled, (6, 12))
    np.testing.assert_array_equal(pair.tau, 1)
    np.testing.assert_array_equal(pair.displacement, 0)


def test_a_code_whose_last_bits_reverse_the_order_disagrees():
    """The first bit says near, the next two say the opposite."""
    query = Codes.from_bits([[0, 0, 0]])
    database = Codes.from_bits([[0, 1, 1], [1, 0, 0]])
    (pair,) = cross_length_agreement(query, database, (1, 3))
    assert pair.tau.tolist() == [-1]
    assert pair.displacement.tolist() == [1]


def test_equal_codes_have_zero_agreement_and_displacement():
    same = Codes.from_bits(np.zeros((9, 8)))
    (pair,) = cross_length_agreement(same.take([0]), same, (4, 8))
    assert pair.tau.tolist() == [0]
    assert pair.displacement.tolist() == [0]


def test_lengths_in_any_order_and_number_are_the_same_pairs():
    sides = [Codes.from_bits(side) for side in bits_of(3, 20, 12)]
    expected = cross_length_agreement(*sides, (4, 8, 12))
    found = cross_length_agreement(*sides, [12, 4, 8, 4])
    assert [pair.lengths for pair in found] == [pair.lengths for pair in expected]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one.tau, other.tau)


@pytest.mark.parametrize(
    ("lengths", "items", "numbers"),
    [
        ((8,), 5, ("(8,)", "5 items")),
        ((8, 8), 5, ("(8,)", "5 items")),
        ((4, 8), 0, ("(4, 8)", "0 items")),
        ((4, 9), 5, ("9", "1 to 8")),
    ],
)
def test_agreement_needs_two_lengths_and_items(lengths, items, numbers):
    codes = Codes.from_bits(np.zeros((items, 8)))
    with pytest.raises(DataError) as caught:
        cross_length_agreement(Codes.from_bits(np.zeros((2, 8))), codes, lengths)
    assert all(number in caught.value.problem for number in numbers)


# Between relaxed and binary


@pytest.mark.parametrize("direction", ["i2t", "t2i"])
@pytest.mark.parametrize("bits", [1, 5, 16, 20])
@pytest.mark.parametrize(("queries", "items"), [(1, 2), (40, 60)])
def test_quantization_equals_scipy_and_loops(queries, items, bits, direction):
    """40 queries are more than one block."""
    query, database = relaxed(queries, items, 20)
    found = quantization_of(query, database, bits, direction)
    hard = hamming(query >= 0, database >= 0, bits)
    soft = (bits - query[:, :bits] @ database[:, :bits].T) / 2
    taus = [tau_by_scipy(*each) for each in zip(soft, hard, strict=True)]
    tied = [sum(a == b for a, b in itertools.combinations(row, 2)) / math.comb(items, 2) for row in hard.tolist()]
    off = [abs(abs(value) - 1) for side in (query, database) for value in side[:, :bits].ravel().tolist()]
    assert found.bits == bits
    np.testing.assert_allclose(found.tau, taus, atol=1e-12)
    assert found.ties == pytest.approx(np.mean(tied))
    assert found.ceiling == pytest.approx(math.sqrt(1 - np.mean(tied)))
    assert found.gap == pytest.approx(found.ceiling - np.mean(taus))
    assert found.deviation == pytest.approx(np.mean(off), rel=1e-6)


@pytest.mark.parametrize("levels", [(-0.5, 0.5), (-0.75, -0.25, 0.0, 0.5)])
def test_ties_of_the_relaxed_ranking_are_counted(levels):
    """Values that float32 adds exactly, so that scipy sees the same ties."""
    rng = np.random.default_rng(2)
    query, database = (rng.choice(levels, size=(count, 4)) for count in (10, 50))
    soft, hard = (4 - query @ database.T) / 2, hamming(query >= 0, database >= 0, 4)
    expected = [tau_by_scipy(*each) for each in zip(soft, hard, strict=True)]
    np.testing.assert_allclose(quantization_of(query, database, 4).tau, expected, atol=1e-12)


def test_binary_codes_have_no_quantisation_loss():
    signs = np.where(np.random.default_rng(0).random((30, 8)) < 0.5, -1.0, 1.0)
    found = quantization_of(signs[:5], signs, 8)
    assert found.deviation == 0
    np.testing.assert_allclose(found.tau, 1)


def test_quantization_by_hand():
    """Soft distances 0.05, 0.45, 0.9 against 0, 0, 1: of three pairs two agree and one is tied."""
    found = quantization_of(np.array([[1.0]]), np.array([[0.9], [0.1], [-0.8]]), 1)
    assert found.tau == pytest.approx([2 / math.sqrt(6)])
    assert found.ties == pytest.approx(1 / 3)
    assert found.deviation == pytest.approx((0 + 0.1 + 0.9 + 0.2) / 4)
    assert found.ceiling == pytest.approx(found.tau[0])  # the ties cost all there is to lose
    assert found.gap == pytest.approx(0, abs=1e-7)


def test_all_equal_distances_leave_a_ceiling_of_zero():
    found = quantization_of(np.array([[0.5]]), np.array([[0.1], [0.2], [0.3]]), 1)
    assert (found.ties, found.ceiling, found.tau.tolist()) == (1, 0, [0])


def test_only_the_first_queries_are_compared_and_all_are_in_the_deviation():
    query, database = relaxed(9, 30, 8)
    some, every = quantization_of(query, database, 8, compared=4), quantization_of(query, database, 8)
    np.testing.assert_array_equal(some.tau, every.tau[:4])
    assert some.deviation == every.deviation
    assert some.ties == quantization_of(query[:4], database, 8).ties != every.ties


def test_items_without_relaxed_values_or_too_few_are_refused():
    queries, items = items_of(*relaxed(2, 2, 4)), items_of(*relaxed(5, 5, 4))
    binary = CodedItems(items.image, items.text, items.labels)
    for query, database in [
        (queries, binary),
        (CodedItems(queries.image, queries.text, queries.labels), items),
        (queries.take([]), items),
        (queries, items.take([0])),
    ]:
        with pytest.raises(DataError) as caught:
            quantization(query, database, "i2t", 4)
        assert caught.value.field == "relaxed"
        assert f"{len(query)} items" in caught.value.problem and f"{len(database)} items" in caught.value.problem


def test_a_length_past_the_relaxed_codes_is_refused():
    with pytest.raises(DataError) as caught:
        quantization_of(*relaxed(2, 5, 4), 5)
    assert "5" in caught.value.problem and "4" in caught.value.problem


def test_no_query_to_compare_is_refused():
    with pytest.raises(ConfigError) as caught:
        quantization_of(*relaxed(2, 5, 4), 4, compared=0)
    assert caught.value.option == "compared" and "got 0" in caught.value.problem


# Asymmetric ranking


def multi_hot(rows, seed, share=0.3):
    return (np.random.default_rng(seed).random((rows, 70)) < share / 10).astype(
        np.uint8
    )  # more than one word of labels


def asymmetric_by_loop(query, signs, query_labels, labels, bits):
    found = []
    for values, wanted in zip(query, query_labels, strict=True):
        whole = [round(float(value) * 2**20) for value in values[:bits]]
        score = [sum(v * int(s) for v, s in zip(whole, row[:bits], strict=True)) for row in signs]
        ranked = sorted(range(len(signs)), key=lambda row: (-score[row], row))
        places = [place for place, row in enumerate(ranked, start=1) if (wanted & labels[row]).any()]
        hits = [number / place for number, place in enumerate(places, start=1)]
        found.append(sum(hits) / len(hits) if hits else math.nan)
    return found


@pytest.mark.parametrize("bits", [1, 3, 16])
@pytest.mark.parametrize("seed", range(3))
def test_asymmetric_precision_equals_a_sort_of_each_query(bits, seed):
    """Many items share their code, and some queries have no relevant item."""
    query, signs = relaxed(40, 60, 16, seed)[0], np.sign(relaxed(40, 60, 16, seed)[1])
    signs[::3] = signs[0]
    labels = multi_hot(40, seed), multi_hot(60, seed + 9)
    found = asymmetric_average_precision(query, Codes.binarize(signs), *labels, bits)
    expected = asymmetric_by_loop(query, signs, *labels, bits)
    np.testing.assert_allclose(found, expected)
    assert 0 < np.isnan(found).sum() < 40


def test_asymmetric_precision_of_signs_is_that_of_the_hamming_ranking():
    rng = np.random.default_rng(0)
    query, database = (np.where(rng.random((count, 12)) < 0.5, 1.0, -1.0) for count in (30, 80))
    labels = multi_hot(30, 1), multi_hot(80, 2)
    found = asymmetric_average_precision(query, Codes.binarize(database), *labels)
    expected = average_precision(Codes.binarize(query), Codes.binarize(database), *labels)
    np.testing.assert_allclose(found, expected)


def test_blocks_change_nothing(monkeypatch):
    query, signs = relaxed(9, 50, 8)
    arguments = query, Codes.binarize(signs), multi_hot(9, 1), multi_hot(50, 2)
    whole = asymmetric_average_precision(*arguments)
    for name, size in {"BLOCK": 2, "SCORES": 100, "SIGNS": 7}.items():
        monkeypatch.setattr(real_precision, name, size)
    np.testing.assert_array_equal(asymmetric_average_precision(*arguments), whole)


@pytest.mark.parametrize(
    ("query", "query_labels", "field", "numbers"),
    [
        (np.ones((2, 3)), np.ones((2, 4)), "relaxed queries", ("(Q, 8 or more)", "(2, 3)")),
        (np.ones(8), np.ones((1, 4)), "relaxed queries", ("(Q, 8 or more)", "(8,)")),
        (np.full((2, 8), 1.5), np.ones((2, 4)), "relaxed queries", ("[-1, 1]", "1.5")),
        (np.full((2, 8), np.nan), np.ones((2, 4)), "relaxed queries", ("[-1, 1]", "nan")),
        (np.ones((2, 8)), np.ones((3, 4)), "query labels", ("2 rows", "(3, 4)")),
        (np.ones((2, 8)), np.ones((2, 70)), "labels", ("70", "4")),
        (np.ones((2, 8)), np.ones((2, 5)), "labels", ("5", "4")),
    ],
)
def test_asymmetric_sides_that_do_not_fit_are_refused(query, query_labels, field, numbers):
    database = Codes.binarize(np.ones((5, 8)))
    with pytest.raises(DataError) as caught:
        asymmetric_average_precision(query, database, query_labels, np.ones((5, 4)))
    assert caught.value.field == field
    assert all(number in caught.value.problem for number in numbers)

"""Agreement of rankings against scipy and loops: between code lengths, and between relaxed and binary codes."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import kendalltau

from multibit.codes import Codes
from multibit.errors import ConfigError, DataError
from multibit.evaluation import agreement
from multibit.evaluation.agreement import (
    asymmetric_average_precision,
    cross_length_agreement,
    quantization,
    rank_displacement,
    ranks,
)
from multibit.evaluation.metrics import average_precision


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


# Ranks


@pytest.mark.parametrize("levels", [1, 3, 50])
@pytest.mark.parametrize("items", [1, 2, 30])
def test_ranks_count_from_zero_and_put_equals_in_row_order(items, levels):
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


def test_a_code_whose_end_turns_the_order_round_disagrees():
    """The first bit says near, the next two say the opposite."""
    query = Codes.from_bits([[0, 0, 0]])
    database = Codes.from_bits([[0, 1, 1], [1, 0, 0]])
    (pair,) = cross_length_agreement(query, database, (1, 3))
    assert pair.tau.tolist() == [-1]
    assert pair.displacement.tolist() == [1]


def test_equal_codes_say_nothing():
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
    ("lengths", "items", "sentence"),
    [
        ((8,), 5, r"need two or more lengths and a database, got \(8,\) and 5 items"),
        ((8, 8), 5, r"need two or more lengths and a database, got \(8,\) and 5 items"),
        ((4, 8), 0, r"need two or more lengths and a database, got \(4, 8\) and 0 items"),
        ((4, 9), 5, "asked for a prefix of 9 bits, these codes have 1 to 8"),
    ],
)
def test_agreement_needs_two_lengths_and_items(lengths, items, sentence):
    codes = Codes.from_bits(np.zeros((items, 8)))
    with pytest.raises(DataError, match=sentence):
        cross_length_agreement(Codes.from_bits(np.zeros((2, 8))), codes, lengths)


# Between relaxed and binary


@pytest.mark.parametrize("bits", [1, 5, 16, 20])
@pytest.mark.parametrize(("queries", "items"), [(1, 2), (40, 60)])
def test_what_the_sign_does_equals_scipy_and_loops(queries, items, bits):
    """40 queries are more than one block."""
    query, database = relaxed(queries, items, 20)
    found = quantization(query, database, bits)
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
    np.testing.assert_allclose(quantization(query, database, 4).tau, expected, atol=1e-12)


def test_codes_that_are_binary_already_lose_nothing():
    signs = np.where(np.random.default_rng(0).random((30, 8)) < 0.5, -1.0, 1.0)
    found = quantization(signs[:5], signs, 8)
    assert found.deviation == 0
    np.testing.assert_allclose(found.tau, 1)


def test_quantization_by_hand():
    """Soft distances 0.05, 0.45, 0.9 against 0, 0, 1: of three pairs two agree and one is tied."""
    found = quantization([[1.0]], [[0.9], [0.1], [-0.8]], 1)
    assert found.tau == pytest.approx([2 / math.sqrt(6)])
    assert found.ties == pytest.approx(1 / 3)
    assert found.deviation == pytest.approx((0 + 0.1 + 0.9 + 0.2) / 4)
    assert found.ceiling == pytest.approx(found.tau[0])  # the ties cost all there is to lose
    assert found.gap == pytest.approx(0, abs=1e-7)


def test_all_equal_distances_leave_a_ceiling_of_zero():
    found = quantization([[0.5]], [[0.1], [0.2], [0.3]], 1)
    assert (found.ties, found.ceiling, found.tau.tolist()) == (1, 0, [0])


def test_only_the_first_queries_are_compared_and_all_are_in_the_deviation():
    query, database = relaxed(9, 30, 8)
    some, every = quantization(query, database, 8, compared=4), quantization(query, database, 8)
    np.testing.assert_array_equal(some.tau, every.tau[:4])
    assert some.deviation == every.deviation
    assert some.ties == quantization(query[:4], database, 8).ties != every.ties


@pytest.mark.parametrize(
    ("query", "database", "sentence"),
    [
        (np.ones((2, 4)), np.ones((5, 3)), r"shapes \(2, 4\) and \(5, 3\): need \(Q, B\) and \(N, B\), N >= 2"),
        (np.ones((0, 4)), np.ones((5, 4)), r"shapes \(0, 4\) and \(5, 4\)"),
        (np.ones((2, 4)), np.ones((1, 4)), r"shapes \(2, 4\) and \(1, 4\)"),
        (np.ones(4), np.ones((5, 4)), r"shapes \(4,\) and \(5, 4\)"),
    ],
)
def test_relaxed_codes_that_do_not_fit_are_refused(query, database, sentence):
    with pytest.raises(DataError, match=sentence):
        quantization(query, database, 4)


def test_a_length_past_the_relaxed_codes_is_refused():
    with pytest.raises(DataError, match="asked for a prefix of 5 bits, these codes have 1 to 4"):
        quantization(*relaxed(2, 5, 4), 5)


def test_no_query_to_compare_is_refused():
    with pytest.raises(ConfigError, match="compared: need at least 1 query, got 0"):
        quantization(*relaxed(2, 5, 4), 4, compared=0)


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
    found = asymmetric_average_precision(query, Codes.from_signs(signs), *labels, bits)
    expected = asymmetric_by_loop(query, signs, *labels, bits)
    np.testing.assert_allclose(found, expected)
    assert 0 < np.isnan(found).sum() < 40


def test_asymmetric_precision_of_signs_is_that_of_the_hamming_ranking():
    rng = np.random.default_rng(0)
    query, database = (np.where(rng.random((count, 12)) < 0.5, 1.0, -1.0) for count in (30, 80))
    labels = multi_hot(30, 1), multi_hot(80, 2)
    found = asymmetric_average_precision(query, Codes.from_signs(database), *labels)
    expected = average_precision(Codes.from_signs(query), Codes.from_signs(database), *labels)
    np.testing.assert_allclose(found, expected)


def test_blocks_change_nothing(monkeypatch):
    query, signs = relaxed(9, 50, 8)
    arguments = query, Codes.from_signs(signs), multi_hot(9, 1), multi_hot(50, 2)
    whole = asymmetric_average_precision(*arguments)
    monkeypatch.setattr(agreement, "BLOCK", 2)
    monkeypatch.setattr(agreement, "CHUNK", 7)
    np.testing.assert_array_equal(asymmetric_average_precision(*arguments), whole)


@pytest.mark.parametrize(
    ("query", "query_labels", "sentence"),
    [
        (np.ones((2, 3)), np.ones((2, 4)), r"need \(Q, 8 or more\) values, got shape \(2, 3\)"),
        (np.ones(8), np.ones((1, 4)), r"need \(Q, 8 or more\) values, got shape \(8,\)"),
        (np.full((2, 8), 1.5), np.ones((2, 4)), r"every value must be in \[-1, 1\]"),
        (np.full((2, 8), np.nan), np.ones((2, 4)), r"every value must be in \[-1, 1\]"),
        (np.ones((2, 8)), np.ones((3, 4)), r"need \(2, C\) for the 2 query codes, got shape \(3, 4\)"),
        (np.ones((2, 8)), np.ones((2, 70)), "70 columns for the queries, 4 for the database"),
        (np.ones((2, 8)), np.ones((2, 5)), "5 columns for the queries, 4 for the database"),
    ],
)
def test_asymmetric_sides_that_do_not_fit_are_refused(query, query_labels, sentence):
    database = Codes.from_signs(np.ones((5, 8)))
    with pytest.raises(DataError, match=sentence):
        asymmetric_average_precision(query, database, query_labels, np.ones((5, 4)))

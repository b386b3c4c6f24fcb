"""Statistics of the bits against numpy and against sets of codes."""

import math

import numpy as np
import pytest

from multibit.codes import Codes
from multibit.errors import DataError
from multibit.evaluation.health import code_health, code_warnings


def some_bits(items, bits, seed=0):
    """Bits of which the first is dead, the second unbalanced, and the last repeats the one before, inverted."""
    values = np.random.default_rng(seed).integers(0, 2, size=(items, bits))
    values[:, 0] = 1
    values[:, 1] &= values[:, 2]
    values[:, -1] = 1 - values[:, -2]
    return values


@pytest.mark.parametrize(("items", "bits"), [(5, 5), (50, 8), (300, 40)])
def test_correlation_of_live_bits_equals_numpy(items, bits):
    values = some_bits(items, bits)
    live = np.flatnonzero(values.any(axis=0) & ~values.all(axis=0))
    found = code_health(Codes.from_bits(values), (bits,)).correlation
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(found[np.ix_(live, live)], np.corrcoef(values[:, live].T), atol=1e-9)
    assert found[-1, -2] == pytest.approx(-1)


def test_a_dead_bit_correlates_with_nothing():
    found = code_health(Codes.from_bits(some_bits(40, 6)), (6,)).correlation
    assert not found[0].any() and not found[:, 0].any()


def test_balance_and_entropy_equal_the_loop():
    values = some_bits(60, 10)
    health = code_health(Codes.from_bits(values), (10,))
    for bit, column in enumerate(values.T.tolist()):
        share = sum(column) / len(column)
        assert health.balance[bit] == pytest.approx(share)
        terms = [p * math.log2(p) for p in (share, 1 - share) if p > 0]
        assert health.entropy[bit] == pytest.approx(-sum(terms), abs=1e-12)


@pytest.mark.parametrize(
    ("column", "balance", "entropy"),
    [([0, 1], 0.5, 1), ([1, 1], 1, 0), ([0, 0], 0, 0), ([1, 0, 0, 0], 0.25, 2 - 0.75 * math.log2(3))],
)
def test_balance_and_entropy_by_hand(column, balance, entropy):
    health = code_health(Codes.from_bits(np.array(column)[:, None]), (1,))
    assert health.balance == pytest.approx([balance])
    assert health.entropy == pytest.approx([entropy])


def test_dead_bits_are_those_that_never_change():
    health = code_health(Codes.from_bits([[1, 0, 0, 1], [1, 0, 1, 0], [1, 0, 1, 1]]), (4,))
    assert health.dead.tolist() == [0, 1]


def test_all_bits_of_a_single_code_are_dead():
    health = code_health(Codes.from_bits([[1, 0, 1]]), (2, 3))
    assert health.dead.tolist() == [0, 1, 2]
    assert health.distinct == {2: 1, 3: 1}
    assert not health.correlation.any()


@pytest.mark.parametrize("items", [1, 7, 400])
def test_distinct_codes_are_counted_at_every_length(items):
    values = some_bits(items, 20)
    lengths = (1, 4, 8, 9, 16, 17, 20)
    expected = {length: len({tuple(row) for row in values[:, :length].tolist()}) for length in lengths}
    assert code_health(Codes.from_bits(values), lengths).distinct == expected


@pytest.mark.parametrize(("start", "stop"), [(0, 8), (1, 4), (5, 8)])
def test_mean_correlation_is_over_pairs_of_different_bits(start, stop):
    health = code_health(Codes.from_bits(some_bits(50, 8)), (8,))
    pairs = [abs(health.correlation[i, j]) for i in range(start, stop) for j in range(start, stop) if i != j]
    assert health.mean_correlation(start, stop) == pytest.approx(np.mean(pairs))


@pytest.mark.parametrize(("start", "stop"), [(3, 4), (3, 3)])
def test_fewer_than_two_bits_have_no_correlation(start, stop):
    assert code_health(Codes.from_bits(some_bits(50, 8)), (8,)).mean_correlation(start, stop) == 0


def test_blocks_are_kept():
    assert code_health(Codes.from_bits(some_bits(5, 8)), (8,), [5, 2, 1]).blocks == (5, 2, 1)


def test_no_codes_are_refused():
    with pytest.raises(DataError) as caught:
        code_health(Codes.from_bits(np.zeros((0, 8))), (8,))
    assert caught.value.field == "codes"


def test_a_length_past_the_codes_is_refused():
    with pytest.raises(DataError) as caught:
        code_health(Codes.from_bits(np.zeros((3, 8))), (8, 9))
    assert "9" in caught.value.problem and "1 to 8" in caught.value.problem


def test_a_length_with_few_different_codes_is_warned_about():
    rng = np.random.default_rng(0)
    codes = Codes.from_bits(rng.integers(0, 2, (200, 16)))
    health = code_health(codes, (2, 16))
    assert code_warnings(health, 200, "image") == []
    few = Codes.from_bits(np.repeat(rng.integers(0, 2, (7, 16)), 30, axis=0))
    (sentence,) = [each for each in code_warnings(code_health(few, (2, 16)), 210, "text") if "16 bits" in each]
    assert "7" in sentence and "52" in sentence and "text" in sentence  # a quarter of 210 items; 2^8 are more


def test_constant_bits_are_warned_about():
    bits = np.random.default_rng(1).integers(0, 2, (500, 20))
    assert code_warnings(code_health(Codes.from_bits(bits), (20,)), 500, "image") == []
    bits[:, [2, 5, 7]] = 0
    (sentence,) = code_warnings(code_health(Codes.from_bits(bits), (20,)), 500, "image")
    assert "3 of 20" in sentence and "[2, 5, 7]" in sentence

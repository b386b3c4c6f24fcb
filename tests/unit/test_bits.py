"""Bit budgets: the largest-remainder rule with a floor of one bit, in exact fractions."""

import itertools
from fractions import Fraction
from math import floor

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from multibit.errors import ConfigError
from multibit.hashing import allocate_bits

weights = st.lists(st.integers(1, 10**6), min_size=1, max_size=12)


def shares_in_fractions(rho, total):
    ideal = [Fraction(total * weight, sum(rho)) for weight in rho]
    bits = [max(1, floor(share)) for share in ideal]
    kept = sorted((i for i, share in enumerate(ideal) if share >= 1), key=lambda i: floor(ideal[i]) - ideal[i])
    for i in kept[: max(0, total - sum(bits))]:
        bits[i] += 1
    while sum(bits) > total:
        bits[bits.index(max(bits))] -= 1
    return tuple(bits)


@pytest.mark.parametrize(
    ("rho", "total", "expected"),
    [
        ([1], 128, (128,)),
        ([1, 1, 1, 1], 128, (32, 32, 32, 32)),
        ([1, 1, 1], 128, (43, 43, 42)),  # equal fractions: the local scales first
        ([5.4, 3.7, 0.9], 10, (5, 4, 1)),  # a scale raised to one bit gets no remainder, however large its fraction
        ([1e6, 1, 1, 1], 10, (7, 1, 1, 1)),  # the cost of raising comes from the largest block
        ([1e6, 1, 1, 1], 4, (1, 1, 1, 1)),
        ([3, 1], 2, (1, 1)),
    ],
)
def test_bits_by_hand(rho, total, expected):
    assert allocate_bits(rho, total) == expected


@given(weights, st.integers(1, 512))
@settings(max_examples=50, deadline=None)
def test_bits_follow_the_rule_in_exact_fractions(rho, total):
    assume(total >= len(rho))
    fractions = sorted(Fraction(total * weight, sum(rho)) % 1 for weight in rho)
    gaps = [right - left for left, right in itertools.pairwise(fractions)]
    assume(all(gap > 1e-9 for gap in gaps))  # a tie between fractions is decided by rounding
    assume(all(1e-9 < fraction < 1 - 1e-9 for fraction in fractions))
    assert allocate_bits(rho, total) == shares_in_fractions(rho, total)


@given(weights, st.integers(0, 500))
@settings(max_examples=50, deadline=None)
def test_every_scale_gets_a_bit_and_all_bits_are_used(rho, more):
    bits = allocate_bits(rho, len(rho) + more)
    assert sum(bits) == len(rho) + more
    assert min(bits) >= 1


@given(weights, st.integers(0, 500), st.sampled_from([0.125, 8.0, 1024.0]))
@settings(max_examples=50, deadline=None)
def test_only_the_ratio_of_the_weights_counts(rho, more, factor):
    total = len(rho) + more
    assert allocate_bits([weight * factor for weight in rho], total) == allocate_bits(rho, total)


def test_bits_are_plain_integers():
    assert all(type(count) is int for count in allocate_bits(np.array([2.0, 1.0]), 7))


@pytest.mark.parametrize("rho", [[], [[1, 2]], [1, 0], [1, -1], [1, np.nan], [1, np.inf]])
def test_weights_must_be_positive_numbers(rho):
    with pytest.raises(ConfigError) as caught:
        allocate_bits(rho, 128)
    assert caught.value.option == "rho"


def test_fewer_bits_than_scales_is_an_error():
    with pytest.raises(ConfigError) as caught:
        allocate_bits([1, 1, 1, 1], 3)
    assert caught.value.option == "total"
    assert all(number in caught.value.problem for number in ("3 bits", "4 scales"))

"""The paired test and the bootstrap against exact enumeration, known distributions and hand-made cases."""

import itertools

import numpy as np
import pytest

from multibit.errors import ConfigError, DataError
from multibit.evaluation.comparison import compare_queries


def exact_p(values):
    """Two-sided p value over all assignments of signs."""
    signs = np.array(list(itertools.product([-1, 1], repeat=len(values))))
    means = np.abs(signs @ values) / len(values)
    return (means >= abs(values.mean()) - 1e-12).mean()


def test_shares_and_mean_by_hand():
    difference = compare_queries([0.5, 0.5, 0.9, 0.1, 1.0], [0.4, 0.5, 0.5, 0.2, 0.5], resamples=50)
    np.testing.assert_allclose(difference.values, [0.1, 0, 0.4, -0.1, 0.5])
    assert difference.mean == pytest.approx(0.18)
    assert (difference.improved, difference.tied, difference.degraded) == (0.6, 0.2, 0.2)


def test_queries_that_one_run_leaves_undefined_are_left_out():
    nan = np.nan
    difference = compare_queries([0.5, nan, 0.3, nan, 0.9], [0.1, 0.2, nan, nan, 0.8], resamples=50)
    np.testing.assert_allclose(difference.values, [0.4, 0.1])


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("shift", [0.0, 0.5, 1.0])
def test_p_is_near_the_exact_p_of_all_sign_assignments(seed, shift):
    values = np.random.default_rng(seed).normal(shift, 1, size=10).round(1)
    got = compare_queries(values, np.zeros(10), resamples=4000).p
    assert got == pytest.approx(exact_p(values), abs=0.035)


def test_p_is_uniform_where_the_runs_are_equally_good():
    """400 comparisons of runs that differ by noise alone."""
    rng = np.random.default_rng(0)
    found = np.array([compare_queries(*rng.normal(size=(2, 30)), resamples=200).p for _ in range(400)])
    assert found.mean() == pytest.approx(0.5, abs=0.06)
    for level in (0.05, 0.25, 0.5, 0.75):
        assert (found <= level).mean() == pytest.approx(level, abs=0.08)


def test_p_is_the_smallest_possible_for_a_clear_difference():
    rng = np.random.default_rng(0)
    a = rng.random(200)
    assert compare_queries(a + 0.3, a + rng.normal(0, 0.05, 200), resamples=999).p == 1 / 1000


@pytest.mark.parametrize("values", [[0.3], [0.0, 0.0, 0.0]])
def test_p_is_one_where_no_sign_could_matter(values):
    assert compare_queries(values, np.zeros(len(values)), resamples=100).p == 1


@pytest.mark.parametrize("queries", [1, 2, 30, 500])
@pytest.mark.parametrize("seed", range(3))
def test_the_interval_contains_the_mean(queries, seed):
    a, b = np.random.default_rng(seed).random((2, queries))
    difference = compare_queries(a, b, resamples=500)
    assert difference.low - 1e-12 <= difference.mean <= difference.high + 1e-12


def test_the_interval_is_as_wide_as_the_normal_one_on_many_queries():
    a, b = np.random.default_rng(1).normal(size=(2, 1000))
    difference = compare_queries(a, b, resamples=4000)
    expected = 2 * 1.96 * difference.values.std() / 1000**0.5
    assert difference.high - difference.low == pytest.approx(expected, rel=0.08)
    assert (difference.high + difference.low) / 2 == pytest.approx(difference.mean, abs=0.05 * expected)


def test_equal_runs_have_an_interval_of_no_width():
    difference = compare_queries([0.1, 0.9], [0.1, 0.9], resamples=100)
    assert (difference.low, difference.mean, difference.high, difference.tied) == (0, 0, 0, 1)


def test_swapping_the_runs_negates_the_interval():
    a, b = np.random.default_rng(2).random((2, 40))
    one, other = compare_queries(a, b, resamples=300), compare_queries(b, a, resamples=300)
    assert one.p == other.p
    assert (one.low, one.high) == pytest.approx((-other.high, -other.low))
    assert (one.improved, one.degraded) == (other.degraded, other.improved)


def test_the_seed_determines_the_result():
    a, b = np.random.default_rng(3).random((2, 40))
    first, again = (compare_queries(a, b, resamples=300) for _ in range(2))
    assert (first.p, first.low, first.high) == (again.p, again.low, again.high)
    assert compare_queries(a, b, resamples=300, seed=1).low != first.low


@pytest.mark.parametrize("resamples", [1, 249, 250, 251])
def test_p_counts_the_data_as_one_of_the_resamples(resamples):
    """Also where the last block of 250 is short; a value left out of a block would be as extreme, or far off."""
    a = np.random.default_rng(4).random(20)
    difference = compare_queries(a + 5, a + np.random.default_rng(5).random(20), resamples=resamples)
    assert difference.p == 1 / (resamples + 1)
    assert 4 < difference.low <= difference.high < 6


@pytest.mark.parametrize(("a", "b"), [([1, 2], [1, 2, 3]), ([[1, 2]], [[1, 2]]), (1, 1)])
def test_runs_of_other_queries_are_refused(a, b):
    with pytest.raises(DataError) as caught:
        compare_queries(a, b)
    assert caught.value.field == "values" and str(np.shape(a)) in caught.value.problem


@pytest.mark.parametrize(("a", "b"), [([], []), ([np.nan, 1.0], [1.0, np.nan])])
def test_runs_without_a_query_in_common_are_refused(a, b):
    with pytest.raises(DataError) as caught:
        compare_queries(a, b)
    assert caught.value.field == "values" and f"{len(a)} quer" in caught.value.problem


def test_no_resample_is_refused():
    with pytest.raises(ConfigError) as caught:
        compare_queries([0.5], [0.4], resamples=0)
    assert caught.value.option == "resamples" and "got 0" in caught.value.problem

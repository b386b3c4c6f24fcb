"""Properties of recall and rank of the own counterpart."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from multibit.codes import Codes
from multibit.evaluation.pair_recall import count_own

quick = settings(max_examples=50, deadline=None)


@st.composite
def searches(draw):
    """Bits and item numbers of some queries and candidates; short codes, so most distances are tied."""
    queries, items, length = draw(st.integers(1, 4)), draw(st.integers(1, 15)), draw(st.integers(1, 4))
    bits = (draw(arrays(np.uint8, (count, length), elements=st.integers(0, 1))) for count in (queries, items))
    numbers = (draw(arrays(np.int64, count, elements=st.integers(0, 3))) for count in (queries, items))
    return (*map(Codes.from_bits, bits), None, *numbers)


@quick
@given(searches())
def test_recall_grows_with_the_ranks_to_certainty(search):
    counts, items = count_own(*search), len(search[1])
    recall = np.stack([counts.recall(k) for k in range(1, items + 2)])
    defined = np.isin(search[3], search[4])
    assert (np.isnan(recall) == ~defined).all()
    assert (np.diff(recall[:, defined], axis=0) >= -1e-12).all()
    assert (recall[:, defined] >= 0).all()
    np.testing.assert_allclose(recall[items - 1 :, defined], 1)


@quick
@given(searches())
def test_the_expected_rank_is_the_sum_of_the_misses(search):
    """E[rank] = sum over k >= 0 of P(rank > k): both come from the counts by different formulas."""
    counts, items = count_own(*search), len(search[1])
    misses = np.sum([1 - counts.recall(k) for k in range(1, items + 1)], axis=0)
    np.testing.assert_allclose(counts.rank(), 1 + misses)


@quick
@given(searches(), st.randoms(use_true_random=False))
def test_the_order_of_the_candidates_does_not_matter(search, random):
    query, database, bits, asked, searched = search
    order = random.sample(range(len(database)), len(database))
    before, after = count_own(*search), count_own(query, database.take(order), bits, asked, searched[order])
    for k in (1, 3):
        np.testing.assert_array_equal(before.recall(k), after.recall(k))
    np.testing.assert_array_equal(before.rank(), after.rank())


@quick
@given(searches())
def test_another_counterpart_never_hurts(search):
    """With a second text at the place of the first, the query is found at least as often."""
    query, database, bits, asked, searched = search
    again = Codes.concatenate([database, database.take([0])])
    before = count_own(*search).recall(1)
    after = count_own(query, again, bits, asked, np.append(searched, searched[0])).recall(1)
    mine = asked == searched[0]
    assert (after[mine] >= before[mine] - 1e-12).all()

"""Items with several codes each: everything that ranks uses the nearest pair, against numpy over all pairs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from multibit.codes import CodedItems, Codes, hamming_distances
from multibit.codes.distance import distance_histogram, nearest, nearest_relaxed, within
from multibit.codes.kernels import CHUNK
from multibit.codes.layout import Layout
from multibit.errors import ConfigError, DataError, FormatError
from multibit.evaluation.agreement import rank_displacement, ranking_agreement
from multibit.evaluation.cost import ModelSize, measure_cost
from multibit.evaluation.health import bit_use, code_health
from multibit.evaluation.metrics import average_precision, count_rankings, precision_at, precision_recall
from multibit.evaluation.ranking import Ranking, Rankings
from multibit.evaluation.relevance import GradedRelevance, LabelSetRelevance
from multibit.evaluation.resolution import kendall_tau, pair_order, pool_resolution
from multibit.evaluation.strata import no_shared_label
from multibit.files import read_arrays, write_arrays
from multibit.search import Index
from multibit.search.engines import ENGINES
from multibit.search.exchange import export_codes, save_mat

LENGTHS = [1, 7, 16, 17, 40, 64, 130]
VIEWS = [(1, 1), (1, 3), (2, 1), (2, 2), (3, 4), (4, 2)]
every_length = pytest.mark.parametrize("length", LENGTHS)
every_views = pytest.mark.parametrize(("asked", "views"), VIEWS)
LABELS = np.array([[1, 0, 1], [0, 1, 0], [0, 0, 0], [1, 1, 0], [0, 0, 1]])


def random_bits(items, views, length, seed=0):
    return np.random.default_rng(seed).integers(0, 2, (items, views, length), np.uint8)


def packed(bits):
    """Codes of (N, V, B) bits; of one view as they are without views."""
    return Codes.from_bits(bits if bits.shape[1] > 1 else bits[:, 0])


def sides(asked, views, length, queries=5, items=60, seed=0):
    """Bits and codes of some queries and of a database."""
    bits = random_bits(queries, asked, length, seed), random_bits(items, views, length, seed + 1)
    return *bits, *map(packed, bits)


def slow_distances(queries, database):
    """The definition: one pair of items, one pair of codes, one bit at a time."""
    out = np.empty((len(queries), len(database)), int)
    for q, i in np.ndindex(out.shape):
        out[q, i] = min(sum(a != b for a, b in zip(mine, theirs, strict=True))
                        for mine in queries[q].tolist() for theirs in database[i].tolist())  # fmt: skip
    return out


def pair_distances(queries, database):
    """The same, vectorised."""
    return (queries[:, None, :, None] != database[None, :, None]).sum(axis=-1).min(axis=(2, 3))


def slow_nearest(distances, k, allowed=None, most=None):
    """Rows and distances of each query by (distance, row)."""
    for line in distances:
        rows = np.flatnonzero((line <= (line.max() if most is None else most)) & (True if allowed is None else allowed))
        order = rows[np.argsort(line[rows], kind="stable")][:k]
        yield order, line[order]


def assert_found(found, expected):
    for q, (rows, distances) in enumerate(expected):
        assert found.counts[q] == len(rows)
        np.testing.assert_array_equal(found.rows[q, : len(rows)], rows)
        np.testing.assert_array_equal(found.distances[q, : len(rows)], distances)
        assert (found.rows[q, len(rows) :] == -1).all()


# Packing


@every_length
@pytest.mark.parametrize("views", [2, 3, 4])
@pytest.mark.parametrize("items", [0, 1, 9])
def test_unpacking_gives_back_the_views_of_every_item(items, views, length):
    bits = random_bits(items, views, length)
    codes = Codes.from_bits(bits)
    assert (len(codes), codes.bits, codes.views) == (items, length, views)
    np.testing.assert_array_equal(codes.to_bits(), bits)
    np.testing.assert_array_equal(codes.to_signs(), np.where(bits, 1, -1))
    np.testing.assert_array_equal(codes.to_bytes(), np.packbits(bits, axis=2))
    assert Codes.binarize(codes.to_signs()) == Codes.from_bytes(codes.to_bytes(), length) == codes
    assert codes.nbytes == items * views * -(-length // 16) * 2


def test_the_views_of_an_item_are_neighbouring_columns():
    bits = random_bits(6, 4, 40)
    np.testing.assert_array_equal(Codes.from_bits(bits).words, Codes.from_bits(bits.reshape(24, 40)).words)
    assert Codes(Codes.from_bits(bits.reshape(24, 40)).words, 40, 4) == Codes.from_bits(bits)


def test_one_view_in_three_dimensions_is_the_plain_code():
    bits = random_bits(5, 1, 20)
    codes = Codes.from_bits(bits)
    assert codes == Codes.from_bits(bits[:, 0]) and codes.to_bits().shape == (5, 20)


def test_views_make_codes_different():
    bits = random_bits(4, 3, 20)
    one, three = Codes.from_bits(bits.reshape(12, 20)), Codes.from_bits(bits)
    assert one != three and one.fingerprint() != three.fingerprint()
    assert repr(three) == "Codes(4 items, 20 bits, 3 views)"


@pytest.mark.parametrize("views", [0, -1, 5])
def test_codes_that_are_no_whole_number_of_items_are_refused(views):
    with pytest.raises(DataError) as caught:
        Codes(Codes.from_bits(random_bits(12, 1, 20)).words, 20, views)
    assert caught.value.field == "views" and f"12 codes are not items of {views}" in caught.value.problem


@every_length
def test_taking_cutting_and_joining_keep_the_views_together(length):
    bits, rows = random_bits(7, 3, length), [6, 0, 0, 3]
    codes = Codes.from_bits(bits)
    assert codes.take(rows) == Codes.from_bits(bits[rows])
    assert codes.take(np.arange(7) % 2 == 0) == Codes.from_bits(bits[::2])
    assert codes.take([]) == Codes.from_bits(bits[:0])
    assert Codes.concatenate([codes.take([4]), codes]) == Codes.from_bits(np.concatenate([bits[4:5], bits]))
    for cut in range(1, length + 1):
        assert codes.prefix(cut) == Codes.from_bits(bits[:, :, :cut])


def test_rows_past_the_items_are_refused_even_where_there_are_codes():
    with pytest.raises(DataError) as caught:
        Codes.from_bits(random_bits(7, 3, 20)).take([7])
    assert "0..6" in caught.value.problem


def test_codes_of_different_views_cannot_be_joined():
    with pytest.raises(DataError) as caught:
        Codes.concatenate([packed(random_bits(4, 2, 20)), packed(random_bits(4, 1, 20))])
    assert "[1, 2]" in caught.value.problem


@pytest.mark.parametrize("views", [1, 2, 3])
@pytest.mark.parametrize("start", [0, 1, 15, 16, 20, 33])
@pytest.mark.parametrize("width", [1, 5, 16, 17, 32, 50])
def test_any_columns_can_be_cut_into_codes(start, width, views):
    bits = random_bits(4, 1, 200)[:, 0]
    stop = start + views * width
    cut = Codes.from_bits(bits).columns(slice(start, stop), views)
    assert cut == packed(bits[:, start:stop].reshape(4, views, width))


def test_columns_of_items_with_views_are_those_of_each_view():
    bits = random_bits(4, 3, 60)
    codes = Codes.from_bits(bits)
    assert codes.columns(slice(0, 20)) == codes.prefix(20)
    assert codes.columns(slice(7, 40)) == Codes.from_bits(bits[:, :, 7:40])
    assert codes.columns(slice(0, 40), 2) == Codes.from_bits(bits[:, :, :40].reshape(4, 6, 20))


@pytest.mark.parametrize(("part", "views"), [((0, 41), 1), ((3, 3), 1), ((0, 10), 3), ((0, 10), 0), ((12, 4), 1)])
def test_columns_that_do_not_exist_are_refused(part, views):
    with pytest.raises(DataError):
        Codes.from_bits(random_bits(4, 1, 40)).columns(slice(*part), views)


@every_length
@pytest.mark.parametrize("items", [0, 1, 5])
def test_a_file_keeps_the_views(tmp_path, items, length):
    codes = Codes.from_bits(random_bits(items, 4, length))
    codes.save(tmp_path / "codes")
    loaded = Codes.load(tmp_path / "codes")
    assert loaded == codes and len(loaded) == items and loaded.fingerprint() == codes.fingerprint()


def test_a_reader_that_knows_no_views_refuses_the_file(tmp_path):
    Codes.from_bits(random_bits(3, 4, 20)).save(tmp_path / "codes")
    with pytest.raises(FormatError) as caught:
        read_arrays(tmp_path / "codes", kind="codes", version=1)
    assert caught.value.field == "version"


def test_the_file_of_one_view_is_that_of_earlier_versions_byte_for_byte(tmp_path):
    codes = packed(random_bits(5, 1, 20))
    codes.save(tmp_path / "codes")
    write_arrays(tmp_path / "before", {"words": codes.words}, {"bits": 20}, kind="codes", version=1)
    assert (tmp_path / "codes").read_bytes() == (tmp_path / "before").read_bytes()
    recorded = "c226b1d0791b5f0f"  # before there were views
    assert Codes.from_bits([[1, 0, 1], [0, 1, 1]]).fingerprint() == recorded


# Stored codes


def stored(layout, items=6, seed=0):
    """Relaxed values of items in a layout, and the values of each length: (N, V, B)."""
    rng = np.random.default_rng(seed)
    parts = {bits: rng.uniform(-1, 1, (items, layout.views, bits)) for bits in layout.lengths}
    served = [layout.longest] if layout.nested else layout.lengths
    return np.concatenate([parts[bits].reshape(items, -1) for bits in served], axis=1), parts


@pytest.mark.parametrize("views", [1, 2, 4])
@pytest.mark.parametrize("lengths", [(1,), (16, 32), (5, 12, 33), (7, 64)])
def test_the_code_of_each_length_has_its_views(lengths, views):
    layout = Layout(lengths, nested=False, views=views)
    values, parts = stored(layout)
    assert values.shape[1] == layout.stored
    items = CodedItems.binarize({"image": values, "text": -values}, LABELS[[0] * 6], layout)
    for bits in range(1, lengths[-1] + 1):
        at, serving = items.at(bits), parts[layout.serving(bits)]
        image, text = (serving >= 0).astype(np.uint8), (serving <= 0).astype(np.uint8)
        assert at.image == packed(image) and at.text == packed(text)
        assert at.layout is None and at.image.views == views
        assert set(at.relaxed) == (set() if views > 1 else {"image", "text"})
        assert at.take([3, 1]).image == items.take([3, 1]).at(bits).image
        expected = pair_distances(image[..., :bits], text[..., :bits])
        np.testing.assert_array_equal(hamming_distances(at.image, at.text, bits), expected)


@pytest.mark.parametrize("lengths", [(64,), (9,), (16, 64)])
def test_one_nested_code_may_have_views(lengths):
    layout = Layout(lengths, views=4)
    values, parts = stored(layout)
    items = CodedItems.binarize({"image": values, "text": values}, LABELS[[0] * 6], layout)
    whole = parts[lengths[-1]]
    for bits in (*lengths, 5):
        assert items.at(bits).image == Codes.from_bits((whole >= 0).astype(int)) and not items.at(bits).relaxed
    with pytest.raises(DataError):
        items.at(lengths[-1] + 1)


def test_items_of_one_nested_code_are_served_as_they_are():
    values, _ = stored(Layout((16, 64)))
    for layout in (None, Layout((16, 64))):
        items = CodedItems.binarize({"image": values, "text": values}, LABELS[[0] * 6], layout)
        assert items.at(16) is items


# Distances


@every_views
@every_length
def test_the_distance_of_two_items_is_that_of_their_nearest_codes(length, asked, views):
    queries, database, a, b = sides(asked, views, length, queries=3, items=7)
    expected = slow_distances(queries, database)
    np.testing.assert_array_equal(hamming_distances(a, b), expected)
    np.testing.assert_array_equal(pair_distances(queries, database), expected)
    for cut in {1, length // 2 or 1, max(length - 1, 1)}:
        np.testing.assert_array_equal(
            hamming_distances(a, b, cut), pair_distances(queries[..., :cut], database[..., :cut])
        )


@every_views
@pytest.mark.parametrize("items", [1, 2, 60])
@pytest.mark.parametrize("length", [3, 40])
def test_nearest_sorts_by_the_distance_of_the_nearest_pair_then_by_row(length, items, asked, views):
    queries, database, a, b = sides(asked, views, length, items=items)
    distances, allowed = pair_distances(queries, database), np.arange(items) % 3 == 0
    for k, most in itertools.product({1, 7, items, items + 1}, (None, 0, length // 4)):
        assert_found(nearest(a, b, k, max_distance=most), slow_nearest(distances, k, most=most))
        found = nearest(a, b, k, allowed=allowed, max_distance=most)
        assert_found(found, slow_nearest(distances, k, allowed, most))
        assert found.rows.shape == (5, min(k, allowed.sum()))


@every_views
@pytest.mark.parametrize("length", [3, 40])
def test_range_search_and_histogram_see_items_not_codes(length, asked, views):
    queries, database, a, b = sides(asked, views, length)
    distances, some = pair_distances(queries, database), np.arange(60) % 3 > 0
    for allowed in (None, some):
        kept = distances if allowed is None else distances[:, allowed]
        histogram = np.array([np.bincount(line, minlength=length + 1) for line in kept])
        np.testing.assert_array_equal(distance_histogram(a, b, allowed=allowed), histogram)
        for radius in (0, length // 3, length):
            found = within(a, b, radius, allowed=allowed)
            for q, (rows, near) in enumerate(slow_nearest(distances, 60, allowed, radius)):
                hits = slice(found.offsets[q], found.offsets[q + 1])
                np.testing.assert_array_equal(found.rows[hits], rows)
                np.testing.assert_array_equal(found.distances[hits], near)


@pytest.mark.parametrize("views", [2, 3, 4])
@pytest.mark.parametrize("edge", [1, 2, 4])
@pytest.mark.parametrize("step", [-1, 0, 1])
def test_items_at_the_edges_of_the_pieces_that_are_read_together_are_found(views, edge, step):
    items = CHUNK * edge // views + step
    queries, database, a, b = sides(2, views, 9, queries=2, items=items)
    distances = pair_distances(queries, database)
    np.testing.assert_array_equal(hamming_distances(a, b), distances)
    assert_found(nearest(a, b, items), slow_nearest(distances, items))
    assert within(a, b, 9).rows.shape == (2 * items,) and distance_histogram(a, b).sum() == 2 * items


def test_more_views_than_are_read_together_are_one_item():
    bits = random_bits(2, CHUNK + 5, 12)
    bits[0, -1] = 0
    bits[0, :-1, 0] = bits[1, :, 0] = 1
    found = hamming_distances(Codes.from_bits(np.zeros((1, 12))), Codes.from_bits(bits))
    np.testing.assert_array_equal(found, pair_distances(np.zeros((1, 1, 12)), bits))
    assert found[0, 0] == 0 < found[0, 1]


@pytest.mark.parametrize("threads", [1, 2, 7, None])
def test_many_queries_on_any_number_of_threads_do_not_mix(threads):
    queries, database, a, b = sides(3, 2, 24, queries=70, items=3000)
    distances = pair_distances(queries, database)
    assert_found(nearest(a, b, 100, threads=threads), slow_nearest(distances, 100))
    np.testing.assert_array_equal(hamming_distances(a, b, threads=threads), distances)


@pytest.mark.parametrize(("asked", "searched"), [(3, 0), (0, 3), (0, 0)])
def test_nothing_asked_or_nothing_searched_gives_empty_results(asked, searched):
    a, b = Codes.from_bits(random_bits(asked, 2, 20)), Codes.from_bits(random_bits(searched, 4, 20))
    assert hamming_distances(a, b).shape == (asked, searched)
    assert nearest(a, b, 2).rows.shape == (asked, min(2, searched))
    assert within(a, b, 20).rows.shape == (asked * searched,)
    assert distance_histogram(a, b).shape == (asked, 21)


def test_a_filter_has_one_value_per_item_not_per_code():
    codes = Codes.from_bits(random_bits(5, 4, 20))
    with pytest.raises(DataError) as caught:
        nearest(codes, codes, 1, allowed=np.ones(20, bool))
    assert caught.value.option == "allowed" and "5" in caught.value.problem


def test_asymmetric_search_of_several_views_is_refused():
    with pytest.raises(DataError) as caught:
        nearest_relaxed(np.zeros((1, 20)), Codes.from_bits(random_bits(5, 4, 20)), 1)
    assert "got 4" in caught.value.problem and "nearest" in caught.value.hint


# Metrics


def ranked_labels(items=60, seed=5):
    rng = np.random.default_rng(seed)
    labels = (rng.random((items, 4)) < 0.3).astype(np.uint8)
    asked = (rng.random((5, 4)) < 0.4).astype(np.uint8)
    asked[0] = 0
    return asked, labels


@every_views
@pytest.mark.parametrize("length", [2, 17])
@pytest.mark.parametrize("at", [None, 1, 9])
def test_rankings_are_counted_item_by_item(length, at, asked, views):
    queries, database, a, b = sides(asked, views, length)
    mine, theirs = ranked_labels()
    counts, distances = count_rankings(a, b, mine, theirs, at=at), pair_distances(queries, database)
    for q, line in enumerate(distances):
        relevant, hits, precision = (mine[q] & theirs).any(axis=1), 0, 0.0
        for rank, row in enumerate(np.argsort(line, kind="stable")[:at], start=1):
            hits += relevant[row]
            precision += hits / rank if relevant[row] else 0
        assert counts.hits[q] == hits and counts.precision_sum[q] == pytest.approx(precision, rel=1e-12)
        for distance in range(length + 1):
            assert counts.total[q, distance] == (line == distance).sum()
            assert counts.relevant[q, distance] == (relevant & (line == distance)).sum()


def all_measures(query, database, bits):
    """Everything that ranks, of one pair of sides."""
    mine, theirs = ranked_labels(len(database))
    sets = query, database, mine, theirs, bits
    ranking = Ranking(*sets[:4], bits)
    graded, weights = GradedRelevance.shared_labels(4), np.arange(16.0).reshape(4, 4)
    yield average_precision(*sets)
    yield average_precision(*sets, ties="average")
    yield precision_at(*sets[:4], 5, bits)
    yield precision_recall(*sets).precision
    yield ranking.first.rows
    yield ranking.first.precision
    yield pool_resolution(ranking, LabelSetRelevance.of([graded], mine, theirs), ranking.first.rows[:, :7])
    for each in no_shared_label([sets[:2]], mine, theirs, graded, weights, bits, k=9)[0]:
        yield each.values
    for each in ranking_agreement({bits: (query, database), query.bits: (query, database)}):
        yield each.tau
        yield each.displacement


@pytest.mark.parametrize("copies", [(1, 2), (4, 1), (3, 4)])
def test_equal_views_are_measured_as_one(copies):
    bits = random_bits(5, 1, 20), random_bits(60, 1, 20, seed=1)
    single = all_measures(*map(packed, bits), 11)
    several = [np.repeat(each, count, axis=1) for each, count in zip(bits, copies, strict=True)]
    for one, more in zip(single, all_measures(*map(packed, several), 11), strict=True):
        np.testing.assert_array_equal(one, more)


@every_views
def test_pools_are_ordered_by_the_nearest_pair(asked, views):
    queries, database, a, b = sides(asked, views, 17, items=40)
    mine, theirs = ranked_labels(40)
    anchor = np.arange(35).reshape(5, 7)
    ranking, graded = Ranking(a, b, mine, theirs, 13), GradedRelevance.shared_labels(4)
    ranking.first.rows[:, 20:] = ranking.first.rows[:, :20]  # a pool that is not the whole database
    (found,) = pool_resolution(ranking, LabelSetRelevance.of([graded], mine, theirs), anchor)
    distances = pair_distances(queries[..., :13], database[..., :13])
    for q in range(5):
        pool = sorted({*ranking.first.rows[q].tolist(), *anchor[q].tolist()})
        order = pair_order(graded.scores(mine[q : q + 1], theirs)[0][pool], distances[q, pool])
        np.testing.assert_allclose(found[:, q], [order.tau, order.collision, order.inversion], rtol=1e-12)


@every_views
def test_lengths_are_compared_by_the_nearest_pairs(asked, views):
    at = {bits: sides(asked, views, bits, items=40, seed=bits) for bits in (6, 20)}
    (found,) = ranking_agreement({bits: each[2:] for bits, each in at.items()})
    short, long = (pair_distances(*at[bits][:2]) for bits in (6, 20))
    for q in range(5):
        assert found.tau[q] == pytest.approx(kendall_tau(short[q], long[q]))
        assert found.displacement[q] == pytest.approx(np.abs(rank_displacement(short[q], long[q])).mean())


def test_the_bits_of_all_views_are_counted():
    bits = random_bits(9, 3, 20)
    bits[4:] = bits[4:5]
    found, plain = (code_health(Codes.from_bits(each), (3, 20)) for each in (bits, bits.reshape(27, 20)))
    for name in ("balance", "entropy", "correlation"):
        np.testing.assert_array_equal(getattr(found, name), getattr(plain, name))
    assert found.distinct == plain.distinct and found.distinct[20] == 15


def test_items_with_views_at_each_length_are_ranked_and_described():
    layout = Layout((6, 12), nested=False, views=4)
    query, database = (CodedItems.binarize(dict.fromkeys(("image", "text"), stored(layout, count, seed)[0]),
                                           ranked_labels(count)[1], layout)
                       for count, seed in ((5, 1), (40, 2)))  # fmt: skip
    rankings = Rankings(query, database, layout.lengths)
    for bits in layout.lengths:
        expected = pair_distances(query.at(bits).image.to_bits(), database.at(bits).text.to_bits())
        np.testing.assert_array_equal(rankings["i2t", bits].first.rows, np.argsort(expected, axis=1, kind="stable"))
    assert set(bit_use(rankings).health["image"].distinct) == {6, 12}
    cost = measure_cost(query.take([0]), database, layout.lengths, ModelSize(1, 1, 1), {})
    assert cost.payload == {6: 2 * 40 * 4 * 1, 12: 2 * 40 * 4 * 2} and cost.nested == 2 * 40 * 4 * (6 + 12) // 8


# The index and other tools


def filled(views=4, items=12, **options):
    index = Index("model a", **options)
    index.add([f"item {row}" for row in range(items)], packed(random_bits(items, views, 40)))
    return index


@pytest.mark.parametrize("asked", [1, 2, 4])
@pytest.mark.parametrize("bits", [9, 40, None])
def test_an_index_finds_the_items_of_the_nearest_pairs(asked, bits):
    queries = random_bits(5, asked, 40, seed=9)
    distances = pair_distances(queries[..., :bits], random_bits(12, 4, 40)[..., :bits])
    names = [f"item {row}" for row in range(9)]
    result = filled().search(packed(queries), k=5, bits=bits, max_distance=17, among=names)
    assert_found(result, slow_nearest(distances, 5, np.arange(12) < 9, 17))
    assert result.counts.any()
    for q, count in enumerate(result.counts):
        assert [hit.id for hit in result.hits(q)] == [f"item {row}" for row in result.rows[q, :count]]


def test_an_index_keeps_the_views_of_its_items_through_every_change(tmp_path):
    bits, index = random_bits(12, 4, 40), filled()
    index.remove(["item 3", "item 7"])
    index.upsert(["item 0", "new"], Codes.from_bits(random_bits(2, 4, 40, seed=8)))
    expected = np.concatenate([np.delete(bits, [0, 3, 7], axis=0), random_bits(2, 4, 40, seed=8)])
    index.save(tmp_path / "index")
    loaded = Index.load(tmp_path / "index")
    assert loaded.codes == index.codes == Codes.from_bits(expected) and len(loaded) == 11
    assert repr(loaded) == "Index(11 items, 40 bits, 4 views, exact engine)"
    other, last = Index("model a"), random_bits(1, 4, 40, seed=7)
    other.add(["last"], Codes.from_bits(last))
    assert Index.merge([loaded, other]).codes == Codes.from_bits(np.concatenate([expected, last]))


@pytest.mark.parametrize("views", [1, 3])
def test_items_of_other_views_do_not_enter_an_index(views):
    index = filled()
    for change in (index.add, index.upsert):
        with pytest.raises(DataError) as caught:
            change(["new"], packed(random_bits(1, views, 40)))
        assert caught.value.field == "codes" and "4" in caught.value.problem
    with pytest.raises(DataError):
        Index.merge([index, filled(views)])


@pytest.mark.parametrize("engine", [name for name in ENGINES if name != "exact"])
def test_engines_of_one_code_per_item_refuse_several(engine):
    index = Index(engine=engine)
    with pytest.raises(ConfigError) as caught:
        index.add(["a"], Codes.from_bits(random_bits(1, 2, 40)))
    assert caught.value.option == "engine" and engine in caught.value.problem and "exact" in caught.value.hint
    index.add(["a"], packed(random_bits(1, 1, 40)))
    with pytest.raises(ConfigError):
        index.search(Codes.from_bits(random_bits(1, 2, 40)))


def test_relaxed_queries_to_an_index_of_several_views_are_refused():
    with pytest.raises(DataError):
        filled().search_relaxed(np.zeros((1, 40)))


@pytest.mark.parametrize("name", ["codes.npy", "codes.faiss"])
def test_files_of_other_tools_take_one_code_per_item(tmp_path, name):
    with pytest.raises(DataError) as caught:
        export_codes(Codes.from_bits(random_bits(3, 4, 16)), tmp_path / name)
    assert "got 4" in caught.value.problem and "save" in caught.value.hint
    assert not list(tmp_path.iterdir())


def test_the_keys_of_the_field_take_one_code_per_item(tmp_path):
    codes = Codes.from_bits(random_bits(5, 2, 16))
    items = CodedItems(codes, codes, LABELS)
    with pytest.raises(DataError):
        save_mat(tmp_path / "codes.mat", items, items)
    assert not list(tmp_path.iterdir())

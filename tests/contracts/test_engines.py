"""The contract of every engine: the result of a stable sort by distance, whatever the data and its size."""

from __future__ import annotations

import itertools
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from multibit import Codes, Index
from multibit.cli import EngineName
from multibit.codes import lists
from multibit.errors import ConfigError, DataError, MissingExtraError
from multibit.search.engines import ENGINES, Capabilities

ITEMS = [1, 63, 64, 65, 127, 128, 129]
LENGTHS = [1, 7, 8, 16, 17, 63, 64, 65, 112, 128, 256]  # of 1, 2, 4, 5, 7, 8 and 16 words
SIZES = [*dict.fromkeys([*itertools.product(ITEMS, (65,)), *itertools.product((129,), LENGTHS)])]
MANY = [(10_000, 8), (10_000, 17), (10_000, 256)]
METHODS = {name: name for name in ENGINES} | {
    "lists, always used": "lists",
    "lists, queries given up": "lists",
}


FILTERING = [variant for variant, name in METHODS.items() if ENGINES[name].capabilities.filters]
filtering = pytest.mark.parametrize("variant", FILTERING, indirect=True)
not_filtering = pytest.mark.parametrize("variant", [name for name in METHODS if name not in FILTERING], indirect=True)


@pytest.fixture(params=METHODS)
def variant(request, monkeypatch):
    """Each engine; where the variant says so, small collections too are put in lists."""
    name = METHODS[request.param]
    if name == "faiss":
        pytest.importorskip("faiss", reason='faiss is not installed: pip install "multibit[faiss]"')
        # its threads spin, which is slow where processors are shared
        monkeypatch.setattr("multibit.machine.processors", lambda: 1)
    if request.param != name:
        monkeypatch.setattr(lists, "SMALLEST", 1)
        monkeypatch.setattr(lists, "WORTHWHILE", 0.01 if "given up" in request.param else 1.0)
        monkeypatch.setattr(lists.PrunedLists, "worthwhile", True)  # else the whole collection would be scanned
    return request.param


@pytest.fixture
def engine(variant):
    return ENGINES[METHODS[variant]]


def random_bits(items, length, seed=0):
    return np.random.default_rng(seed).integers(0, 2, (items, length), np.uint8)


def one_bit_apart(items, length):
    rows = np.arange(items)
    bits = np.tile(random_bits(1, length, seed=5), (items, 1))
    bits[rows, rows % length] ^= 1
    return bits


def clustered(items, length):
    rng = np.random.default_rng(6)
    centres = random_bits(5, length, seed=7)
    return centres[rng.integers(5, size=items)] ^ (rng.random((items, length)) < 0.04).astype(np.uint8)


DATA = {
    "random": lambda items, length: random_bits(items, length, seed=1),
    "all equal": lambda items, length: np.tile(random_bits(1, length, seed=2), (items, 1)),
    "duplicates": lambda items, length: random_bits(7, length, seed=3)[np.arange(items) * 5 % 7],
    "one bit apart": one_bit_apart,
    "clustered": clustered,
}


def some_queries(database):
    """One of the codes, one almost like another, and two of no relation."""
    near = database[[0, -1]].copy()
    near[1, 0] ^= 1
    return np.concatenate([near, random_bits(2, database.shape[1], seed=9)])


def expected(queries, database, k, allowed=None, max_distance=None):
    """Rows and distances of each query: count the differing bits, sort, leave out."""
    answers = []
    for query in queries:
        distances = (database != query).sum(axis=1)
        order = np.lexsort((np.arange(len(database)), distances))
        if allowed is not None:
            order = order[allowed[order]]
        if max_distance is not None:
            order = order[distances[order] <= max_distance]
        answers.append((order[:k], distances[order[:k]]))
    return answers


def assert_found(found, answers, case=""):
    assert found.counts.tolist() == [len(rows) for rows, _ in answers], case
    for q, (rows, distances) in enumerate(answers):
        np.testing.assert_array_equal(found.rows[q, : len(rows)], rows, err_msg=case)
        np.testing.assert_array_equal(found.distances[q, : len(rows)], distances, err_msg=case)
        assert (found.rows[q, len(rows) :] == -1).all(), case


def assert_same(one, other):
    for name in ("rows", "distances", "counts"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


@pytest.mark.parametrize(("items", "length"), [*SIZES, *MANY])
def test_answers_are_those_of_a_stable_sort_by_distance(engine, items, length):
    for kind, make in DATA.items():
        database = make(items, length)
        queries = some_queries(database)
        made = engine(Codes.from_bits(database))
        answers = expected(queries, database, items)
        for k in {1, 10, items, items + 1}:
            found = made.search(Codes.from_bits(queries), k, length)
            assert found.rows.shape == (4, min(k, items))
            assert_found(found, [(rows[:k], near[:k]) for rows, near in answers], f"{kind}, k = {k}")


@pytest.mark.parametrize("kind", DATA)
def test_every_prefix_of_the_stored_codes_is_searched_exactly(engine, kind):
    database = DATA[kind](129, 256)
    queries = some_queries(database)
    for bits in LENGTHS:
        found = engine(Codes.from_bits(database)).search(Codes.from_bits(queries), 10, bits)
        assert_found(found, expected(queries[:, :bits], database[:, :bits], 10), f"{bits} bits")


@pytest.mark.parametrize("length", [1, 15, 64, 100])
def test_queries_may_be_longer_than_the_codes(engine, length):
    database, queries = random_bits(200, length, seed=1), random_bits(4, 140, seed=2)
    found = engine(Codes.from_bits(database)).search(Codes.from_bits(queries), 12, length)
    assert_found(found, expected(queries[:, :length], database, 12))


@pytest.mark.parametrize("kind", DATA)
def test_nothing_past_the_largest_distance_is_found(engine, kind):
    database = DATA[kind](500, 40)
    queries = some_queries(database)
    made = engine(Codes.from_bits(database))
    for farthest, k in itertools.product([0, 1, 4, 20, 40, 99], [1, 10, 500]):
        found = made.search(Codes.from_bits(queries), k, 40, max_distance=farthest)
        assert_found(found, expected(queries, database, k, max_distance=farthest), f"{farthest}, k = {k}")


@filtering
@pytest.mark.parametrize("kind", DATA)
def test_a_filter_finds_k_of_the_allowed_rows_and_no_other(engine, kind):
    database = DATA[kind](2000, 32)
    queries, made = some_queries(database), engine(Codes.from_bits(database))
    for share, k in itertools.product([0.01, 0.2, 0.9], [1, 15, 2000]):
        allowed = np.random.default_rng(8).random(2000) < share
        found = made.search(Codes.from_bits(queries), k, 32, allowed=allowed)
        assert (found.counts == min(k, allowed.sum())).all()
        assert_found(found, expected(queries, database, k, allowed), f"{share}, k = {k}")


@filtering
@pytest.mark.parametrize("bits", [9, 32])
def test_a_filter_and_a_largest_distance_hold_together(engine, bits):
    database = clustered(1000, 32)
    queries, allowed = some_queries(database), np.arange(1000) % 3 == 0
    made = engine(Codes.from_bits(database))
    found = made.search(Codes.from_bits(queries), 400, bits, allowed=allowed, max_distance=3)
    assert_found(found, expected(queries[:, :bits], database[:, :bits], 400, allowed, 3))


@filtering
@pytest.mark.parametrize(("only", "k"), [(0, 5), (64, 1), (199, 200)])
def test_a_single_allowed_row_is_found_wherever_it_lies(engine, only, k):
    database = clustered(200, 24)
    made = engine(Codes.from_bits(database))
    found = made.search(Codes.from_bits(some_queries(database)), k, 24, allowed=np.arange(200) == only)
    assert found.rows.tolist() == [[only]] * 4


@filtering
def test_an_empty_filter_finds_nothing(engine):
    made = engine(Codes.from_bits(random_bits(70, 16)))
    found = made.search(Codes.from_bits(random_bits(3, 16)), 5, 16, allowed=np.zeros(70, bool))
    assert found.rows.shape == (3, 0) and found.counts.tolist() == [0, 0, 0]


@pytest.mark.parametrize("threads", [1, 2, 3, 7, 40])
def test_any_number_of_threads_gives_the_same_answer(engine, threads):
    made = engine(Codes.from_bits(clustered(600, 64)))
    queries = Codes.from_bits(np.concatenate([clustered(50, 64), random_bits(50, 64, seed=4)]))
    assert_same(made.search(queries, 25, 64, threads=threads), made.search(queries, 25, 64))


def test_queries_asked_together_get_what_each_gets_alone(engine):
    database, queries = clustered(300, 48), random_bits(70, 48, seed=4)
    made, packed = engine(Codes.from_bits(database)), Codes.from_bits(queries)
    together = made.search(packed, 9, 48)
    assert_found(together, expected(queries, database, 9))
    for q in (0, 31, 32, 69):
        alone = made.search(packed.take([q]), 9, 48)
        assert_same(alone, SimpleNamespace(**{name: part[[q]] for name, part in vars(together).items()}))


@pytest.mark.parametrize(("asked", "stored"), [(0, 30), (3, 0), (0, 0)])
def test_nothing_asked_or_nothing_stored_gives_empty_answers(engine, asked, stored):
    made = engine(Codes.from_bits(random_bits(stored, 20)))
    found = made.search(Codes.from_bits(random_bits(asked, 20)), 4, 20)
    assert found.rows.shape == found.distances.shape == (asked, min(4, stored))
    assert found.counts.tolist() == [min(4, stored)] * asked


def test_searching_changes_neither_codes_nor_queries(engine):
    database, queries = clustered(300, 40), random_bits(5, 40)
    stored, asked = Codes.from_bits(database), Codes.from_bits(queries)
    engine(stored).search(asked, 10, 33)
    assert stored == Codes.from_bits(database) and asked == Codes.from_bits(queries)


def test_answers_have_the_promised_types(engine):
    found = engine(Codes.from_bits(random_bits(90, 40))).search(Codes.from_bits(random_bits(2, 40)), 3, 40)
    assert (found.rows.dtype, found.distances.dtype, found.counts.dtype) == (np.int64, np.uint16, np.int64)


def test_an_engine_declares_its_capabilities_and_strategy(engine):
    assert isinstance(engine.capabilities, Capabilities)
    assert len(engine(Codes.from_bits(random_bits(90, 40))).reason) > 5


storing = pytest.mark.parametrize(
    "variant", [name for name, of in METHODS.items() if ENGINES[of].capabilities.stored], indirect=True
)


@storing
@pytest.mark.parametrize("kind", DATA)
def test_a_stored_engine_answers_like_the_one_that_was_written(engine, kind):
    database = DATA[kind](700, 128)
    codes, queries = Codes.from_bits(database), Codes.from_bits(some_queries(database))
    made = engine(codes)
    arrays, header = made.to_arrays()
    read = engine.from_arrays(codes, arrays, json.loads(json.dumps(header)))
    assert read.reason == made.reason
    for bits in (128, 64, 32, 17):
        assert_same(read.search(queries, 9, bits), made.search(queries, 9, bits))
        assert_found(read.search(queries, 9, bits), expected(queries.to_bits()[:, :bits], database[:, :bits], 9))


@pytest.mark.parametrize("variant", ["lists, always used"], indirect=True)
def test_a_stored_engine_of_other_codes_is_refused(engine):
    arrays, header = engine(Codes.from_bits(clustered(700, 64))).to_arrays()
    assert arrays
    for other in (clustered(701, 64), clustered(700, 80)):
        with pytest.raises(DataError):
            engine.from_arrays(Codes.from_bits(other), arrays, header)


@storing
def test_an_engine_that_scans_stores_no_arrays(engine, monkeypatch):
    monkeypatch.undo()
    codes = Codes.from_bits(random_bits(300, 64))
    arrays, header = engine(codes).to_arrays()
    assert arrays == {} and "scan" in engine.from_arrays(codes, arrays, header).reason


# Through the index


def test_an_index_answers_by_the_engine_it_was_given(variant, engine):
    database = clustered(150, 40)
    queries = some_queries(database)
    index = Index(engine=METHODS[variant])
    index.add([f"item {row}" for row in range(150)], Codes.from_bits(database))
    result = index.search(Codes.from_bits(queries), k=20, bits=17, max_distance=8)
    answers = expected(queries[:, :17], database[:, :17], 20, max_distance=8)
    assert result.ids == [[f"item {row}" for row in rows] for rows, _ in answers]
    assert type(index.engine) is engine


@not_filtering
def test_an_engine_without_filters_refuses_them(variant):
    index = Index(engine=METHODS[variant])
    index.add(["a", "b"], Codes.from_bits(random_bits(2, 16)), [{"x": 1}, {"x": 1}])
    with pytest.raises(ConfigError) as caught:
        index.search(Codes.from_bits(random_bits(1, 16)), where={"x": 1})
    assert caught.value.option == "engine" and "exact" in caught.value.hint


def test_every_engine_searches_among_named_items(variant):
    database, queries = random_bits(40, 24), Codes.from_bits(random_bits(3, 24))
    indices = [Index(engine=name) for name in ("reference", METHODS[variant])]
    for index in indices:
        index.add(list(range(40)), Codes.from_bits(database), [{"even": row % 2 == 0} for row in range(40)])
        index.remove([7])
    for among, where in (([31, 4, 18, 5], None), ([31, 4, 18, 5], {"even": True})):
        wanted, found = (index.search(queries, 3, 13, among=among, where=where) for index in indices)
        assert found.ids == wanted.ids and found.distances.tolist() == wanted.distances.tolist()


@pytest.mark.parametrize("wrong", [{"k": 0}, {"k": -2}, {"max_distance": -1}, {"bits": 17}])
def test_arguments_out_of_range_never_reach_an_engine(variant, wrong):
    index = Index(engine=METHODS[variant])
    index.add(None, Codes.from_bits(random_bits(30, 16)))
    with pytest.raises(DataError) as caught:
        index.search(Codes.from_bits(random_bits(2, 20)), **wrong)
    assert [caught.value.option] == list(wrong)


def test_the_threads_of_one_search_are_not_those_of_the_next():
    faiss = pytest.importorskip("faiss", reason='faiss is not installed: pip install "multibit[faiss]"')
    index = Index(engine="faiss")
    index.add(None, Codes.from_bits(random_bits(9, 16)))
    before = faiss.omp_get_max_threads()
    try:
        index.search(Codes.from_bits(random_bits(1, 16)), threads=before + 1)
        assert faiss.omp_get_max_threads() == before
    finally:
        faiss.omp_set_num_threads(before)


def test_an_unknown_engine_is_refused_and_the_known_ones_are_listed():
    with pytest.raises(ConfigError) as caught:
        Index(engine="annoy")
    assert caught.value.option == "engine"
    assert all(name in caught.value.problem for name in ("'annoy'", *ENGINES))


def test_without_faiss_its_engine_names_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    index = Index(engine="faiss")
    index.add(["a"], Codes.from_bits(random_bits(1, 16)))
    with pytest.raises(MissingExtraError) as caught:
        index.search(Codes.from_bits(random_bits(1, 16)))
    assert (caught.value.module, caught.value.extra) == ("faiss", "faiss")


def test_the_command_line_offers_every_engine():
    assert [name.value for name in EngineName] == list(ENGINES)

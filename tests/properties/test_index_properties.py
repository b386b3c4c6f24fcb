"""An index behaves like a plain dictionary of bit strings, whatever is done to it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multibit import Codes, Index
from multibit.errors import DataError

WIDTH = 37
NUMBERS = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
IDS = {"text": st.text(max_size=2), "numbers": st.integers(-3, 12)}
CODE = st.integers(0, 2**WIDTH - 1)
FIELDS = {"": st.text(), "n": st.integers(-(2**63), 2**63 - 1), "日本": st.dictionaries(st.text(), JSON, max_size=2)}


def steps(ids):
    item = st.tuples(ids, CODE, st.fixed_dictionaries({}, optional=FIELDS))
    batch = st.lists(item, max_size=6)
    given_items = st.tuples(st.sampled_from(["add", "upsert"]), batch)
    change = given_items | st.tuples(st.just("remove"), st.lists(ids, max_size=3))
    return st.lists(change | st.just(("save and load", [])), max_size=8)


def pack(numbers) -> Codes:
    return Codes.from_bits(np.array([[n >> j & 1 for j in range(WIDTH)] for n in numbers], np.uint8).reshape(-1, WIDTH))


def expected(model: dict, query: int, k: int, bits: int, limit: int | None = None) -> list[tuple[object, int]]:
    """Ids and distances of the k nearest: integers, XOR, and a stable sort by distance."""
    mask = 2**bits - 1
    found = [(name, ((query ^ code) & mask).bit_count()) for name, (code, _) in model.items()]
    near = [pair for pair in found if limit is None or pair[1] <= limit]
    return sorted(near, key=lambda pair: pair[1])[:k]


def is_refused(kind: str, batch, model: dict) -> bool:
    if kind == "remove":
        return not set(batch) <= set(model)
    ids = [name for name, _, _ in batch]
    return len(set(ids)) < len(ids) or (kind == "add" and bool(set(ids) & set(model)))


def change(index: Index, model: dict, kind: str, batch) -> None:
    """Do it to both; both must refuse the same, and then change nothing."""
    if kind == "remove":
        arguments = (batch,)
    else:
        arguments = [name for name, _, _ in batch], pack([code for _, code, _ in batch]), [load for _, _, load in batch]
    if is_refused(kind, batch, model):
        with pytest.raises(DataError):
            getattr(index, kind)(*arguments)
        return
    getattr(index, kind)(*arguments)
    if kind == "remove":
        for name in set(batch):
            del model[name]
    else:
        for name, code, payload in batch:
            model.pop(name, None)  # what is replaced is the last item now
            model[name] = code, payload


def restored(index: Index) -> Index:
    with tempfile.TemporaryDirectory() as folder:
        index.save(Path(folder) / "a.mbx")
        return Index.load(Path(folder) / "a.mbx")


@pytest.mark.parametrize("kind", IDS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_an_index_finds_what_a_dictionary_finds(kind, data):
    index, model = Index("m"), {}
    for name, batch in data.draw(steps(IDS[kind])):
        if name != "save and load":
            change(index, model, name, batch)
        elif index.codes is not None:
            index = restored(index)
    queries = data.draw(st.lists(CODE, min_size=1, max_size=3))
    k, bits = data.draw(st.integers(1, 8)), data.draw(st.integers(1, WIDTH))
    limit = data.draw(st.none() | st.integers(0, WIDTH))
    result = index.search(pack(queries), k=k, bits=bits, max_distance=limit)
    for number, query in enumerate(queries):
        hits = result.hits(number)
        assert [(hit.id, hit.distance) for hit in hits] == expected(model, query, k, bits, limit)
        assert [hit.payload for hit in hits] == [model[hit.id][1] for hit in hits]
        assert [hit.rank for hit in hits] == list(range(1, len(hits) + 1))
    assert ([index.ids[row] for row in range(len(index))], index.model) == (list(model), "m")


@settings(max_examples=30, deadline=None)
@given(st.lists(CODE, min_size=1, max_size=12), CODE, st.integers(1, WIDTH), st.integers(0, 12))
def test_adding_in_parts_is_adding_at_once(numbers, query, bits, cut):
    once, parts = Index(), Index()
    names = list(range(len(numbers)))
    once.add(names, pack(numbers))
    parts.add(names[:cut], pack(numbers[:cut]))
    parts.add(names[cut:], pack(numbers[cut:]))
    assert parts.codes == once.codes
    assert parts.search(pack([query]), bits=bits).ids == once.search(pack([query]), bits=bits).ids


@settings(max_examples=30, deadline=None)
@given(st.lists(CODE, min_size=1, max_size=8), st.lists(CODE, min_size=1, max_size=5), CODE, st.integers(1, WIDTH))
def test_what_was_added_and_removed_was_never_there(stay, leave, query, bits):
    index, plain = Index(), Index()
    plain.add(list(range(len(stay))), pack(stay))
    index.add(list(range(100, 100 + len(leave))), pack(leave))
    index.add(list(range(len(stay))), pack(stay))
    index.remove(list(range(100, 100 + len(leave))))
    assert index.codes == plain.codes
    assert index.search(pack([query]), k=5, bits=bits).ids == plain.search(pack([query]), k=5, bits=bits).ids


@settings(max_examples=30, deadline=None)
@given(st.lists(CODE, min_size=1, max_size=12), CODE, CODE, st.integers(1, WIDTH))
def test_flipping_the_same_bits_everywhere_changes_no_answer(numbers, query, flips, bits):
    plain, flipped = Index(), Index()
    plain.add(None, pack(numbers))
    flipped.add(None, pack([number ^ flips for number in numbers]))
    mine = plain.search(pack([query]), k=12, bits=bits)
    other = flipped.search(pack([query ^ flips]), k=12, bits=bits)
    assert np.array_equal(mine.rows, other.rows) and np.array_equal(mine.distances, other.distances)


@settings(max_examples=30, deadline=None)
@given(st.lists(CODE, min_size=1, max_size=12), CODE, st.integers(1, WIDTH), st.sets(st.integers(0, 11)))
def test_searching_among_some_is_searching_an_index_of_them(numbers, query, bits, chosen):
    chosen = sorted(row for row in chosen if row < len(numbers))
    index, part = Index(), Index()
    index.add(None, pack(numbers))
    part.add(chosen, pack([numbers[row] for row in chosen]))
    assert index.search(pack([query]), bits=bits, among=chosen).ids == part.search(pack([query]), bits=bits).ids

"""After any sequence of changes, with any engine, an index equals a plain dictionary."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from multibit import Codes, Index
from multibit.codes import lists
from multibit.errors import ConfigError, DataError
from multibit.search.engines import ENGINES

WIDTH = 20
NAMES = {"strings": [f"item {number}" for number in range(12)], "integers": list(range(-2, 10))}
CODE = st.integers(0, 2**WIDTH - 1) | st.sampled_from([0, 1, 2**WIDTH - 1])  # the latter for ties
PAYLOAD = st.fixed_dictionaries({}, optional={"n": st.integers(0, 2), "tags": st.lists(st.sampled_from("xyz"))})
NUMBERS = st.integers(0, 11)
BATCH = st.lists(st.tuples(NUMBERS, CODE, PAYLOAD), min_size=1, max_size=5, unique_by=lambda item: item[0])


def pack(numbers) -> Codes:
    return Codes.from_bits(np.array([[number >> j & 1 for j in range(WIDTH)] for number in numbers], np.uint8))


class IndexMachine(RuleBasedStateMachine):
    """An index together with a dictionary, in row order, from id to (code as an integer, payload)."""

    def __init__(self, kind: str, engine: str):
        super().__init__()
        self.names = NAMES[kind]
        self.engine = engine
        self.index = Index("model", engine)
        self.model: dict = {}

    def arguments(self, batch):
        ids, codes, payloads = zip(*batch, strict=True)
        return [self.names[number] for number in ids], pack(codes), list(payloads)

    def learn(self, batch):
        for number, code, payload in batch:
            self.model.pop(self.names[number], None)  # what is replaced is the last item now
            self.model[self.names[number]] = code, payload

    @rule(batch=BATCH)
    def add(self, batch):
        known = {self.names[number] for number, _, _ in batch} & set(self.model)
        if known:
            with pytest.raises(DataError):
                self.index.add(*self.arguments(batch))
        else:
            self.index.add(*self.arguments(batch))
            self.learn(batch)

    @precondition(lambda self: self.names == NAMES["integers"])
    @rule(codes=st.lists(CODE, min_size=1, max_size=3))
    def add_numbered(self, codes):
        first = max(self.model, default=-1) + 1
        if first >= 0:
            self.index.add(None, pack(codes))
            self.model.update({first + at: (code, {}) for at, code in enumerate(codes)})

    @rule(batch=BATCH)
    def upsert(self, batch):
        self.index.upsert(*self.arguments(batch))
        self.learn(batch)

    @rule(numbers=st.lists(NUMBERS, max_size=4))
    def remove(self, numbers):
        ids = [self.names[number] for number in numbers]
        if set(ids) <= set(self.model):
            self.index.remove(ids)
            for name in set(ids):
                del self.model[name]
        else:
            with pytest.raises(DataError):
                self.index.remove(ids)

    @rule(batch=BATCH)
    def refuse_a_batch_with_an_id_twice(self, batch):
        with pytest.raises(DataError):
            self.index.upsert(*self.arguments([*batch, batch[0]]))

    @rule(verify=st.booleans())
    def save_and_load(self, verify):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "index.mbx"
            if self.model:
                self.index.save(path)
                self.index = Index.load(path, verify=verify)
            else:
                with pytest.raises(DataError):
                    self.index.save(path)

    @rule(batch=BATCH, gone=NUMBERS, compact=st.booleans())
    def write_on_disk(self, batch, gone, compact):
        """A reader keeps what it opened, and sees all changes when it refreshes."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "index.mbx"
            if not self.model:
                return
            self.index.save(path)
            reader, self.index = Index.open(path), Index.open(path)
            before = [reader.ids[row] for row in range(len(reader))]
            with self.index.writer() as writer:
                if self.names[gone] in self.model:
                    writer.remove([self.names[gone]])
                    del self.model[self.names[gone]]
                writer.upsert(*self.arguments(batch))
                if compact:
                    writer.compact()
            self.learn(batch)
            assert [reader.ids[row] for row in range(len(reader))] == before
            assert reader.refresh()
            self.index = reader

    @rule()
    def compact(self):
        snapshot, before = self.index.snapshot(), list(self.model)
        self.index.compact()
        assert [snapshot.ids[row] for row in range(len(snapshot))] == before

    @rule(batch=BATCH, cut=NUMBERS)
    def split_and_merge(self, batch, cut):
        """Two parts of the current index and one of new items; the current one does not change."""
        items = list(self.model.items())
        new = [item for item in batch if self.names[item[0]] not in self.model]
        parts = []
        for some in (items[:cut], items[cut:], [(self.names[n], (code, load)) for n, code, load in new]):
            part = Index("model", self.engine)
            if some:
                part.add(
                    [name for name, _ in some], pack([code for _, (code, _) in some]), [load for _, (_, load) in some]
                )
            parts.append(part)
        before = self.index
        self.index = Index.merge(parts)
        assert len(before) == len(items)
        self.learn(new)

    @rule(
        queries=st.lists(CODE, min_size=1, max_size=2), k=st.integers(1, 15), bits=st.integers(1, WIDTH), data=st.data()
    )
    def search(self, queries, k, bits, data):
        limits = {"max_distance": data.draw(st.none() | st.integers(0, WIDTH))}
        if self.model:
            limits["among"] = data.draw(st.none() | st.lists(st.sampled_from(list(self.model))))
        limits["where"] = data.draw(
            st.none() | st.fixed_dictionaries({}, optional={"n": st.just(1), "tags": st.just("x")})
        )
        limits["fields"] = data.draw(st.none() | st.just(list(self.index.fields)))
        missing = set(limits["where"] or ()) - set(self.index.fields)
        if missing and self.model:
            assert not any(missing & set(payload) for _, payload in self.model.values())
            with pytest.raises(DataError):
                self.index.search(pack(queries), k, bits, **limits)
            return
        by_filter_alone = limits["where"] is not None and limits.get("among") is None  # named items need no engine
        if by_filter_alone and self.model and not ENGINES[self.engine].capabilities.filters:
            with pytest.raises(ConfigError):
                self.index.search(pack(queries), k, bits, **limits)
            return
        result = self.index.search(pack(queries), k, bits, threads=data.draw(st.sampled_from([1, 2, None])), **limits)
        for number, query in enumerate(queries):
            hits = [(hit.id, hit.distance, hit.payload) for hit in result.hits(number)]
            assert hits == self.expected(query, bits, **limits)[:k]

    @precondition(lambda self: self.model)
    @rule(queries=st.lists(CODE, min_size=1, max_size=5), k=st.integers(1, 15), block=st.integers(1, 3))
    def search_in_batches(self, queries, k, block):
        with mock.patch("multibit.search.batches.BLOCK", block):
            results = list(self.index.search_batches(pack(queries), k, threads=1))
        rows = [row for result in results for row in result.to_table().to_pylist()]
        for number, query in enumerate(queries):
            found = [(row["id"], row["distance"]) for row in rows if row["query"] == number]
            assert found == [hit[:2] for hit in self.expected(query, WIDTH, None, None, None)[:k]]
        ids = [row["id"] for row in rows]
        assert self.index.codes_of(ids) == pack([self.model[name][0] for name in ids])

    def expected(self, query, bits, max_distance, where, fields, among=None):
        found = []
        for name, (code, payload) in self.model.items():
            distance = ((query ^ code) & (2**bits - 1)).bit_count()
            wanted = all(
                value == payload.get(key) or value in listed(payload.get(key)) for key, value in (where or {}).items()
            )
            near = max_distance is None or distance <= max_distance
            if wanted and near and (among is None or name in among):
                found.append((name, distance, payload))
        return sorted(found, key=lambda hit: hit[1])  # stable: ties stay in row order

    @invariant()
    def equals_the_dictionary(self):
        rows = range(len(self.index))
        assert [self.index.ids[row] for row in rows] == list(self.model)
        assert [self.index.payloads[row] for row in rows] == [payload for _, payload in self.model.values()]
        assert (self.index.codes is None) == (not self.model)
        if self.model:
            assert self.index.codes == pack([code for code, _ in self.model.values()])


def listed(value):
    return value if isinstance(value, list) else []


@pytest.mark.slow
@pytest.mark.parametrize(  # an engine sees no ids, so each meets one kind of them
    ("engine", "kind"), list(zip([*ENGINES, "lists, always used"], itertools.cycle(NAMES), strict=False))
)
def test_an_index_equals_a_dictionary(engine, kind):
    name = engine.split(",")[0]
    if name == "faiss" and importlib.util.find_spec("faiss") is None:
        pytest.skip('faiss is not installed: pip install "multibit[faiss]"')
    with contextlib.ExitStack() as patches:
        if name != engine:
            patches.enter_context(mock.patch.object(lists, "SMALLEST", 1))
            patches.enter_context(mock.patch.object(lists, "WORTHWHILE", 1.0))
        run_state_machine_as_test(
            lambda: IndexMachine(kind, name), settings=settings(max_examples=20, stateful_step_count=20, deadline=None)
        )

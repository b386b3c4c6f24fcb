"""Both searches for the nearest codes, by counting and by tables, against a slow reference, whatever the processor."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from multibit.codes import Codes, compiling, kernels, table_kernels, vectors
from multibit.codes.compiling import compiled, has_instructions
from multibit.codes.distance import nearest, scan_of
from multibit.codes.vectors import GROUP, SEVERAL

needs_tables = pytest.mark.skipif(not has_instructions("avx2"), reason="this processor has no AVX2")
ROWS = [1, 31, 32, 33, 63, 64, 65, 255, 257, 511, 512, 513, 1537]
LENGTHS = [1, 3, 4, 5, 15, 16, 17, 64, 127, 128, 254]


@pytest.fixture(params=["words", pytest.param("tables", marks=needs_tables)])
def kernel(request, monkeypatch):
    """The search that is used."""
    monkeypatch.setattr(table_kernels, "is_faster", lambda: request.param == "tables")
    monkeypatch.setattr(table_kernels, "FEWEST", 1)
    return request.param


def slow(queries, rows, k, allowed=None, radius=None):
    """(row, distance) of the k nearest of each query, by a stable sort."""
    found = []
    for query in queries:
        distances = [int((query != row).sum()) for row in rows]
        order = sorted(range(len(rows)), key=distances.__getitem__)
        near = [
            row for row in order if (allowed is None or allowed[row]) and (radius is None or distances[row] <= radius)
        ]
        found.append([(row, distances[row]) for row in near[:k]])
    return found


def fast(queries, rows, k, **options):
    found = nearest(Codes.from_bits(queries), Codes.from_bits(rows), k, threads=1, **options)
    return [
        list(zip(row[:count].tolist(), distance[:count].tolist(), strict=True))
        for row, distance, count in zip(found.rows, found.distances, found.counts, strict=True)
    ]


def random_bits(items, length, seed):
    return np.random.default_rng(seed).integers(0, 2, (items, length), np.uint8)


@pytest.mark.parametrize("count", ROWS)
@pytest.mark.parametrize("length", LENGTHS)
def test_the_nearest_rows_are_those_of_a_stable_sort(kernel, count, length):
    rows, queries = random_bits(count, length, 1), random_bits(3, length, 2)
    expected = slow(queries, rows, count)
    for k in (1, 10, count):
        assert fast(queries, rows, k) == [found[:k] for found in expected]


@pytest.mark.parametrize("bits", [1, 6, 16, 37, 64])
def test_a_prefix_ignores_the_bits_past_it(kernel, bits):
    rows, queries = random_bits(700, 64, 3), random_bits(2, 64, 4)
    assert fast(queries, rows, 20, bits=bits) == slow(queries[:, :bits], rows[:, :bits], 20)


@pytest.mark.parametrize("count", [1, 63, 64, 65, 130])
def test_batches_of_queries_are_served_alike(kernel, count):
    rows, queries = random_bits(40, 24, 5), random_bits(count, 24, 6)
    assert fast(queries, rows, 4) == slow(queries, rows, 4)


def test_equal_codes_stay_in_row_order(kernel):
    rows = np.tile(random_bits(1, 40, 7), (1300, 1))
    assert fast(rows[:2], rows, 1200) == [[(row, 0) for row in range(1200)]] * 2


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_filters_and_radii_apply_before_the_ranking(kernel, data):
    length, count = data.draw(st.integers(1, 70)), data.draw(st.integers(1, 200))
    rows, queries = random_bits(count, length, 8), random_bits(2, length, 9)
    allowed = data.draw(st.none() | st.lists(st.booleans(), min_size=count, max_size=count).map(np.array))
    radius, k = data.draw(st.none() | st.integers(0, length + 1)), data.draw(st.integers(1, 30))
    assert fast(queries, rows, k, allowed=allowed, max_distance=radius) == slow(queries, rows, k, allowed, radius)


@pytest.mark.parametrize(("views", "length"), [(2, 32), (1, 255), (1, 300)])
def test_codes_that_tables_cannot_compare_are_counted(kernel, views, length, monkeypatch):
    monkeypatch.setattr(table_kernels, "nearest", None)
    bits = random_bits(6 * views, length, 10).reshape(6, views, length)
    codes = Codes.from_bits(bits if views > 1 else bits[:, 0])
    assert nearest(codes, codes, 1).rows.ravel().tolist() == list(range(6))


@needs_tables
def test_few_queries_are_counted_and_many_use_tables(monkeypatch):
    called = []
    monkeypatch.setattr(table_kernels, "is_faster", lambda: True)
    real = table_kernels.nearest
    monkeypatch.setattr(
        "multibit.codes.distance.run", lambda kernel, *_: called.append("tables" if kernel is real else "words")
    )
    codes = Codes.from_bits(random_bits(20, 32, 11))
    for count in (1, table_kernels.FEWEST - 1, table_kernels.FEWEST, 20):
        nearest(codes.take(np.arange(count)), codes, 1)
    assert called == ["words", "words", "tables", "tables"]


@pytest.mark.parametrize(
    ("features", "faster"),
    [
        ("+sse2,+popcnt", False),
        ("+avx2,+popcnt", True),
        ("+avx2,-avx512bitalg", True),
        ("+avx2,+avx512bitalg,+avx512f", False),
        ("", False),
    ],
)
def test_tables_are_for_processors_with_avx2_and_without_a_count_of_ones(features, faster, monkeypatch):
    codegen = SimpleNamespace(magic_tuple=lambda: ("x86_64", "some processor", features))
    target = SimpleNamespace(target_context=SimpleNamespace(codegen=lambda: codegen))
    monkeypatch.setattr(compiling, "cpu_target", target)
    assert table_kernels.is_faster() is faster


@needs_tables
def test_the_bare_distances_count_the_rows_at_distance_zero():
    codes = Codes.from_bits(random_bits(2000, 64, 12))
    scan = scan_of(codes.take([3, 700]), codes, 64)
    asked = table_kernels.nibbles_of(scan.queries, 64)
    assert table_kernels.bare_distances(0, 2, scan, asked) == 2 == kernels.bare_distances(0, 2, scan)


@compiled
def mask_below(values, start, limit):
    return vectors.below(values, start, limit), vectors.any_below(values, start, limit)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("limit", [0, 1, 7, 250, 255])
def test_each_bit_of_the_mask_tells_whether_a_value_is_below_the_limit(dtype, limit):
    values = np.random.default_rng(13).integers(0, 256, 2 * SEVERAL).astype(dtype)
    for start in (0, 5, SEVERAL):
        mask, some = mask_below(values, start, limit)
        assert [int(mask) >> i & 1 for i in range(GROUP)] == (values[start : start + GROUP] < limit).astype(
            int
        ).tolist()
        assert bool(some) == (values[start : start + SEVERAL] < limit).any()


def test_one_value_below_the_limit_is_seen_wherever_it_is():
    for at in range(SEVERAL):
        values = np.full(SEVERAL, 9, np.uint16)
        values[at] = 8
        mask, some = mask_below(values, 0, 9)
        assert some and bool(mask) == (at < GROUP)

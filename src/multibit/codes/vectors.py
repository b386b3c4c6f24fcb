"""Vector instructions that a compiled loop does not reach: intrinsics of the kernels, written as LLVM code.

`split_words` and `block_distances` are for processors with AVX2; the others are compiled for any processor.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

GROUP = 64  # rows whose comparison with a limit is one word
SEVERAL = 4 * GROUP  # rows that are skipped together when none of them is near enough
LANES = 32  # bytes of a vector of AVX2
BLOCK = 8 * LANES  # rows whose distances stay in registers
NIBBLES = 4  # of a word of 16 bits

_instruction: Any = intrinsic  # numba passes the context to what it decorates
_BYTE, _WORD, _LONG = ir.IntType(8), ir.IntType(16), ir.IntType(64)

TABLES = np.array([[(a ^ b).bit_count() for a in range(16)] for b in range(16)], np.uint8)
"""(16, 16) uint8, number of different bits of two nibbles."""


def _data(context: Any, builder: Any, kind: Any, array: Any, offset: Any, element: Any) -> Any:
    """Pointer to an element of a contiguous array, as a pointer to `element`."""
    base = builder.bitcast(context.make_array(kind)(context, builder, array).data, _BYTE.as_pointer())
    width = ir.Constant(_LONG, kind.dtype.bitwidth // 8)
    return builder.bitcast(builder.gep(base, [builder.mul(offset, width)]), element.as_pointer())


def _function(builder: Any, name: str, result: Any, arguments: list[Any]) -> Any:
    """A function of LLVM, declared once in a module."""
    known = builder.module.globals.get(name)
    return known or ir.Function(builder.module, ir.FunctionType(result, arguments), name)


def _same(vector: Any, value: int) -> Any:
    return ir.Constant(vector, [value] * vector.count)


@_instruction
def ones(_context: Any, word: Any) -> Any:
    """Number of ones in an unsigned word, as one machine instruction where there is one."""

    def emit(_: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return word(word), emit


@_instruction
def lowest(_context: Any, word: Any) -> Any:
    """Position of the lowest one in a word that has one."""

    def emit(_: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(word), emit


def _mask_below(groups: int) -> Any:
    """Emits the masks of some consecutive groups of values below a limit, joined by "or"."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, start, limit = arguments
        vector = ir.VectorType(ir.IntType(signature.args[0].dtype.bitwidth), GROUP)
        undefined, lanes = ir.Constant(vector, ir.Undefined), ir.VectorType(ir.IntType(32), GROUP)
        first = builder.insert_element(undefined, limit, ir.Constant(ir.IntType(32), 0))
        limits, masks = builder.shuffle_vector(first, undefined, _same(lanes, 0)), []
        for n in range(groups):
            offset = builder.add(start, ir.Constant(_LONG, n * GROUP))
            values = builder.load(_data(context, builder, signature.args[0], array, offset, vector), align=1)
            masks.append(builder.icmp_unsigned("<", values, limits))
        return builder.bitcast(functools.reduce(builder.or_, masks), _LONG)

    return emit


@_instruction
def below(_context: Any, values: Any, start: Any, limit: Any) -> Any:
    """One bit for each of `GROUP` unsigned values from `start` on: whether it is below the limit."""
    return types.uint64(values, types.int64, values.dtype), _mask_below(1)


@_instruction
def any_below(_context: Any, values: Any, start: Any, limit: Any) -> Any:
    """A word that is not zero if one of `SEVERAL` unsigned values from `start` on is below the limit."""
    return types.uint64(values, types.int64, values.dtype), _mask_below(SEVERAL // GROUP)


@_instruction
def split_words(_context: Any, planes: Any, w: Any, row: Any, nibbles: Any, at: Any) -> Any:
    """The four nibbles of `LANES` rows of a word, lowest first, into nibbles[4 w : 4 w + 4, at : at + LANES]."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, word, first, out, place = arguments
        width, columns = (_columns(context, builder, signature.args[i], arguments[i]) for i in (0, 3))
        words, vector = ir.VectorType(_WORD, LANES), ir.VectorType(_BYTE, LANES)
        offset = builder.add(builder.mul(word, width), first)
        read = builder.load(_data(context, builder, signature.args[0], array, offset, words), align=1)
        low = builder.trunc(read, vector)
        high = builder.trunc(builder.lshr(read, _same(words, 8)), vector)
        line = builder.mul(word, ir.Constant(_LONG, NIBBLES))
        for n, byte in enumerate((low, low, high, high)):
            part = builder.lshr(byte, _same(vector, 4)) if n % 2 else builder.and_(byte, _same(vector, 15))
            target = builder.add(builder.mul(builder.add(line, ir.Constant(_LONG, n)), columns), place)
            builder.store(part, _data(context, builder, signature.args[3], out, target, vector), align=1)
        return context.get_dummy_value()

    return types.void(planes, types.int64, types.int64, nibbles, types.int64), emit


@_instruction
def block_distances(_context: Any, nibbles: Any, at: Any, tables: Any, queries: Any, q: Any, distances: Any) -> Any:
    """Distances of query q to `BLOCK` rows, into distances[at : at + BLOCK]; returns the smallest.

    For each nibble, one shuffle looks up the number of different bits of 32 rows: an instruction of AVX2. The sums stay
    in eight registers of bytes.

    Args:
        nibbles: (P or more, columns) uint8, as `split_words` writes them. tables: `TABLES`.
        queries: (Q, P) uint8 nibbles.
    """

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        planes, first, lookup, asked, query, out = arguments
        kinds = signature.args
        vector, half = ir.VectorType(_BYTE, LANES), ir.VectorType(_BYTE, LANES // 2)
        twice = ir.Constant(ir.VectorType(ir.IntType(32), LANES), list(range(LANES // 2)) * 2)
        shuffle = _function(builder, "llvm.x86.avx2.pshuf.b", vector, [vector, vector])
        columns, count = (_columns(context, builder, kinds[i], arguments[i]) for i in (0, 3))
        query_start = builder.mul(query, count)
        before, loop, after = builder.block, builder.append_basic_block("nibbles"), builder.append_basic_block("sums")
        builder.branch(loop)
        builder.position_at_end(loop)
        p = builder.phi(_LONG)
        p.add_incoming(ir.Constant(_LONG, 0), before)
        sums = [builder.phi(vector) for _ in range(BLOCK // LANES)]
        nibble = builder.load(_data(context, builder, kinds[3], asked, builder.add(query_start, p), _BYTE))
        line = builder.mul(builder.zext(nibble, _LONG), ir.Constant(_LONG, LANES // 2))
        table = builder.load(_data(context, builder, kinds[2], lookup, line, half), align=1)
        table = builder.shuffle_vector(table, ir.Constant(half, ir.Undefined), twice)
        row, added = builder.add(builder.mul(p, columns), first), []
        for n, total in enumerate(sums):
            offset = builder.add(row, ir.Constant(_LONG, n * LANES))
            index = builder.load(_data(context, builder, kinds[0], planes, offset, vector), align=1)
            added.append(builder.add(total, builder.call(shuffle, [table, index])))
            total.add_incoming(_same(vector, 0), before)
            total.add_incoming(added[-1], loop)
        following = builder.add(p, ir.Constant(_LONG, 1))
        p.add_incoming(following, loop)
        builder.cbranch(builder.icmp_signed("<", following, count), loop, after)
        builder.position_at_end(after)
        least = added[0]
        for n, total in enumerate(added):
            offset = builder.add(first, ir.Constant(_LONG, n * LANES))
            builder.store(total, _data(context, builder, kinds[5], out, offset, vector), align=1)
            least = builder.select(builder.icmp_unsigned("<", total, least), total, least)
        return builder.call(_function(builder, "llvm.vector.reduce.umin.v32i8", _BYTE, [vector]), [least])

    return types.uint8(nibbles, types.int64, tables, queries, types.int64, distances), emit


def _columns(context: Any, builder: Any, kind: Any, array: Any) -> Any:
    """Number of columns of a matrix."""
    shape = context.make_array(kind)(context, builder, array).shape
    return builder.extract_value(shape, 1)

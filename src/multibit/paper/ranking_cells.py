"""Cells about rankings: resolution, quantisation, and agreement of the code lengths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from multibit.arrays import FloatArray, mean_of
from multibit.codes import hamming_distances
from multibit.codes.items import DIRECTIONS, MIDDLE, Direction, length_near
from multibit.errors import DataError
from multibit.evaluation.agreement import Quantization, quantization, rank_displacement, ranking_agreement
from multibit.evaluation.metric import COLLISION, INVERSION, NDCG, TAU_B
from multibit.evaluation.resolution import kendall_tau, pair_order
from multibit.evaluation.strata import Stratum, no_shared_label
from multibit.paper.accuracy_cells import MULTIBIT, NAIVE_PREFIX, SEPARATE
from multibit.paper.cells import AtLength, Cells, Design, Length, LengthAgreementTau, Named, Quantity, Searching
from multibit.paper.reproduction import Reproduction

PANEL_QUERIES, PANEL_CANDIDATES = 5, 500  # of the rank displacement panels

SHORT_NAMES = {NDCG: "N", TAU_B: "tau-b", COLLISION: "C", INVERSION: "I"}
RESOLUTION = {metric: Quantity(name, larger_is_better=metric.larger_is_better) for metric, name in SHORT_NAMES.items()}
"""Metric -> its column."""

STRATUM_NDCG, PAIRS = Quantity("NDCG@100"), Quantity("pairs", ".0f")
DEVIATION, SIGN_TAU = Quantity("deviation", ".4f"), Quantity("tau-b", ".4f")
TIED_PAIRS, CEILING, TAU, GAP = Quantity("S(B)"), Quantity("ceiling"), Quantity("tau-b"), Quantity("gap")
DISPLACEMENT, TAU_DEVIATION = Quantity("mean |change|", larger_is_better=False), Quantity("tau-b deviation")

ORDER_QUERIES, ORDER_CANDIDATES = 200, 2_000  # whose order by the teacher is compared with that by the codes
SOFT, BINARY = Quantity("soft %", ".1f"), Quantity("binary %", ".1f")
COMPARED = 500  # queries that are ranked by the relaxed and by the binary codes

WITHOUT_MPA = Design("MultiBit without MPA", "frt-sbo")
AGREEING = (NAIVE_PREFIX, SEPARATE, WITHOUT_MPA, MULTIBIT)


def resolution(reference: str) -> Callable[[Reproduction, int], Cells[float]]:
    """Resolution under "IDF" (`tab:resolution-multilength`) or "label names" (`tab:resolution-semantic`)."""

    def measure(r: Reproduction, seed: int) -> Cells[float]:
        if reference not in r.references:
            _ = r.semantic  # raises the reason
        cells: Cells[float] = Cells()
        for design in r.designs((NAIVE_PREFIX, MULTIBIT)):
            found = r.evaluation(design.method, seed, graded=True)
            for bits in [b for b in found.lengths if b <= MIDDLE] or found.lengths:
                for metric, quantity in RESOLUTION.items():
                    value = found.mean_of_directions(metric.under(reference), bits)
                    cells[design, AtLength(quantity, bits)] = value
        return cells

    return measure


def evaluator_agreement(r: Reproduction, seed: int) -> Cells[float]:
    """Tau-b between the two evaluators on the candidate pools of the full model (below Table `tab:resolution-semantic`).

    The pool of a query is the full model's first ranks; the mean is over the queries and both directions.
    """  # noqa: E501 - the table's name
    run, bits = r.run("multibit", seed), length_near(r.config.lengths)
    query, database = r.codes(run, "query"), r.codes(run, "database")
    sides = [(e.vectors(query.labels)[0], e.vectors(database.labels)[1]) for e in (r.idf, r.semantic)]
    taus = []
    for direction in DIRECTIONS:
        for q, pool in enumerate(r.rankings(run, "database", [bits])[direction, bits].first.rows):
            idf, names = (np.round(asked[q] @ items[pool].T, 10) for asked, items in sides)
            taus.append(pair_order(idf, -names).tau)
    return Cells({(Named("IDF and label names"), TAU): float(np.mean(taus))})


def order_preservation(r: Reproduction, seed: int) -> Cells[float]:
    """Share of the pairs that g* orders and that the codes order alike (`eq:order-preservation`), in percent."""
    run, rng = r.run("multibit", seed), np.random.RandomState(42)
    asked = rng.permutation(len(r.split.query))[:ORDER_QUERIES]
    rows = np.sort(rng.permutation(len(r.split.database))[:ORDER_CANDIDATES])
    query, database = r.codes(run, "query").take(asked), r.codes(run, "database").take(rows)
    relevance = np.round(r.teacher("multibit", seed).scores(query.labels, database.labels), 10)
    cells: Cells[float] = Cells()
    for column in (SOFT, BINARY):
        for direction, (left, right) in DIRECTIONS.items():
            for bits in r.config.lengths:
                hard = hamming_distances(query.codes(left), database.codes(right), bits)
                soft = bits - np.float64(query.relaxed[left][:, :bits]) @ database.relaxed[right][:, :bits].T
                orders = map(pair_order, relevance, soft if column is SOFT else hard)
                kept = [1 - order.collision - order.inversion for order in orders]
                cells[Searching(direction), AtLength(column, bits)] = 100 * mean_of(kept)
    return cells


def resolution_strata(r: Reproduction, seed: int) -> Cells[float]:
    """NDCG@100 of pairs that share no label (Table `tab:resolution-noshared`)."""
    cells: Cells[float] = Cells()
    for design in reversed(r.designs([MULTIBIT])):  # the full model first
        column = STRATUM_NDCG if design == MULTIBIT else replace(STRATUM_NDCG, name=f"{STRATUM_NDCG} {design}")
        for strata in zip(*_strata_of(r, design.method, seed), strict=True):
            row = Named(strata[0].name)
            cells[row, column] = float(np.mean([mean_of(each.values) for each in strata]))
            if design == MULTIBIT:
                cells[row, PAIRS] = float(strata[0].pairs)
    return cells


def _strata_of(r: Reproduction, method: str, seed: int) -> list[tuple[Stratum, Stratum]]:
    run, bits = r.run(method, seed), length_near(r.config.lengths)
    query, database = r.codes(run, "query").at(bits), r.codes(run, "database").at(bits)
    sides = [(query.codes(asked), database.codes(searched)) for asked, searched in DIRECTIONS.values()]
    return no_shared_label(sides, query.labels, database.labels, r.semantic, r.graph.weights, bits)


def scale_boundary(r: Reproduction, seed: int) -> Cells[float]:
    """Resolution at the ends of the blocks (Table `tab:scale-boundary`)."""
    ends = np.cumsum(r.run("multibit", seed).model.blocks).tolist()
    lengths = sorted({bits for bits in (MIDDLE, *ends) if bits <= r.config.code_bits})
    found = r.evaluation("multibit", seed, lengths, graded=True)
    return Cells(
        {
            (Length(bits), quantity): found.mean_of_directions(metric.under("IDF"), bits)
            for bits in lengths
            for metric, quantity in RESOLUTION.items()
        }
    )


def sign_statistics(r: Reproduction, seed: int) -> Cells[float]:
    """The loss of taking the sign of the relaxed code (Table `tab:quantization`)."""
    cells: Cells[float] = Cells()
    for direction in DIRECTIONS:
        found = {bits: _quantized(r, seed, direction, bits) for bits in r.config.lengths}
        row = Searching(direction)
        cells |= {(row, AtLength(DEVIATION, bits)): each.deviation for bits, each in found.items()}
        cells |= {(row, AtLength(SIGN_TAU, bits)): float(each.tau.mean()) for bits, each in found.items()}
    return cells


def tie_ceiling(r: Reproduction, seed: int) -> Cells[float]:
    """The largest tau-b that ties allow, image-to-text (Table `tab:tie-ceiling`)."""
    cells: Cells[float] = Cells()
    for bits in r.config.lengths:
        each = _quantized(r, seed, "i2t", bits)
        columns = {TIED_PAIRS: each.ties, CEILING: each.ceiling, TAU: float(each.tau.mean()), GAP: each.gap}
        cells |= {(Length(bits), column): value for column, value in columns.items()}
    return cells


def _quantized(r: Reproduction, seed: int, direction: Direction, bits: int) -> Quantization:
    run = r.run("multibit", seed)
    make = partial(quantization, r.codes(run, "query"), r.codes(run, "database"), direction, bits, COMPARED)
    return r.remember(("quantization", seed, direction, bits), make)


def cross_length_agreement(r: Reproduction, seed: int) -> Cells[float]:
    """Tau-b between lengths (Table `tab:cross-length-agreement-complete`)."""
    far = min(r.config.lengths), max(r.config.lengths)
    cells: Cells[float] = Cells()
    for design in r.designs(AGREEING, nested_only=True):
        taus = {direction: _agreement_of(r, design.method, seed, direction) for direction in DIRECTIONS}
        cells |= {(design, LengthAgreementTau(direction, far)): taus[direction][far] for direction in DIRECTIONS}
        cells |= {
            (design, LengthAgreementTau(direction)): float(np.mean(list(taus[direction].values())))
            for direction in DIRECTIONS
        }
    return cells


def _agreement_of(r: Reproduction, method: str, seed: int, direction: Direction) -> dict[tuple[int, int], float]:
    """Mean tau-b of every pair of lengths; each length is ranked by the model that serves it."""
    asked, searched = DIRECTIONS[direction]
    run, sides = r.run(method, seed), {}
    for bits in r.config.lengths:
        sides[bits] = r.codes(run, "query").at(bits).codes(asked), r.codes(run, "database").at(bits).codes(searched)
    return {pair.lengths: float(pair.tau.mean()) for pair in ranking_agreement(sides)}


@dataclass(frozen=True, eq=False)
class Displacement:
    """How the ranking of a sample of texts changes from the shortest to the longest length, for a few image queries.

    Attributes:
        design: that made the codes. lengths: the shortest and the longest.
        rank: (queries, items) normalised rank at the shortest. moved: (queries, items) its change at the longest.
        tau: (queries,) tau-b of the two rankings.
    """

    design: Design
    lengths: tuple[int, int]
    rank: FloatArray
    moved: FloatArray
    tau: FloatArray


def displacements(r: Reproduction, seed: int) -> list[Displacement]:
    """The rank displacement of five queries and 500 candidates, of Naive Prefix and of the full model.

    Raises:
        DataError: there is only one length.
    """
    return [_displacement(r, seed, design) for design in (NAIVE_PREFIX, MULTIBIT)]


def _displacement(r: Reproduction, seed: int, design: Design) -> Displacement:
    short, long = min(r.config.lengths), max(r.config.lengths)
    if short == long:
        raise DataError(f"need two or more code lengths, got {long} only.", field="lengths")
    run = r.run(design.method, seed)
    rng = np.random.RandomState(42)
    asked = r.codes(run, "query").image.take(rng.permutation(len(r.split.query))[:PANEL_QUERIES])
    rows = np.sort(rng.permutation(len(r.split.database))[:PANEL_CANDIDATES])
    items = r.codes(run, "database").text.take(rows)
    before, after = hamming_distances(asked, items, short), hamming_distances(asked, items, long)
    rank = np.argsort(np.argsort(before, axis=1, kind="stable"), axis=1) / max(len(rows) - 1, 1)
    moved = np.stack([rank_displacement(a, b) for a, b in zip(before, after, strict=True)])
    tau = np.array([kendall_tau(a, b) for a, b in zip(before, after, strict=True)])
    return Displacement(design, (short, long), rank, moved, tau)


def sampled_displacement(r: Reproduction, seed: int) -> Cells[float]:
    """Statistics of the displacement panels (Table `tab:rank-displacement-sample`)."""
    cells: Cells[float] = Cells()
    for each in displacements(r, seed):
        cells[each.design, TAU] = float(each.tau.mean())
        cells[each.design, TAU_DEVIATION] = float(each.tau.std(ddof=1)) if len(each.tau) > 1 else 0.0
        cells[each.design, DISPLACEMENT] = float(np.abs(each.moved).mean())
    return cells

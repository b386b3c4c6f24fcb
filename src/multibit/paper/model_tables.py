"""The tables of the paper that need trained models: what each one measures, and its claims."""

from __future__ import annotations

from multibit.hashing.methods import METHODS, find_method
from multibit.paper import accuracy_cells as accuracy
from multibit.paper import ranking_cells as ranking
from multibit.paper.accuracy_cells import ABLATION, MULTIBIT, NAIVE_PREFIX, SEPARATE
from multibit.paper.cells import AtLength, Cells, Column, Design, LengthAgreementTau
from multibit.paper.claims import (
    Claim,
    among,
    best_in,
    best_row,
    better,
    between,
    both_in_words,
    improving,
    in_words,
    largest,
    monotone,
    peak,
    peak_at,
    rising,
    span,
    wins_in_words,
)
from multibit.paper.comparison import lay_out_comparison
from multibit.paper.outcome import Entry
from multibit.paper.ranking_cells import WITHOUT_MPA
from multibit.paper.reproduction import Reproduction


def _how_compared(r: Reproduction, cells: Cells[float], printed: Cells[float]) -> str:
    """How to read the rows of the compared methods, where there are any."""
    if not r.compared:
        return ""
    variants = [find_method(name).title for name in r.compared if find_method(name).variant_of]
    stands = f" {', '.join(variants)}: variants, next to the paper's value of the method itself." if variants else ""
    return (
        "Every method was trained here on the same frozen features and split, for the same epochs, and is shown at its "
        "best epoch on validation data. Best bold, second underlined, among the binary codes of each direction. * a "
        "paired test finds MultiBit better (p < 0.05), + the other method. float: ranked by the cosine of real-valued "
        f"features.{stands} Claims are about the methods that the paper compares."
    )


def _is_map(column: Column) -> bool:
    return isinstance(column, AtLength) and column.quantity == accuracy.MEAN_MAP


def _mean_map(bits: int) -> AtLength:
    return AtLength(accuracy.MEAN_MAP, bits)


def _last_64_bits(cells: Cells[float]) -> tuple[float, float]:
    """Gain from 64 to 128 bits of the full model and of the baseline."""
    baseline, *_, full = ABLATION
    gains = [cells[row, _mean_map(128)] - cells[row, _mean_map(64)] for row in (full, baseline)]
    return gains[0], gains[1]


def _steps(cells: Cells[float]) -> tuple[float, float]:
    """Gain of SBO and of MPA at 128 bits."""
    _, frt, sbo, full = (cells[row, _mean_map(128)] for row in ABLATION)
    return sbo - frt, full - sbo


def _margins(cells: Cells[float]) -> tuple[float, float]:
    """Mean margin of FRT over the strongest other teacher at the two shorter and at the two longer lengths."""
    measured = [row for row in cells.rows if row in accuracy.TRANSFER]  # the paper has UKM on one dataset only
    others = [row for row in measured if row != accuracy.FULL_FRT]
    margin = [
        cells[accuracy.FULL_FRT, _mean_map(bits)] - max(cells[row, _mean_map(bits)] for row in others)
        for bits in (16, 32, 64, 128)
    ]
    return sum(margin[:2]) / 2, sum(margin[2:]) / 2


def _uniform_cost(cells: Cells[float]) -> list[float]:
    """What equal weights lose against the fractional ones, by length."""
    ukm = next(row for row in accuracy.TRANSFER if str(row) == "UKM")
    return [cells[accuracy.FULL_FRT, column] - cells[ukm, column] for column in cells.columns]


def _without_alignment(cells: Cells[float]) -> dict[LengthAgreementTau, float]:
    """What MPA adds to the image-to-text agreement: over all pairs of lengths and over the two that are farthest."""
    columns = [c for c in cells.columns if isinstance(c, LengthAgreementTau) and c.direction == "i2t"]
    return {column: cells[MULTIBIT, column] - cells[WITHOUT_MPA, column] for column in columns}


def _of_all_pairs(gains: dict[LengthAgreementTau, float]) -> float:
    return next(value for column, value in gains.items() if column.lengths is None)


def _standard_rows(r: Reproduction, cells: Cells[float], printed: Cells[float]) -> str:
    """The rows whose objective has the standard term."""
    designs = [row for row in cells.rows if isinstance(row, Design)]
    names = [str(row) for row in designs if METHODS[row.method].settings.get("standard_weight")]
    return f"Rows with the standard objective, all with the same quantisation weight: {', '.join(names)}."


def _at_length(column: Column) -> bool:
    return isinstance(column, AtLength)


QUANTIZATION_WEIGHT = (
    "The paper does not give the weight of the standard objective's quantisation term. It was chosen on validation "
    "data of the sample (50 epochs, one seed): validation mean mAP of the baseline .517 at 0, .516 at .001, .483 at "
    ".01, .410 at .03 and .178 at .1; of + FRT .632, .627, .667, .644 and .624."
)
SIZES = (
    "Hidden width 1,280 gives 2.69 M parameters, where the paper says 2.71 M; no single width fits all of the paper's "
    "sizes."
)
_RESOLUTION_CLAIMS = (
    Claim("MultiBit is above Naive Prefix on every metric", better(MULTIBIT, NAIVE_PREFIX)),
    Claim("MultiBit is the best of all methods on every metric", best_row(MULTIBIT)),
)
_POOLS = "Mean of both directions and all queries; pools shared with the full model."
_FIRST_QUERIES = f"tau-b of at most the first {ranking.COMPARED} queries on the whole database."

MODEL_TABLES = (
    Entry(
        "main-comparison",
        "mAP@all in percent",
        "tab:sota-comparison",
        accuracy.main_comparison,
        claims=(
            *(
                Claim(f"MultiBit is the best in {best} of 8 settings", best_in(best), _is_map, wins_in_words, datasets)
                for best, datasets in ((6, ("mirflickr", "iapr")), (4, ("coco", "nuswide")))
            ),
            Claim(
                "MultiBit is the best in two thirds of the settings (16 of 24)",
                best_in(2 / 3),
                _is_map,
                wins_in_words,
                (None,),
            ),
        ),
        note="In parentheses: the paper.",
        remark=_how_compared,
        layout=lay_out_comparison,
    ),
    Entry(
        "component-ablation",
        "Component ablation, mean mAP in percent",
        "tab:component-ablation",
        accuracy.component_ablation,
        claims=(
            Claim("every component gains at every length", rising(ABLATION)),
            Claim(
                "MPA adds less than SBO at 128 bits",
                lambda cells: _steps(cells)[1] < _steps(cells)[0],
                found=both_in_words("+.3f", _steps),
            ),
            Claim(
                "the last 64 bits gain more with the full model than with the baseline",
                lambda cells: _last_64_bits(cells)[0] > _last_64_bits(cells)[1],
                found=both_in_words("+.2f", _last_64_bits),
            ),
        ),
        remark=_standard_rows,
        note=QUANTIZATION_WEIGHT,
    ),
    Entry(
        "teacher-transfer",
        "Relation teachers, mean mAP in percent",
        "tab:teacher-transfer",
        accuracy.teacher_transfer,
        claims=(
            Claim("FRT is the best teacher at every length", largest(accuracy.FULL_FRT, accuracy.TRANSFER)),
            Claim(
                "FRT is the best teacher at every length where the scale loss follows the other teacher too",
                largest(accuracy.FULL_FRT, (accuracy.FULL_FRT, *accuracy.OWN_SCALES)),
            ),
            Claim(
                "the margin of FRT over the strongest other teacher is larger at 64 and 128 bits than at 16 and 32",
                lambda cells: _margins(cells)[0] < _margins(cells)[1],
                found=both_in_words("+.2f", _margins),
            ),
            Claim(
                "equal weights cost more the longer the code",
                lambda cells: sorted(_uniform_cost(cells)) == _uniform_cost(cells),
                found=lambda cells: "/".join(f"{value:.3f}" for value in _uniform_cost(cells)),
                datasets=("mirflickr", None),
            ),
        ),
        remark=_standard_rows,
        note="An alternative teacher replaces g* only: the scale loss keeps the heat teachers of the bit budget. In "
        'rows that end in "no scale loss" or "own scale loss" the scale loss follows the alternative too, or is off '
        f"where it has no scales. UMH and the learned weights have the nodes of alpha {accuracy.UNIFORM_ALPHA}, UKM "
        "those of the bit budget, so that both readings of it are one model. The paper prints one row for both "
        "readings, shown at the first.",
    ),
    Entry(
        "query-gain",
        "Query-level gain of the full model",
        "tab:query-level-gain",
        accuracy.query_gain,
        claims=(
            Claim(
                "the mean gain is positive against every design",
                lambda cells: all(value > 0 for value in cells.values()),
                about=among(accuracy.MEAN_GAIN),
                found=span(2),
            ),
            Claim(
                "43.5 % to 70.1 % of the queries improve",
                between(43.5, 70.1, 1),
                about=among(accuracy.IMPROVED),
                found=span(1),
            ),
            Claim(
                "47.5 % to 63.7 % of the queries improve over uniform bits",
                lambda cells: 47.5 <= round(cells[accuracy.UNIFORM_BITS, accuracy.IMPROVED], 1) <= 63.7,
                about=among(accuracy.IMPROVED),
                found=in_words(".1f", lambda cells: cells[accuracy.UNIFORM_BITS, accuracy.IMPROVED]),
            ),
            Claim(
                "the mean gain is 0.03 to 1.18 points",
                between(0.03, 1.18, 2),
                about=among(accuracy.MEAN_GAIN),
                found=span(2),
            ),
        ),
        note=f"{{bits}} bits, image-to-text; at most {accuracy.GAIN_CANDIDATES} candidates and "
        f"{accuracy.GAIN_QUERIES:,} queries, seed 42.",
        of_lengths=True,
    ),
    Entry(
        "resolution-idf",
        "Relevance resolution, IDF-weighted evaluator",
        "tab:resolution-multilength",
        ranking.resolution("IDF"),
        claims=_RESOLUTION_CLAIMS,
        note=_POOLS,
    ),
    Entry(
        "resolution-label-names",
        "Relevance resolution, label-name evaluator",
        "tab:resolution-semantic",
        ranking.resolution("label names"),
        claims=_RESOLUTION_CLAIMS,
        note=_POOLS,
        by_label_names=lambda column: True,
    ),
    Entry(
        "evaluator-agreement",
        "Agreement of the two evaluators, tau-b",
        "tab:resolution-semantic",
        ranking.evaluator_agreement,
        note="On the first 100 candidates of the full model at {bits} bits, mean of both directions and all queries. "
        "The paper does not say at which length.",
        of_lengths=True,
        by_label_names=lambda column: True,
    ),
    Entry(
        "resolution-strata",
        "Pairs that share no label, label-name evaluator",
        "tab:resolution-noshared",
        ranking.resolution_strata,
        note="{bits} bits, mean of both directions.",
        of_lengths=True,
        by_label_names=lambda column: column != ranking.PAIRS,
    ),
    Entry(
        "scale-boundary",
        "Resolution at the scale boundaries, IDF-weighted evaluator",
        "tab:scale-boundary",
        ranking.scale_boundary,
        claims=(Claim("resolution improves with every boundary", improving),),
    ),
    Entry(
        "quantization",
        "Quantisation statistics",
        "tab:quantization",
        ranking.sign_statistics,
        claims=(
            Claim(
                "the deviation is 0.0168 to 0.0380",
                between(0.0168, 0.0380, 4),
                about=lambda column: getattr(column, "quantity", None) == ranking.DEVIATION,
                found=span(4),
            ),
            Claim(
                "tau-b of the soft and the binary ranking is 0.896 to 0.964",
                between(0.896, 0.964, 3),
                about=lambda column: getattr(column, "quantity", None) == ranking.SIGN_TAU,
                found=span(3),
            ),
            Claim("deviation and tau-b grow with the code length", monotone(rises=True), about=_at_length),
        ),
        note=f"Deviation of all queries and the whole database; {_FIRST_QUERIES}",
    ),
    Entry(
        "tie-ceiling",
        "Ceiling of tau-b set by ties",
        "tab:tie-ceiling",
        ranking.tie_ceiling,
        claims=(
            Claim(
                "tau-b stays within 0.011 of the ceiling",
                lambda cells: all(value <= 0.011 for value in cells.values()),
                about=among(ranking.GAP),
                found=span(3),
            ),
        ),
        note=f"Image-to-text, {_FIRST_QUERIES[:-1]}, ties of the same.",
    ),
    Entry(
        "order-preservation",
        "Pairs that the codes order as g* does, in percent",
        "eq:order-preservation",
        ranking.order_preservation,
        note="Of the pairs of candidates with different g*, the share in which the higher one is strictly nearer, by "
        f"the relaxed (soft) and the binary code; at most {ranking.ORDER_QUERIES} queries and "
        f"{ranking.ORDER_CANDIDATES:,} database items drawn with seed 42. The paper states the property for a "
        "vanishing loss and prints no share.",
    ),
    Entry(
        "sensitivity",
        "Validation mean mAP in percent at {bits} bits",
        "tab:parameter-sensitivity-grid",
        accuracy.sensitivity,
        claims=tuple(
            Claim(
                f"the grid peaks at eta 0.20 and alpha {alpha:.2f}",
                peak_at(0.2, alpha),
                found=lambda cells: " and ".join(map(str, peak(cells))),
                datasets=datasets,
            )
            for alpha, datasets in ((1.2, ("mirflickr",)), (0.9, ("iapr", "coco", "nuswide", None)))
        ),
        of_lengths=True,
    ),
    Entry(
        "multi-length-cost",
        "Serving all lengths: mean mAP in percent, and cost",
        "tab:multi-length-cost",
        accuracy.multi_length_cost,
        claims=(
            Claim(
                "one nested model is above the separate ones at every length",
                lambda cells: all(cells[MULTIBIT, c] > cells[SEPARATE, c] for c in cells.columns),
                about=_at_length,
            ),
            Claim(
                "one nested model has the highest mean over the lengths",
                largest(MULTIBIT),
                about=among(accuracy.MEAN_OF_LENGTHS),
                found=in_words(".2f", lambda cells: cells[MULTIBIT, accuracy.MEAN_OF_LENGTHS]),
            ),
            Claim(
                "one nested model saves about 74 % of the model storage",
                lambda cells: abs(cells[MULTIBIT, accuracy.MODEL_SAVED] - 74) < 1,
                about=among(accuracy.MODEL_SAVED),
                found=in_words(".1f", lambda cells: cells[MULTIBIT, accuracy.MODEL_SAVED]),
            ),
            Claim(
                "one nested model saves about 47 % of the code storage",
                lambda cells: abs(cells[MULTIBIT, accuracy.CODE_SAVED] - 47) < 1,
                about=among(accuracy.CODE_SAVED),
                found=in_words(".1f", lambda cells: cells[MULTIBIT, accuracy.CODE_SAVED]),
            ),
        ),
        note=f"Times on this machine, in a batch; query ms is coding and ranking at {{bits}} bits, 100 hits. {SIZES}",
        of_lengths=True,
    ),
    Entry(
        "cross-length-agreement",
        "Cross-length ranking agreement, tau-b",
        "tab:cross-length-agreement-complete",
        ranking.cross_length_agreement,
        claims=(
            Claim("MultiBit agrees most with itself", largest(MULTIBIT)),
            Claim(
                "MPA adds 0.006 to 0.035 to the image-to-text mean of all pairs",
                lambda cells: 0.006 <= round(_of_all_pairs(_without_alignment(cells)), 3) <= 0.035,
                found=lambda cells: f"{_of_all_pairs(_without_alignment(cells)):+.3f}",
            ),
            Claim(
                "what MPA adds is largest for the pair of lengths that is farthest",
                lambda cells: max(_without_alignment(cells).values()) > _of_all_pairs(_without_alignment(cells)),
            ),
        ),
        of_lengths=True,
    ),
    Entry(
        "rank-displacement",
        "Rank displacement, five queries and 500 candidates",
        "tab:rank-displacement-sample",
        ranking.sampled_displacement,
        claims=(
            Claim(
                "MultiBit moves candidates less than Naive Prefix",
                lambda cells: cells[MULTIBIT, ranking.DISPLACEMENT] < cells[NAIVE_PREFIX, ranking.DISPLACEMENT],
            ),
            Claim(
                "MultiBit has the higher tau-b",
                lambda cells: cells[MULTIBIT, ranking.TAU] > cells[NAIVE_PREFIX, ranking.TAU],
                about=among(ranking.TAU),
            ),
        ),
        note=f"Image-to-text, {ranking.PANEL_QUERIES} queries and at most {ranking.PANEL_CANDIDATES} candidates drawn "
        "with seed 42; the deviation is the sample standard deviation over the queries.",
        of_lengths=True,
    ),
    Entry(
        "efficiency",
        "Efficiency",
        "tab:performance-efficiency-raw",
        accuracy.efficiency,
        note="Times on this machine, in a batch; image and text ms are heads and binarisation, as in the paper. "
        + SIZES,
        of_lengths=True,
    ),
)

"""How the paper arranges its tables of several datasets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Part = Literal["dataset", "row", "quantity", "bits", "column"]
"""What names a cell: dataset, row, column; and quantity and code length, into which a column can be divided."""


@dataclass(frozen=True)
class Layout:
    """How a table of several datasets is arranged in the paper.

    Attributes:
        down: parts that name a line, outermost first. across: parts that name a column, outermost first.
        compared: whose values compete for bold and underline: the rows of one column and dataset, those of one
            direction among them, all cells of a dataset, or none.
    """

    down: tuple[Part, ...] = ("dataset", "row")
    across: tuple[Part, ...] = ("column",)
    compared: Literal["rows", "directions", "grid", "none"] = "rows"


WIDE: tuple[Part, ...] = ("dataset", "bits")
LAYOUTS: dict[str, Layout] = {
    "parameters": Layout(("row",), ("dataset",), "none"),
    "data-split": Layout(("dataset",), ("column",), "none"),
    "scale-coverage": Layout(compared="none"),
    "quadrature-fidelity": Layout(("dataset",), ("column", "row"), "none"),
    "teacher-quality": Layout(("column", "row"), ("dataset",)),
    "teacher-aligned": Layout(("dataset",), ("row", "column")),
    "main-comparison": Layout(("row",), WIDE, "directions"),
    "component-ablation": Layout(("row",), WIDE),
    "teacher-transfer": Layout(("row",), WIDE),
    "query-gain": Layout(("row", "dataset"), ("column",), "none"),
    "resolution-idf": Layout(across=("bits", "quantity")),
    "resolution-label-names": Layout(across=("bits", "quantity")),
    "evaluator-agreement": Layout(("dataset",), ("column",), "none"),
    "resolution-strata": Layout(compared="none"),
    "scale-boundary": Layout(compared="none"),
    "quantization": Layout(across=("quantity", "bits"), compared="none"),
    "tie-ceiling": Layout(compared="none"),
    "order-preservation": Layout(across=("quantity", "bits"), compared="none"),
    "sensitivity": Layout(compared="grid"),
    "multi-length-cost": Layout(),
    "cross-length-agreement": Layout(),
    "rank-displacement": Layout(),
    "efficiency": Layout(compared="none"),
}
"""Name of the table -> its arrangement; a table that is not here does not depend on the dataset."""

"""Tables with groups of columns and blocks of lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from multibit.table import Table


@dataclass(frozen=True)
class PanelTable(Table):
    """A table whose header has a line of groups, and whose lines are in blocks.

    Attributes:
        groups: title and number of columns of each group, in order; empty for a plain header.
        under: heading of each column below its group. blocks: number of lines of each block.
        leading: number of columns that name a line.
    """

    groups: tuple[tuple[str, int], ...] = ()
    under: tuple[str, ...] = ()
    blocks: tuple[int, ...] = field(default=())
    leading: int = 1

    def latex(self) -> str:
        """A booktabs table: groups over their columns, a rule between blocks."""
        lines = super().latex().split("\n")
        top = lines.index(r"\toprule")
        if self.groups:
            lines[top + 1 : top + 2] = self._grouped_header(lines[top + 1])
        start = lines.index(r"\midrule") + 1
        for lines_above in np.cumsum(self.blocks)[:-1][::-1]:
            lines.insert(start + int(lines_above), r"\midrule")
        return "\n".join(lines)

    def _grouped_header(self, plain: str) -> list[str]:
        """The two header lines, and the rules between them; `plain` has the headings of the leading columns."""
        leading = plain.removesuffix(r" \\").split(" & ")[: self.leading]
        titles = [_latex_header((title,)).removesuffix(r" \\") for title, _ in self.groups]
        spans, rules, column = [], [], self.leading + 1
        for title, (_, width) in zip(titles, self.groups, strict=True):
            spans.append(rf"\multicolumn{{{width}}}{{c}}{{{title}}}")
            rules.append(rf"\cmidrule(lr){{{column}-{column + width - 1}}}")
            column += width
        return [
            " & ".join([*leading, *spans]) + r" \\",
            " ".join(rules),
            _latex_header((*[""] * self.leading, *self.under)),
        ]


def _latex_header(headings: Sequence[str]) -> str:
    """The header line of a table, escaped."""
    lines = Table("", tuple(headings), ()).latex().split("\n")
    return lines[lines.index(r"\toprule") + 1]

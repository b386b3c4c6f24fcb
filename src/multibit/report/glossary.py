"""What the columns and rows of the tables mean, and whether larger or smaller values are better."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Better = Literal["higher", "lower", ""]
ARROWS = {"higher": "↑", "lower": "↓", "": ""}


@dataclass(frozen=True)
class Term:
    """A number that tables show.

    Attributes:
        name: what headings begin with. meaning: how it is computed. better: direction of improvement; "" for none.
    """

    name: str
    meaning: str
    better: Better = ""

    @property
    def anchor(self) -> str:
        """Its id on the page."""
        return "term-" + re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")

    @property
    def arrow(self) -> str:
        """Its direction as a sign."""
        return ARROWS[self.better]


TERMS = (
    Term("mAP", "Mean average precision over the whole database, in percent: the mean over queries of the precision at "
         "each relevant rank. An item is relevant if it shares a label with the query; items at the same distance are "
         "ordered by database row.", "higher"),
    Term("mAP tie-averaged", "mAP as the exact mean over all orders of items at the same distance.", "higher"),
    Term("mAP asymmetric", "mAP when the query keeps its real values and only the database is binary.", "higher"),
    Term("precision", "Share of relevant items among the first ranks, in percent.", "higher"),
    Term("R", "Pair recall, in percent: how often the own counterpart of a query (the text of an image, the image of a "
         "text) is among the first 1, 5 or 10 ranks, as the exact mean over all orders of equal distances. Of several "
         "texts any counts. Among the query items, and among all items.", "higher"),
    Term("median rank", "Rank of the own counterpart, expected over all orders of equal distances; the median over the "
         "queries.", "lower"),
    Term("relaxed", "Ranked by the codes before their sign: what binarisation loses."),
    Term("shared features", "Ranked by the real values that both networks map to: the ceiling of their codes."),
    Term("encoder features", "Ranked by the features of the joint encoder, without any training."),
    Term("floor", "mAP of a ranking that learned nothing: what any method must exceed."),
    Term("gain", "Mean of this run minus that of the other, in points, the mean of both directions, query by query.",
         "higher"),
    Term("minus it", "Mean over the queries of the first run's value minus that of the run in this row, in points; a "
         "star marks p < 0.05.", "higher"),
    Term("95 % interval", "Bootstrap interval of the mean difference over queries: without 0, the sign is certain."),
    Term("improved", "Share of queries, in percent, where the first run has the better value.", "higher"),
    Term("tied", "Share of queries, in percent, where both runs have the same value."),
    Term("degraded", "Share of queries, in percent, where the first run has the worse value.", "lower"),
    Term("p", "Two-sided p value of the paired randomisation test: how often a difference of this size appears if the "
         "runs are exchanged at random."),
    Term("bits", "Code length, or number of bits of a block."),
    Term("queries", "Number of queries in the mean of this row."),
    Term("run", "Name of the run folder."),
    Term("reference", "The graded relevance: IDF weights shared labels by rarity, label names compares the names by a "
         "text encoder."),
    Term("NDCG", "Normalised discounted cumulative gain of the first 100 ranks against a graded relevance: whether the "
         "most relevant items come first. Under labels x content relevance is the IDF-weighted number of shared labels "
         "times the mean cosine of the image and the text features, centred, at least 0.", "higher"),
    Term("tau-b soft/binary", "Kendall's tau-b between the rankings by real values and by binary codes: what "
         "binarisation keeps.", "higher"),
    Term("mean tau-b", "Mean of tau-b over all pairs of code lengths.", "higher"),
    Term("tau-b", "Kendall's tau-b, agreement of two orders: 1 for the same order, 0 for none, -1 for the reverse. In "
         "the resolution table relevance and distance, in the agreement table two code lengths.", "higher"),
    Term("collision", "Share of pairs of different relevance at the same distance.", "lower"),
    Term("inversion", "Share of pairs of different relevance in the wrong order.", "lower"),
    Term("mean rank displacement", "Mean change of an item's rank between two code lengths, as a share of the "
         "database.", "lower"),
    Term("deviation", "Mean distance of the real values from -1 and 1.", "lower"),
    Term("S(B)", "Share of candidate pairs at the same Hamming distance.", "lower"),
    Term("ceiling", "The largest tau-b that these ties allow.", "higher"),
    Term("gap", "The ceiling minus the measured tau-b: what binarisation loses beyond ties.", "lower"),
    Term("|share of ones - 0.5|", "Mean distance of the share of ones from one half.", "lower"),
    Term("entropy", "Mean entropy of a bit: 1 if it is balanced, 0 if it is constant.", "higher"),
    Term("|correlation|", "Mean absolute correlation of two bits of a block.", "lower"),
    Term("cost", "Bytes, operations, or the median of single calls on this machine.", "lower"),
    Term("95th percentile", "Time that 95 % of the calls did not exceed.", "lower"),
    Term("count", "Number of pairs or items."),
    Term("pairs", "Which candidate pairs are ranked: those that share no label, or the quarter of them that the label "
         "graph relates most."),
)  # fmt: skip
"""All terms; a heading belongs to the longest name that it contains as words."""


def term_of(heading: str) -> Term | None:
    """The term that explains a heading.

    Example:
        >>> term_of("NDCG@100").better, term_of("tau-b 16-128").name, term_of("ours minus it").name
        ('higher', 'tau-b', 'minus it')
    """
    for term in sorted(TERMS, key=lambda each: -len(each.name)):
        if re.search(rf"(?<![\w|]){re.escape(term.name)}(?![\w|])", heading):
            return term
    return None


def term_of_row(cell: str) -> Term | None:
    """The term that explains a row, such as "image-to-text, mAP"; None where the row is no metric.

    Example:
        >>> term_of_row("image-to-text, mAP").name, term_of_row("image, first 16 bits")
        ('mAP', None)
    """
    last = cell.rsplit(", ", 1)[-1]
    term = term_of(last)
    return term if term is not None and last.startswith(term.name) else None

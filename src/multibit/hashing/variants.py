"""The method, its ablations and what it is compared with: each a named set of settings over the same parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from multibit.config import Config
from multibit.errors import ConfigError

ONE_HEAD = {"allocation": "single", "scale_weight": 0.0}
STANDARD = {"standard_weight": 1.0, **ONE_HEAD}


@dataclass(frozen=True)
class Variant:
    """A named way to train.

    Attributes:
        name: as the command line has it. title: as the paper has it. meaning: in a line.
        settings: that differ from those of `full`. separate: one model for each length instead of one for all.
    """

    name: str
    title: str
    meaning: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    separate: bool = False

    def config(self, base: Config) -> Config:
        """The settings of this variant over those of `full`."""
        return base.override(self.settings)

    def models(self, config: Config) -> dict[str, Config]:
        """The settings of each model to train, by the name of its folder: "." where it is one for all lengths.

        Example:
            >>> VARIANTS["separate"].models(Config(lengths=(16, 32)))["32"].lengths
            (32,)
        """
        if not self.separate:
            return {".": config}
        return {str(bits): config.override({"lengths": (bits,)}) for bits in config.lengths}


VARIANTS: dict[str, Variant] = {
    variant.name: variant
    for variant in (
        Variant("full", "Full MultiBit", "the paper's method: FRT, SBO and MPA"),
        Variant(
            "multibit-plus",
            "MultiBit+",
            "full, and the stored signs are ranked too, between and within modalities, and agree between lengths",
            {
                "binary_weight": 1.0, "within_weight": 1.0, "consistency_weight": 1.0,
                "dropout": 0.2, "input_dropout": 0.2,
            },
        ),
        Variant(
            "baseline", "Baseline (no FRT/SBO/MPA)", "the field's standard objective on one head of the longest code",
            {**STANDARD, "aligned": "none"},
        ),
        Variant("frt", "+ FRT", "the baseline, and the longest code follows g*", {**STANDARD, "aligned": "longest"}),
        Variant(
            "frt-sbo", "+ FRT + SBO", "without MPA: the longest code follows g*, each block its scale",
            {"aligned": "longest"},
        ),
        Variant(
            "naive-prefix", "Naive Prefix", "one head, only the longest code follows g*",
            {**ONE_HEAD, "aligned": "longest"},
        ),
        Variant("separate", "MultiBit-Sep", "one model for each length", separate=True),
        Variant("uniform-bits", "Uniform Bit Allocation", "the same bits for every scale", {"allocation": "uniform"}),
        Variant("single-scale", "Single-scale Teacher", "g* diffuses at tau_1 only", {"teacher": "single-scale"}),
        Variant(
            "pairwise", "Pairwise Alignment", "squared error of similarities instead of the listwise KL",
            {"alignment": "pairwise"},
        ),
    )
}  # fmt: skip
"""Name -> variant; the relation teachers (`multibit.relation.TEACHERS`) are the setting `teacher` of any of them."""


def find_variant(name: str) -> Variant:
    """The variant of a name.

    Raises:
        ConfigError: there is none.
    """
    if name not in VARIANTS:
        raise ConfigError(f"variant: {name!r} is unknown; there are {', '.join(VARIANTS)}.")
    return VARIANTS[name]

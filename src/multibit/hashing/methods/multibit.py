"""MultiBit, MultiBit+ and the ablations of the paper, as named settings of the same parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from multibit.config import Config

ONE_HEAD = {"allocation": "single", "scale_weight": 0.0}
STANDARD = {"standard_weight": 1.0, **ONE_HEAD}


@dataclass(frozen=True)
class Method:
    """A named set of training settings.

    Attributes:
        name: in Python, on the command line and in run records. title: in tables. meaning: one line.
        settings: differences from those of `multibit`. separate: train one model per length instead of one for all.
    """

    name: str
    title: str
    meaning: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    separate: bool = False

    def config(self, base: Config | None = None, **settings: Any) -> Config:
        """The settings of this method.

        Args:
            base: settings of the data set, such as a preset; the defaults when None. settings: override both.

        Raises:
            ConfigError: an unknown setting, or one out of range.

        Example:
            >>> METHODS["multibit-plus"].config(epochs=20).binary_weight
            1.0
        """
        return (base or Config()).override({**self.settings, **settings})

    def models(self, config: Config) -> dict[str, Config]:
        """The settings of each model to train, by the name of its folder; "." for a single model.

        Example:
            >>> METHODS["separate"].models(Config(lengths=(16, 32)))["32"].lengths
            (32,)
        """
        if not self.separate:
            return {".": config}
        return {str(bits): config.override({"lengths": (bits,)}) for bits in config.lengths}


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("multibit", "Full MultiBit", "the paper's method: FRT, SBO and MPA"),
        Method(
            "multibit-plus",
            "MultiBit+",
            "multibit with rankings of the binary codes, between and within modalities, consistent over lengths",
            {
                "binary_weight": 1.0, "within_weight": 1.0, "consistency_weight": 1.0,
                "dropout": 0.2, "input_dropout": 0.2,
            },
        ),
        Method(
            "baseline", "Baseline (no FRT/SBO/MPA)", "the field's standard objective on one head of the longest code",
            {**STANDARD, "aligned": "none"},
        ),
        Method("frt", "+ FRT", "the baseline, with the longest code following g*", {**STANDARD, "aligned": "longest"}),
        Method(
            "frt-sbo", "+ FRT + SBO", "without MPA: the longest code follows g*, each block its scale",
            {"aligned": "longest"},
        ),
        Method(
            "naive-prefix", "Naive Prefix", "one head, only the longest code follows g*",
            {**ONE_HEAD, "aligned": "longest"},
        ),
        Method("separate", "MultiBit-Sep", "one model per length", separate=True),
        Method("uniform-bits", "Uniform Bit Allocation", "equal bits for every scale", {"allocation": "uniform"}),
        Method("single-scale", "Single-scale Teacher", "g* diffuses at tau_1 only", {"teacher": "single-scale"}),
        Method(
            "pairwise", "Pairwise Alignment", "squared error of similarities instead of the listwise KL",
            {"alignment": "pairwise"},
        ),
    )
}  # fmt: skip

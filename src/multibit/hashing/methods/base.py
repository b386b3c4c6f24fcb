"""What a method is: a name, its settings, and what is trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from multibit.config import MAX_BITS, Settings, preset_of, require_preset
from multibit.errors import ConfigError
from multibit.hashing.learner import Fit, Learner

Lengths = Literal["nested", "several", "one"]
"""One code of which every prefix is a code; one model with a code for each length; one model for each length."""

Inputs = Literal["pooled", "tokens"]
"""One vector of each image or text; or also the vectors of its patches or words."""

COMMON = ("lengths", "epochs", "batch_size", "seed")
"""Settings that a comparison sets alike for all methods."""


@dataclass(frozen=True, eq=False)
class Method:
    """A method that can be trained.

    Attributes:
        name: in Python, on the command line and in run records. title: in tables. meaning: one line.
        defaults: its settings. settings: differences from them. presets: name of one of the paper's data sets ->
            differences for it.
        learner: makes what the loop trains; None for a closed form. fit: the closed form; None for a learner.
        lengths: how its models serve several code lengths. inputs: what it reads. views: codes of an item.
        labels: whether the training reads labels; without, the epoch is selected by pair recall.
        variant_of: name of the published method of which this is a variant; empty for a method as published.
        tables: on which features a comparison of all methods has it, those without or those with tokens.
        venue: where it was published. source: repository and commit of the public code that was read.
        differs: what is different from the published code, in one or two sentences.

    Example:
        >>> from multibit import METHODS
        >>> method = METHODS["multibit"]
        >>> method.lengths, method.inputs, method.configure(None, None, {"epochs": 5}).epochs
        ('nested', 'pooled', 5)
    """

    name: str
    title: str
    meaning: str
    defaults: Settings
    learner: type[Learner] | None = None
    fit: Fit | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    lengths: Lengths = "nested"
    inputs: Inputs = "pooled"
    views: int = 1
    labels: bool = True
    variant_of: str = ""
    tables: tuple[Inputs, ...] = ("pooled", "tokens")
    venue: str = ""
    source: str = ""
    differs: str = ""

    def __repr__(self) -> str:
        return f"Method({self.name!r})"

    @property
    def measure(self) -> str:
        """What selects the epoch on validation pairs: mean average precision, or recall of the own counterpart."""
        return "mAP" if self.labels else "recall"

    def config(self, base: Settings | None = None, preset: str | None = None, **settings: Any) -> Any:
        """The settings of this method.

        Args:
            base: complete settings to start from; of settings of another type only those in `COMMON` are taken.
                The defaults, changed by the preset, when None.
            preset: name of one of the paper's data sets; complete settings of this method have theirs already.
            settings: override all.

        Raises:
            ConfigError: an unknown preset or setting, or one out of range.

        Example:
            >>> from multibit import METHODS
            >>> METHODS["multibit-plus"].config(epochs=20).binary_weight
            1.0
        """
        if preset is not None:
            require_preset(preset)
        if type(base) is type(self.defaults):
            start = base
        else:
            common = {
                name: getattr(base, name) for name in COMMON if hasattr(base, name) and hasattr(self.defaults, name)
            }
            start = self.defaults.override({**self.presets.get(preset or "", {}), **common})
        return start.override({**self.settings, **settings}, method=self.name)

    def configure(self, preset: str | None, file: Path | str | None, settings: Mapping[str, Any]) -> Any:
        """The settings of a preset, overridden by the method, then by a TOML file, then by single settings.

        Raises:
            ConfigError: as `config`; or a file that cannot be read.
        """
        start = self.config(preset=preset if file is None else preset_of(file))
        if file is not None:
            start = start.override_by_file(file, method=self.name)
        return start.override(settings, method=self.name)

    def require_storable(self, settings: Settings) -> None:
        """Refuse lengths whose codes together are longer than a stored code can be.

        Raises:
            ConfigError: names both numbers.
        """
        stored = self.views * (settings.code_bits if self.lengths == "nested" else sum(settings.lengths))
        if stored > MAX_BITS:
            raise ConfigError(
                f"{self.name!r} stores {stored} bits for the lengths {', '.join(map(str, settings.lengths))}; at most "
                f"{MAX_BITS} are supported.",
                option="lengths",
            )

    def require_own(self, settings: Settings) -> None:
        """Refuse settings of another kind of method.

        Raises:
            ConfigError: not settings of this method.
        """
        if type(settings) is not type(self.defaults):
            raise ConfigError(
                f"{type(settings).__name__} are not settings of {self.name!r}, which has "
                f"{type(self.defaults).__name__}.",
                option="config",
            )

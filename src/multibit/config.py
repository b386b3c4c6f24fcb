"""Every setting of a run in one frozen value, with the paper's parameter register as presets."""

from __future__ import annotations

import dataclasses
import math
import numbers
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multibit.errors import ConfigError


@dataclass(frozen=True)
class Config:
    """The settings of one run (paper, Table `tab:all-parameters`); the defaults are the paper's for MS-COCO.

    Raises:
        ConfigError: a value is out of range or contradicts another one.

    Example:
        >>> Config.preset("mirflickr").alpha
        1.2
        >>> Config(lengths=(16, 32)).code_bits
        32
        >>> Config(scales=4, lengths=(2,))
        Traceback (most recent call last):
            ...
        multibit.errors.ConfigError: lengths: the longest code has 2 bits, but each of the 4 scales needs at least one.
    """

    # Relation teacher (FRT)
    teacher: str = "frt"  # of g*; `multibit variants` lists them
    alpha: float = 0.9  # fractional diffusion order: larger favours long range
    eta: float = 0.2  # kernel shift: smaller reaches further
    scales: int = 4  # M, Gauss-Laguerre points
    epsilon: float = 0.1  # PPMI smoothing constant

    # Nested code (SBO) and the network in front of it
    lengths: tuple[int, ...] = (16, 32, 64, 128)  # target code lengths; the longest is the stored code
    allocation: str = "quadrature"  # of the bits to the scales: by their weights, uniform, or one single block
    hidden: int = 1280  # width of the hidden layer of each modality's projection
    dimension: int = 512  # d, width of the shared feature before the heads
    dropout: float = 0.0  # share of hidden units dropped in training
    input_dropout: float = 0.0  # share of feature values dropped in training

    # Objective (MPA)
    aligned: str = "all"  # lengths whose rankings follow g*: all, the longest, or none
    alignment: str = "listwise"  # a ranking follows its teacher by KL (listwise) or by squared error (pairwise)
    standard_weight: float = 0.0  # of the field's standard objective, a pairwise likelihood of sharing a label
    binary_weight: float = 0.0  # of the same rankings of the signs, each with a trained temperature
    within_weight: float = 0.0  # of the rankings of the signs of each modality among themselves
    consistency_weight: float = 0.0  # of 1 - correlation of a query's similarities at a shorter length and the longest
    teacher_temperature: float = 0.2  # T_t
    student_temperature: float = 0.1  # T_s
    scale_weight: float = 0.7  # lambda_s

    # Training
    epochs: int = 100
    batch_size: int = 128
    learning_rate: float = 1e-3
    seed: int = 42

    def __post_init__(self) -> None:
        self._require_types()
        self._require_choices()
        object.__setattr__(self, "lengths", tuple(sorted(map(int, self.lengths))))
        self._require_positive("alpha", "eta", "epsilon", "teacher_temperature", "student_temperature", "learning_rate")
        self._require_at_least(1, "scales", "hidden", "dimension", "epochs", "batch_size")
        self._require_at_least(
            0, "scale_weight", "standard_weight", "binary_weight", "within_weight", "consistency_weight", "seed"
        )
        if max(self.hidden, self.dimension) > MAX_WIDTH:
            raise ConfigError(f"hidden, dimension: at most {MAX_WIDTH:,}, got {self.hidden} and {self.dimension}.")
        for name in ("dropout", "input_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name}: must be in [0, 1), got {getattr(self, name)}.")
        if self.seed >= 2**32:
            raise ConfigError(f"seed: must be below 2^32, got {self.seed}.")
        self._require_lengths()
        self._require_objective()

    @property
    def code_bits(self) -> int:
        """B_max: the bits of the stored code, of which every shorter length is a prefix."""
        return max(self.lengths)

    @property
    def aligned_lengths(self) -> tuple[int, ...]:
        """The lengths whose rankings follow g*."""
        return {"all": self.lengths, "longest": (self.code_bits,), "none": ()}[self.aligned]

    @property
    def length_weights(self) -> tuple[float, ...]:
        """beta_B = sqrt(B) / sum sqrt(B') of each aligned length (Table `tab:all-parameters`).

        Example:
            >>> [round(weight, 4) for weight in Config().length_weights]
            [0.1381, 0.1953, 0.2761, 0.3905]
        """
        total = sum(math.sqrt(length) for length in self.aligned_lengths)
        return tuple(math.sqrt(length) / total for length in self.aligned_lengths)

    @classmethod
    def preset(cls, name: str) -> Config:
        """The paper's settings for a data set: one of `PRESETS`."""
        if name not in PRESETS:
            raise ConfigError(f"preset: {name!r} is unknown; there are {', '.join(PRESETS)}.")
        return PRESETS[name]

    @classmethod
    def load(cls, path: Path, variant: Mapping[str, Any] | None = None) -> Config:
        """Read TOML settings over those of a variant over the defaults; a `preset` key picks other defaults."""
        try:
            settings = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: not readable as TOML settings ({error}).") from None
        try:
            base = cls.preset(str(settings.pop("preset", "default")))
            for name, value in settings.items():
                base._require_toml(name, value)
            return base.override({**(variant or {}), **settings})
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None

    def override(self, settings: Mapping[str, Any]) -> Config:
        """A copy with other values; text values are read as the field's own type.

        Example:
            >>> Config().override({"epochs": "3", "lengths": "8,24"}).lengths
            (8, 24)
        """
        fields = {field.name for field in dataclasses.fields(self)}
        unknown = sorted(set(settings) - fields)
        if unknown:
            raise ConfigError(f"unknown setting {', '.join(unknown)}; there are {', '.join(sorted(fields))}.")
        return dataclasses.replace(self, **{name: self._read(name, value) for name, value in settings.items()})

    def to_dict(self) -> dict[str, Any]:
        """All settings as plain values, for JSON."""
        return {**dataclasses.asdict(self), "lengths": list(self.lengths)}

    def _require_toml(self, name: str, value: Any) -> None:
        """Refuse what a file writes in another way than it should: TOML has types."""
        if isinstance(value, dict):
            raise ConfigError(f"{name}: is a table; settings stand alone, as in: epochs = 30.")
        texts = [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, str)]
        if texts and not isinstance(getattr(self, name, ""), str):
            example = "[16, 32]" if name == "lengths" else getattr(self, name)
            raise ConfigError(f"{name}: is the text {texts[0]!r}; write it without quotes, as in: {name} = {example}.")

    def _read(self, name: str, value: Any) -> Any:
        standard = getattr(self, name)
        try:
            if isinstance(standard, tuple):
                parts = value.split(",") if isinstance(value, str) else value
                return tuple(_whole(part) for part in parts)
            if isinstance(standard, str):
                return _text(value)
            return _whole(value) if isinstance(standard, int) else _number(value)
        except (TypeError, ValueError, OverflowError):
            kind = "several numbers, such as [16, 32]" if name == "lengths" else type(standard).__name__
            raise ConfigError(f"{name}: cannot read {value!r} as {kind}.") from None

    def _require_types(self) -> None:
        lengths: Any = self.lengths
        if isinstance(lengths, str) or not isinstance(lengths, Iterable):
            raise ConfigError(f"lengths: must be several whole numbers, such as (16, 32), got {lengths!r}.")
        object.__setattr__(self, "lengths", tuple(lengths))
        kinds: dict[str, tuple[type, str]] = {
            "int": (numbers.Integral, "a whole number"), "float": (numbers.Real, "a number"), "str": (str, "a text"),
        }  # fmt: skip
        values = [(field.name, field.type, getattr(self, field.name)) for field in dataclasses.fields(self)]
        values = [each for each in values if each[1] in kinds] + [("lengths", "int", length) for length in self.lengths]
        for name, kind, value in values:
            accepted, words = kinds[str(kind)]
            if isinstance(value, bool) or not isinstance(value, accepted):
                raise ConfigError(f"{name}: must be {words}, got {value!r}.")

    def _require_choices(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ConfigError(f"{name}: must be one of {', '.join(choices)}, got {getattr(self, name)!r}.")

    def _require_lengths(self) -> None:
        if not self.lengths or self.lengths[0] < 1 or len(set(self.lengths)) < len(self.lengths):
            raise ConfigError(f"lengths: need one or more different positive bit counts, got {self.lengths}.")
        if self.code_bits > MAX_BITS:
            raise ConfigError(f"lengths: the longest code has {self.code_bits} bits, at most {MAX_BITS} are supported.")
        if self.allocation != "single" and self.code_bits < self.scales:
            raise ConfigError(
                f"lengths: the longest code has {self.code_bits} bits, but each of the {self.scales} scales needs "
                "at least one."
            )

    def _require_objective(self) -> None:
        if self.allocation == "single" and self.scale_weight:
            raise ConfigError(f"scale_weight: a single block has no scales, so it must be 0, got {self.scale_weight}.")
        if self.aligned == "none" and not (self.scale_weight or self.standard_weight):
            raise ConfigError("aligned: none, scale_weight 0 and standard_weight 0 leave nothing to train.")
        if self.aligned == "none" and (self.binary_weight or self.within_weight or self.consistency_weight):
            raise ConfigError(
                "binary_weight, within_weight, consistency_weight: need aligned lengths, aligned is none."
            )

    def _require_positive(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise ConfigError(f"{name}: must be a positive number, got {value}.")

    def _require_at_least(self, least: int, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if not (value >= least and math.isfinite(value)):
                raise ConfigError(f"{name}: must be at least {least}, got {value}.")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool):
        raise TypeError(value)
    return float(value)


def _whole(value: Any) -> int:
    number = _number(value)
    if number != int(number):
        raise ValueError(value)
    return int(number)


CHOICES = {
    "allocation": ("quadrature", "uniform", "single"),
    "aligned": ("all", "longest", "none"),
    "alignment": ("listwise", "pairwise"),
}
"""Setting -> what it can be."""

MAX_BITS = 1024
"""Longest code that can be packed."""

MAX_WIDTH = 1_000_000
"""Widest layer; more is a slip of the pen."""

PRESETS: dict[str, Config] = {
    "default": Config(),
    "mirflickr": Config(alpha=1.2),
    "coco": Config(alpha=0.9),
    "iapr": Config(alpha=0.9),
    "nuswide": Config(alpha=0.9),
}
"""The paper's parameter register: settings by data set."""

"""The settings of a training, with the paper's parameters of MultiBit as presets."""

from __future__ import annotations

import dataclasses
import math
import numbers
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from multibit.errors import ConfigError, DataError, require_known
from multibit.texts import read_text


class Settings:
    """What the settings of every method have in common: reading, checking, and writing them.

    A method declares its settings as a frozen dataclass that derives from this class, with a default for each. Whole
    numbers must be at least 1 (a seed 0), other numbers finite and at least 0; the class variables say what is
    narrower.

    Attributes:
        lengths: target code lengths, ascending. seed: of everything random; the split has its own.
    """

    lengths: tuple[int, ...]
    seed: int

    CHOICES: ClassVar[Mapping[str, tuple[str, ...]]] = {}  # setting -> allowed values
    POSITIVE: ClassVar[tuple[str, ...]] = ("learning_rate",)
    SHARES: ClassVar[tuple[str, ...]] = ()  # in [0, 1)
    FROM_ZERO: ClassVar[tuple[str, ...]] = ("seed",)  # whole numbers that can be 0
    WIDTHS: ClassVar[tuple[str, ...]] = ("hidden", "dimension")  # of layers: at most `MAX_WIDTH`, where present

    def __init_subclass__(cls) -> None:
        cls.__repr__ = Settings.__repr__  # type: ignore[method-assign]  # before the dataclass would add its own

    def __repr__(self) -> str:
        """The settings that differ from the defaults."""
        changed = [f"{name}={value!r}" for name, value in self.changes().items()]
        return f"{type(self).__name__}({', '.join(changed)})"

    def __post_init__(self) -> None:
        self._require_types()
        self._require_choices()
        object.__setattr__(self, "lengths", tuple(sorted(map(int, self.lengths))))
        self._require_ranges()
        self._require_lengths()

    @property
    def code_bits(self) -> int:
        """B_max, the longest length."""
        return max(self.lengths)

    def override(self, settings: Mapping[str, Any], *, method: str = "") -> Self:
        """A copy with other values; text is converted to the type of the setting.

        Args:
            settings: name -> value. method: whose settings they are, for the message about an unknown one.

        Raises:
            ConfigError: a setting that is unknown, of another type, or out of range.

        Example:
            >>> Config().override({"epochs": "3", "lengths": "8,24"}).lengths
            (8, 24)
        """
        fields = {field.name for field in dataclasses.fields(self)}  # type: ignore[arg-type]
        unknown = sorted(set(settings) - fields)
        if unknown:
            known = ", ".join(sorted(fields))
            whose = f" of the method {method}" if method else ""
            raise ConfigError(f"unknown setting {', '.join(unknown)}{whose}; choose from {known}.")
        values = {name: self._read(name, value) for name, value in settings.items()}
        return dataclasses.replace(self, **values)  # type: ignore[type-var]

    def changes(self) -> dict[str, Any]:
        """The settings that differ from the defaults. A setting that is added later does not change them.

        Example:
            >>> Config.preset("mirflickr").changes()
            {'alpha': 1.2}
        """
        defaults = type(self)().to_dict()
        return {name: value for name, value in self.to_dict().items() if value != defaults[name]}

    def to_dict(self) -> dict[str, Any]:
        """All settings as plain values, for JSON."""
        return {**dataclasses.asdict(self), "lengths": list(self.lengths)}  # type: ignore[call-overload]

    def override_by_file(self, path: Path | str, *, method: str = "") -> Self:
        """A copy with the values of a TOML file; its key `preset` is left out.

        Args:
            path: of the file. method: as for `override`.

        Raises:
            ConfigError: not readable, or a setting that is unknown, out of range or of another type; names the file.
        """
        settings = read_toml(path)
        settings.pop("preset", None)
        try:
            for name, value in settings.items():
                self._require_toml(name, value)
            return self.override(settings, method=method)
        except ConfigError as error:
            raise ConfigError(error.problem, file=path, field=error.option, hint=error.hint) from None

    def _require_toml(self, name: str, value: Any) -> None:
        """Refuse tables, and text where a number is needed: TOML has types."""
        if isinstance(value, dict):
            raise ConfigError("is a table; settings are top-level keys, such as: epochs = 30.", option=name)
        texts = [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, str)]
        if texts and not isinstance(getattr(self, name, ""), str):
            example = "[16, 32]" if name == "lengths" else getattr(self, name)
            hint = f"Write it without quotes, such as: {name} = {example}."
            raise ConfigError(f"is the text {texts[0]!r}, needs a number.", option=name, hint=hint)

    def _read(self, name: str, value: Any) -> Any:
        standard = getattr(self, name)
        try:
            if isinstance(standard, tuple):
                parts = _listed(value) if isinstance(value, str) else value
                return tuple(_whole(part) for part in parts)
            if isinstance(standard, str):
                return _text(value)
            return _whole(value) if isinstance(standard, int) else _number(value)
        except (TypeError, ValueError, OverflowError):
            kind = "whole numbers, such as 16,32" if name == "lengths" else _WORDS[type(standard)]
            raise ConfigError(f"must be {kind}, got {value!r}.", option=name) from None

    def _require_types(self) -> None:
        lengths: Any = self.lengths
        if isinstance(lengths, str) or not isinstance(lengths, Iterable):
            raise ConfigError(f"must be whole numbers, such as (16, 32), got {lengths!r}.", option="lengths")
        object.__setattr__(self, "lengths", tuple(lengths))
        values = [*self._of_kind("int"), *self._of_kind("float"), *self._of_kind("str")]
        values += [("lengths", "int", length) for length in self.lengths]
        for name, kind, value in values:
            standard, accepted = _KINDS[kind]
            if isinstance(value, bool) or not isinstance(value, accepted):
                raise ConfigError(f"must be {_WORDS[standard]}, got {value!r}.", option=name)

    def _of_kind(self, kind: str) -> list[tuple[str, str, Any]]:
        """Name, kind and value of the settings of one kind."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        kinds = {field.name: getattr(field.type, "__name__", field.type) for field in fields}  # a type or its name
        return [(name, kind, getattr(self, name)) for name, each in kinds.items() if each == kind]

    def _require_choices(self) -> None:
        for name, choices in self.CHOICES.items():
            if getattr(self, name) not in choices:
                raise ConfigError(f"choose from {', '.join(choices)}, got {getattr(self, name)!r}.", option=name)

    def _require_ranges(self) -> None:
        for name, _, value in self._of_kind("float"):
            if not math.isfinite(value):
                raise ConfigError(f"must be finite, got {value}.", option=name)
            if name in self.POSITIVE and value <= 0:
                raise ConfigError(f"must be a positive number, got {value}.", option=name)
            if name in self.SHARES and not 0 <= value < 1:
                raise ConfigError(f"must be in [0, 1), got {value}.", option=name)
            if value < 0:
                raise ConfigError(f"must be at least 0, got {value}.", option=name)
        for name, _, value in self._of_kind("int"):
            least = 0 if name in self.FROM_ZERO else 1
            if value < least:
                raise ConfigError(f"must be at least {least}, got {value}.", option=name)
            if name in self.WIDTHS and value > MAX_WIDTH:
                raise ConfigError(f"must be at most {MAX_WIDTH:,}, got {value:,}.", option=name)
        if self.seed >= 2**32:
            raise ConfigError(f"must be below 2^32, got {self.seed}.", option="seed")

    def _require_lengths(self) -> None:
        if not self.lengths or self.lengths[0] < 1 or len(set(self.lengths)) < len(self.lengths):
            raise ConfigError(f"need one or more different positive lengths, got {self.lengths}.", option="lengths")
        if self.code_bits > MAX_BITS:
            problem = f"the longest code has {self.code_bits} bits; at most {MAX_BITS} are supported."
            raise ConfigError(problem, option="lengths")


class EpochSettings(Settings):
    """Settings of a method that is trained in epochs.

    Attributes:
        epochs, batch_size, learning_rate: of the training.
    """

    epochs: int
    batch_size: int
    learning_rate: float


@dataclass(frozen=True)
class Config(EpochSettings):
    """The settings of MultiBit (paper, Table `tab:all-parameters`); the defaults are the paper's for MS-COCO.

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
        multibit.errors.ConfigError: lengths: the longest code has 2 bits, fewer than the 4 scales.
    """

    # Relation teacher (FRT)
    teacher: str = "frt"  # relation teacher of g*, one of `multibit.relation.TEACHERS`
    teacher_alpha: float = 0.0  # of g* alone; 0 is alpha, which the bit budget and the heat teachers always follow
    scale_teacher: str = "heat"  # followed by a block: heat at the budget's nodes, or the teacher's own scale scores
    alpha: float = 0.9  # fractional diffusion order: larger favours long range
    eta: float = 0.2  # kernel shift: smaller reaches further
    scales: int = 4  # M, Gauss-Laguerre points
    epsilon: float = 0.1  # PPMI smoothing constant

    # Nested code (SBO) and the network in front of it
    lengths: tuple[int, ...] = (16, 32, 64, 128)  # target code lengths; the longest is the stored code
    allocation: str = "quadrature"  # of the bits to the scales: by their weights, uniform, or one single block
    hidden: int = 1280  # width of the hidden layer of each modality's projection
    dimension: int = 512  # d, width of the shared feature before the heads
    dropout: float = 0.0  # largest fraction of hidden units dropped in training; less with many training items
    input_dropout: float = 0.0  # largest fraction of feature values dropped in training; less where few carry a row
    mixing: float = 0.0  # pairs are mixed in training, by shares from Beta(mixing, mixing); less where few carry a row

    # Objective (MPA)
    aligned: str = "all"  # lengths whose rankings follow g*: all, the longest, or none
    alignment: str = "listwise"  # a ranking follows its teacher by KL (listwise) or by squared error (pairwise)
    standard_weight: float = 0.0  # weight of the field's standard objective, a pairwise likelihood of sharing a label
    quantization_weight: float = 0.0  # weight of the quantisation term in the standard objective
    binary_weight: float = 0.0  # weight of the same rankings of the signs, each with a trained temperature
    within_weight: float = 0.0  # weight of the rankings of the signs within each modality
    content_weight: float = 0.0  # share of the content in the teacher: the cosine of two items' texts
    item_weight: float = 0.0  # weight of telling an item from those alike by the signs of the bits that a length adds
    alike: float = 0.5  # score of the teacher from which two items are alike
    consistency_weight: float = 0.0  # weight of 1 - correlation of similarities at a shorter length and the longest
    teacher_temperature: float = 0.2  # T_t
    student_temperature: float = 0.1  # T_s
    scale_weight: float = 0.7  # lambda_s

    # Training
    epochs: int = 100
    batch_size: int = 128
    learning_rate: float = 1e-3  # falls to 0 by a cosine; constant with averaging
    averaging: float = 0.0  # share of the epochs, the latest, over which the weights are averaged to be kept
    precision: str = "float32"  # of the matrix products of the network in training; bfloat16 halves the time of a step
    seed: int = 42  # of initial weights, batches and dropout; the split has its own

    CHOICES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "allocation": ("quadrature", "uniform", "single"),
        "scale_teacher": ("heat", "own"),
        "aligned": ("all", "longest", "none"),
        "alignment": ("listwise", "pairwise"),
        "precision": ("float32", "bfloat16"),
    }
    POSITIVE = ("alpha", "eta", "epsilon", "teacher_temperature", "student_temperature", "learning_rate")
    SHARES: ClassVar[tuple[str, ...]] = ("dropout", "input_dropout", "mixing", "content_weight", "averaging")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_objective()

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
        """The paper's settings for a data set.

        Args:
            name: one of `PRESETS`.

        Raises:
            ConfigError: unknown preset.
        """
        require_known("preset", name, PRESETS)
        return PRESETS[name]

    @classmethod
    def load(cls, path: Path | str) -> Config:
        """Read a TOML file of settings.

        Args:
            path: of the file. Its key `preset` chooses the defaults, `Config()` without it.

        Raises:
            ConfigError: not readable, or a setting that is unknown, out of range or of another type; names the file.
        """
        return cls.preset(preset_of(path) or "default").override_by_file(path)

    def _require_lengths(self) -> None:
        super()._require_lengths()
        if self.allocation != "single" and self.code_bits < self.scales:
            problem = f"the longest code has {self.code_bits} bits, fewer than the {self.scales} scales."
            raise ConfigError(problem, option="lengths")

    def _require_objective(self) -> None:
        if self.allocation == "single" and self.scale_weight:
            problem = f"must be 0 with the single allocation, which has no scales; got {self.scale_weight}."
            raise ConfigError(problem, option="scale_weight")
        if self.aligned != "none":
            return
        if not (self.scale_weight or self.standard_weight):
            problem = "none leaves nothing to train when scale_weight and standard_weight are 0."
            raise ConfigError(problem, option="aligned")
        for name in ("binary_weight", "within_weight", "consistency_weight", "item_weight"):
            if getattr(self, name):
                raise ConfigError(f"must be 0 when aligned is none, got {getattr(self, name)}.", option=name)


def require_preset(name: str) -> None:
    """Refuse an unknown preset.

    Raises:
        ConfigError: the message lists the known ones.
    """
    require_known("preset", name, PRESETS)


def preset_of(path: Path | str) -> str | None:
    """The preset that a TOML file of settings names; None without one.

    Raises:
        ConfigError: not readable, or an unknown preset.
    """
    name = read_toml(path).get("preset")
    if name is None:
        return None
    try:
        require_preset(str(name))
    except ConfigError as error:
        raise ConfigError(error.problem, file=path, field=error.option, hint=error.hint) from None
    return str(name)


_WORDS = {int: "a whole number", float: "a number", str: "a text"}
_KINDS: dict[str, tuple[type, type]] = {
    "int": (int, numbers.Integral), "float": (float, numbers.Real), "str": (str, str),
}  # fmt: skip


def read_toml(path: Path | str) -> dict[str, Any]:
    """Content of a TOML file.

    Raises:
        ConfigError: not readable.
    """
    try:
        return tomllib.loads(read_text(Path(path)).replace("\r\n", "\n"))
    except DataError as error:
        raise ConfigError(error.problem, file=path, hint=error.hint) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"cannot be read as TOML ({error}).", file=path) from None


def _listed(text: str) -> list[str]:
    """Parts of 16,32 and of [16, 32]."""
    text = text.strip()
    return (text[1:-1] if text.startswith("[") and text.endswith("]") else text).split(",")


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


MAX_BITS = 1024
"""Longest supported code."""

MAX_WIDTH = 1_000_000
"""Widest supported layer; more is almost certainly a typo."""

PRESETS: dict[str, Config] = {
    "default": Config(),
    "mirflickr": Config(alpha=1.2),
    "coco": Config(alpha=0.9),
    "iapr": Config(alpha=0.9),
    "nuswide": Config(alpha=0.9),
}
"""The paper's settings by data set (Table `tab:all-parameters`)."""

GRID_ALPHA = (0.3, 0.6, 0.9, 1.2, 1.5)
"""Values of `alpha` that the paper selects from on validation data (Table `tab:parameter-sensitivity-grid`)."""

GRID_ETA = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Values of `eta` that the paper selects from."""

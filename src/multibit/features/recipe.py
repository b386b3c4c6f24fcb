"""How features were made: what has to be equal for two vectors to be comparable."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any

import msgspec

from multibit.errors import MismatchError, require_integer


@dataclass(frozen=True)
class EncoderRecipe:
    """How the features of one modality were made.

    Attributes:
        name: of the encoder. weights: hash of the weights, "" where it is unknown.
        dimension: length of a feature vector.
        preprocessing: what was done to the input, human-readable.
        dtype: of network and features, float32 or float16.
        prompt: of a text encoder; `{}` in it is replaced by the text.
        text_limit: number of tokens that a text encoder reads, None without a limit; recorded, not compared.
        source: hub name or folder that the encoder was loaded from, "" for a package; recorded, not compared.
        versions: of the libraries; recorded, not compared.

    Raises:
        DataError: a dimension that is not whole, or less than 1.

    Example:
        >>> first = EncoderRecipe("mine", "0f3a", 512, "none", versions={"torch": "2.6"})
        >>> first == EncoderRecipe("mine", "0f3a", 512, "none"), first == EncoderRecipe("mine", "77c1", 512, "none")
        (True, False)
    """

    name: str
    weights: str
    dimension: Annotated[int, msgspec.Meta(ge=1, lt=1 << 24)]
    preprocessing: str
    versions: dict[str, str] = field(default_factory=dict, compare=False, hash=False)
    dtype: str = "float32"
    prompt: str = "{}"
    text_limit: Annotated[int, msgspec.Meta(ge=1, lt=1 << 40)] | None = field(default=None, compare=False)
    source: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        require_integer(self.dimension, 1, "dimension")

    def __repr__(self) -> str:
        return f"EncoderRecipe({self.name!r:.80}, {self.dimension}-d {self.dtype})"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Recipe:
    """How the features of both modalities were made; two recipes are equal when their features are comparable."""

    image: EncoderRecipe
    text: EncoderRecipe

    @classmethod
    def ready_made(cls, name: str, image_dimension: int, text_dimension: int) -> Recipe:
        """The recipe of features that were made elsewhere, of which only a name is known."""
        sizes = (max(size, 1) for size in (image_dimension, text_dimension))  # a store names the array without columns
        return cls(*(EncoderRecipe(name, "", size, "unknown") for size in sizes))

    @property
    def is_joint(self) -> bool:
        """Whether one model made both, so that an image can be compared with a text."""
        image, text = self.image, self.text
        return bool(image.weights) and (image.weights, image.dimension) == (text.weights, text.dimension)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"image": self.image.to_dict(), "text": self.text.to_dict()}

    def difference(self, other: Recipe) -> tuple[str, str, Any, Any] | None:
        """The first difference from another recipe: modality, key, value here, value there."""
        for modality in ("image", "text"):
            mine, theirs = getattr(self, modality).to_dict(), getattr(other, modality).to_dict()
            for key in ("name", "weights", "dimension", "preprocessing", "dtype", "prompt"):
                if mine[key] != theirs[key]:
                    return modality, key, mine[key], theirs[key]
        return None

    def require(self, other: Recipe, whose: str) -> None:
        """Refuse features of another recipe.

        Args:
            other: recipe of the features. whose: their owner in the plural for the message, such as "the queries".

        Raises:
            MismatchError: the recipes differ; names the first difference.
        """
        if difference := self.difference(other):
            modality, key, mine, theirs = difference
            raise MismatchError(
                f"{whose} have {key} {theirs!r}, the model was trained on {mine!r}.",
                field=f"{modality} features",
                hint="Encode the items with the model's encoders.",
            )

    def require_encoder(self, modality: str, found: EncoderRecipe, whose: str = "the installed encoders") -> None:
        """Refuse an encoder that is not the one of a modality.

        Args:
            modality: "image" or "text". found: recipe of the encoder. whose: as for `require`.

        Raises:
            MismatchError: the recipes differ; names the first difference.
        """
        self.require(replace(self, **{modality: found}), whose)

"""Feature vectors of images and texts, with the recipe that made them."""

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from multibit.features.pairs import Pairs
    from multibit.features.recipe import EncoderRecipe, Recipe
    from multibit.features.store import FeatureStore
    from multibit.features.tokens import Tokens

__all__ = ["EncoderRecipe", "FeatureStore", "Pairs", "Recipe", "Tokens"]

# loaded on first use, so that a query is encoded without Arrow
__getattr__, __dir__, _ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "pairs": ["Pairs"],
        "recipe": ["EncoderRecipe", "Recipe"],
        "store": ["FeatureStore"],
        "tokens": ["Tokens"],
    },
)

"""Feature vectors of images and texts, with the recipe that made them."""

from multibit.features.pairs import Pairs
from multibit.features.recipe import EncoderRecipe, Recipe
from multibit.features.store import FeatureStore
from multibit.features.tokens import Tokens

__all__ = ["EncoderRecipe", "FeatureStore", "Pairs", "Recipe", "Tokens"]

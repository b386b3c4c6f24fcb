"""Pictures, texts and labels, as files have them -> dataset -> split, features."""

from multibit.data.dataset import PairedDataset
from multibit.data.features import FeatureStore, Pairs, Recipe
from multibit.data.split import Split

__all__ = ["FeatureStore", "PairedDataset", "Pairs", "Recipe", "Split"]

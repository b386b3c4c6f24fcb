"""Zero-shot labels: the names that a joint encoder finds in images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from multibit.arrays import unit_rows
from multibit.data.dataset import PairedDataset
from multibit.data.images import open_image
from multibit.data.labelling import relabel
from multibit.errors import ConfigError, DataError, MismatchError
from multibit.features.base import ImageEncoder, Prompted, TextEncoder
from multibit.progress import showing, track


def label_zero_shot(
    dataset: PairedDataset,
    names: Sequence[str],
    image_encoder: ImageEncoder,
    text_encoder: TextEncoder,
    *,
    prompt: str = "a photo of a {}",
    temperature: float = 0.01,
    min_probability: float = 0.2,
    progress: bool = False,
) -> PairedDataset:
    """Label each image with the names that a joint encoder finds most similar, as CLIP's zero-shot classification does.

    Args:
        dataset: its labels are replaced; an item whose image cannot be read gets none.
        names: the labels. image_encoder, text_encoder: the two sides of one model, with features in one space.
        prompt: what is encoded for a name, with `{}` for the name.
        temperature: of the softmax over cosine similarities; CLIP learned 0.01.
        min_probability: least probability of a label; the most probable name always becomes one.
        progress: show a progress bar.

    Raises:
        ConfigError: no names, or a prompt without `{}`. MismatchError: the encoders have different dimensions.
    """
    if not names:
        raise ConfigError("need at least one name, got 0.", option="names")
    dimensions = image_encoder.recipe.dimension, text_encoder.recipe.dimension
    if dimensions[0] != dimensions[1]:
        raise MismatchError(
            f"{image_encoder.recipe.name} and {text_encoder.recipe.name}: features of {dimensions[0]} and "
            f"{dimensions[1]} values are not in one space.",
            hint="Use the two sides of a joint model, such as CLIP.",
        )
    prompts = unit_rows(np.asarray(Prompted(text_encoder, prompt).encode(names), np.float64))
    found: list[set[str]] = [set() for _ in dataset.ids]
    batch = max(image_encoder.batch_size, 1)
    with showing(progress), track("Labelling images", len(dataset), "images") as advance:
        for start in range(0, len(dataset), batch):
            rows = range(start, min(start + batch, len(dataset)))
            prepared = {row: one for row in rows if (one := _prepare(dataset, row, image_encoder)) is not None}
            if prepared:
                vectors = np.asarray(image_encoder.encode(list(prepared.values())), np.float64)
                cosines = unit_rows(vectors) @ prompts.T  # (n, labels)
                likely = _likely(cosines / temperature, min_probability)
                for row, chosen in zip(prepared, likely, strict=True):
                    found[row] = {names[column] for column in np.flatnonzero(chosen).tolist()}
            advance(len(rows))
    return relabel(dataset, found, sorted(set(names)))


def _prepare(dataset: PairedDataset, row: int, encoder: ImageEncoder) -> NDArray[np.uint8] | None:
    path = dataset.images[row]
    try:
        return None if path is None else encoder.prepare(open_image(path))
    except DataError:
        return None


def _likely(scores: NDArray[np.floating], least: float) -> NDArray[np.bool_]:
    """Columns of each row with at least this softmax probability, and always the best one."""
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    chosen: NDArray[np.bool_] = (weights / weights.sum(axis=1, keepdims=True) >= least) | (weights == 1)
    return chosen

"""MultiBit without labels: every prefix follows what images and texts have in common, and finds its own counterpart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from multibit.arrays import unit_rows
from multibit.codes.items import MODALITIES
from multibit.config import Config
from multibit.features import Pairs
from multibit.hashing.learner import Batch, Descent, Learner
from multibit.hashing.linear_codes import solver_features
from multibit.hashing.methods.base import Method
from multibit.hashing.methods.cca import CcaSettings, canonical_variates
from multibit.hashing.methods.multibit import batch_codes, mixed_pairs, new_model, temperature_descent
from multibit.hashing.model import HashModel
from multibit.hashing.objective import Objective

BLOCK = 1024  # rows whose neighbours are looked for at once
CANDIDATES = 20_000  # rows among which neighbours are looked for


@dataclass(frozen=True)
class FreeConfig(Config):
    """The settings of MultiBit without labels; those of the label graph have no effect."""

    own_weight: float = 0.15  # share of the own counterpart in the teacher
    neighbours: int = 1  # nearest items, each item itself among them, whose variates the teacher averages

    SHARES: ClassVar[tuple[str, ...]] = (*Config.SHARES, "own_weight")


class Free(Learner):
    """One nested code that follows the canonical variates of images and texts.

    Canonical variates are the directions of the one modality that the other predicts: what both say of an item. The
    mean over an item's nearest neighbours keeps what they have in common. The cosines of these means are the teacher of
    every prefix, between and within modalities, and the own counterpart has a share of its own, as in contrastive
    learning. Labels are never read.

    Attributes:
        model: with one block. content: (n, k) rows of the training items, whose products are the teacher's scores.
        objective: of the rankings of a batch.
    """

    kept = ("model", "objective")
    model: HashModel
    content: Tensor

    def __init__(self, training: Pairs, settings: FreeConfig) -> None:
        super().__init__(training, settings)
        self.settings, self.averaging = settings, settings.averaging
        self.draw_mix = mixed_pairs(training, settings)
        self.model = new_model(training, (settings.code_bits,), settings)
        self.objective = Objective(settings, self.model.blocks, (1.0,))
        self.parts = self.objective.names
        self.register_buffer("content", torch.from_numpy(teacher_rows(training, settings)), persistent=False)

    def optimizers(self, steps: int) -> list[Descent]:
        """As MultiBit's."""
        return [temperature_descent(self.model.parameters(), self.objective.parameters(), self.settings, steps)]

    def step(self, batch: Batch, descents: Sequence[Descent]) -> Tensor:
        """Rank the batch by every prefix, and follow the teacher."""
        content, own = self.content[batch.rows], self.settings.own_weight
        teacher = (1 - own) * content @ content.T + own * torch.eye(len(content), device=content.device)
        if self.draw_mix:
            mix = self.draw_mix(batch.rows)
            batch, teacher = mix.batch(batch), mix.scores(teacher)
        parts = self.objective(*batch_codes(self.model, batch, self.settings.precision), teacher[None])
        descents[0].step(parts.total)
        return parts.values  # type: ignore[no-any-return]


def teacher_rows(training: Pairs, settings: FreeConfig) -> NDArray[np.float32]:
    """Rows (n, k) at unit length, whose products are the teacher's scores of the training items."""
    content = common_content(training)
    return content if settings.neighbours == 1 else mean_of_neighbours(content, settings.neighbours)


def common_content(training: Pairs) -> NDArray[np.float32]:
    """Rows (n, k) at unit length: of each item the mean of its canonical variates in both modalities."""
    features = solver_features(training)
    variates = canonical_variates(features, CcaSettings())
    unit = [unit_rows(variates[modality](features[modality])) for modality in MODALITIES]
    return unit_rows(unit[0] + unit[1]).astype(np.float32)


def mean_of_neighbours(rows: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    """Of each row the mean of its nearest ones by cosine, itself among them, weighted by their cosines.

    Args:
        rows: (n, k) at unit length. Of more than `CANDIDATES` rows only some can be neighbours, evenly spaced.
        count: of neighbours; all rows where they are fewer.

    Returns:
        (n, k) at unit length.

    Example:
        >>> rows = np.array([[1, 0], [0.8, 0.6], [-1, 0]], np.float32)
        >>> mean_of_neighbours(rows, 2).round(2)
        array([[ 0.96,  0.28],
               [ 0.94,  0.35],
               [-1.  ,  0.  ]], dtype=float32)
    """
    candidates = torch.from_numpy(rows[:: math.ceil(len(rows) / CANDIDATES)])
    count, means = min(count, len(candidates)), np.empty_like(rows)
    for start in range(0, len(rows), BLOCK):
        part = torch.from_numpy(rows[start : start + BLOCK])  # (b, k)
        cosines, nearest = (part @ candidates.T).topk(count)  # (b, count)
        means[start : start + BLOCK] = torch.einsum("bc,bck->bk", cosines.clamp(min=0), candidates[nearest]).numpy()
    return unit_rows(means)


MULTIBIT_FREE = Method(
    "multibit-free", "MultiBit without labels",
    "no labels: the prefixes follow the canonical variates of images and texts",
    defaults=FreeConfig(), learner=Free, labels=False, venue="this project",
    settings={
        "allocation": "single", "scale_weight": 0.0, "binary_weight": 1.0, "within_weight": 1.0,
        "consistency_weight": 1.0, "neighbours": 20, "teacher_temperature": 0.07, "averaging": 0.125, "dropout": 0.3,
        "input_dropout": 0.5,
    },
)  # fmt: skip

"""MultiBit, MultiBit+ and the ablations of the paper, as named settings of the same parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from multibit.arrays import Labels
from multibit.codes.items import MODALITIES
from multibit.config import PRESETS, Config
from multibit.errors import ConfigError
from multibit.features import Pairs
from multibit.hashing.bits import plan_blocks
from multibit.hashing.dropout import dropout_bound
from multibit.hashing.learner import Batch, Descent, Learner, seeded
from multibit.hashing.losses import shared_labels
from multibit.hashing.methods.base import Lengths, Method
from multibit.hashing.mixing import Mix
from multibit.hashing.model import HashModel
from multibit.hashing.objective import Objective
from multibit.hashing.optimizers import constant_descent
from multibit.hashing.targets import build_targets, content_rows
from multibit.relation import RelationTeacher, teacher_class

TEMPERATURE_STEP = 30  # learning rate of the temperatures, as a multiple of that of the weights
WARMUP_STEPS = 50  # at most, and a tenth of all: in which a constant learning rate is reached
DROPOUT_ITEMS = 2500  # training items up to which all of the hidden dropout applies; of more it is in proportion less


class MultiBit(Learner):
    """One nested code that follows the relation teacher: FRT, SBO and MPA.

    Attributes:
        model: a block of the code for each scale of the teacher. targets: the teacher's scores of the training items.
        objective: of the rankings of a batch.
    """

    kept = ("model", "targets", "objective")
    model: HashModel

    def __init__(self, training: Pairs, settings: Config) -> None:
        super().__init__(training, settings)
        teacher = teacher_class(settings.teacher).fit(
            training.labels, settings.alpha, settings.eta, settings.scales, settings.epsilon, settings.teacher_alpha
        )
        own_scales = settings.scale_teacher == "own"
        if own_scales and not teacher.has_scales:
            settings = settings.override({"scale_weight": 0.0})
        self.settings, self.averaging = settings, settings.averaging
        self.draw_mix = mixed_pairs(training, settings)
        self.model = build_model(training, teacher, settings)
        content = content_rows(training.mean_text) if settings.content_weight else None
        self.targets = build_targets(teacher, training.labels, own_scales, content, settings.content_weight)
        self.objective = Objective(settings, self.model.blocks, tuple(teacher.rho))
        self.parts = self.objective.names

    @property
    def identity(self) -> tuple[int, ...]:
        """The bits of the scales."""
        return self.model.blocks

    @property
    def teacher(self) -> RelationTeacher:
        """The relation teacher, with any trained parameters."""
        return self.targets.finished()

    def optimizers(self, steps: int) -> list[Descent]:
        """Adam, with a larger learning rate for the temperatures, which start far from their final values."""
        trained = [*self.model.parameters(), *self.targets.parameters()]
        return [temperature_descent(trained, self.objective.parameters(), self.settings, steps)]

    def step(self, batch: Batch, descents: Sequence[Descent]) -> Tensor:
        """Rank the batch by every prefix and every block, and follow the teacher."""
        teacher = self.targets(batch.rows)  # (1+M, b, b)
        related = shared_labels(batch.labels) if self.settings.standard_weight else None  # (b, b)
        if self.draw_mix:
            mix = self.draw_mix(batch.rows)
            batch, teacher = mix.batch(batch), mix.scores(teacher)
            related = None if related is None else mix.means(related)
        h_image, h_text = batch_codes(self.model, batch, self.settings.precision)
        parts = self.objective(h_image, h_text, teacher, related)
        pull = self.targets.pull()
        descents[0].step(parts.total if pull is None else parts.total + pull)
        return parts.values  # type: ignore[no-any-return]


def batch_codes(model: HashModel, batch: Batch, precision: str) -> tuple[Tensor, Tensor]:
    """Relaxed codes (b, B_max) of the images and texts of a batch, in single precision, in which they are compared."""
    with torch.autocast(batch.image.device.type, torch.bfloat16, enabled=precision == "bfloat16"):
        image, text = model(batch.image, "image"), model(batch.text, "text")
    return image.float(), text.float()


def temperature_descent(
    weights: Iterable[nn.Parameter], temperatures: Iterable[nn.Parameter], settings: Config, steps: int
) -> Descent:
    """Adam with a larger learning rate for the temperatures, by a cosine, or constant where weights are averaged.

    A constant rate is reached by a short linear rise: at full rate from the first step the bits of one seed in five
    became constant and stayed so.
    """
    rate = settings.learning_rate
    groups: list[dict[str, Any]] = [{"params": list(weights)}]
    if found := list(temperatures):
        groups.append({"params": found, "lr": TEMPERATURE_STEP * rate})
    optimizer = torch.optim.Adam(groups, lr=rate, fused=True)
    if settings.averaging:
        return constant_descent(optimizer, warmup=min(WARMUP_STEPS, steps // 10))
    return Descent(optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps))


def build_model(training: Pairs, teacher: RelationTeacher, settings: Config) -> HashModel:
    """A new model for these features, with blocks allocated by the teacher's weights; see `new_model`."""
    return new_model(training, plan_blocks(teacher.rho, settings), settings, training.labels)


def new_model(training: Pairs, blocks: tuple[int, ...], settings: Config, labels: Labels | None = None) -> HashModel:
    """A new model for these features, initialised from the seed.

    Args:
        labels: of the training items, for the bound of dropout; None where they must not be read.

    Raises:
        ConfigError: the network does not fit into memory.
    """
    dimensions = training.image.shape[1], training.text.shape[1]
    dropout = settings.dropout * min(1.0, DROPOUT_ITEMS / len(training))
    with seeded(settings.seed):
        try:
            model = HashModel(*dimensions, blocks, settings.hidden, settings.dimension, dropout, settings.input_dropout)
        except RuntimeError as error:  # raised by torch when memory is low
            first = str(error).splitlines()[0]
            raise ConfigError(
                f"the network does not fit into memory ({first}).",
                option="hidden",
                hint="Reduce `hidden` or `dimension`.",
            ) from None
    for modality in MODALITIES:
        model.limit_dropout(modality, dropout_bound(training.features(modality), labels))
    return model


def mixed_pairs(training: Pairs, settings: Config) -> Callable[[Tensor], Mix] | None:
    """What draws a mix for the rows of a batch; None without mixing.

    Where a few values carry a row of either modality, so that `dropout_bound` is below `mixing`, shares are smaller in
    proportion: a part of another topic vector can say as much as the own one.
    """
    if not settings.mixing:
        return None
    bound = min(dropout_bound(training.features(modality)) for modality in MODALITIES)
    largest = min(1.0, bound / settings.mixing)
    return lambda rows: Mix.draw(len(rows), settings.mixing, largest, rows.device)


ONE_HEAD = {"allocation": "single", "scale_weight": 0.0}
STANDARD = {"standard_weight": 1.0, **ONE_HEAD}
PRESET_CHANGES = {name: config.changes() for name, config in PRESETS.items()}


def _method(
    name: str, title: str, meaning: str, settings: Mapping[str, Any] | None = None, lengths: Lengths = "nested"
) -> Method:
    return Method(
        name, title, meaning, defaults=Config(), settings=settings or {}, presets=PRESET_CHANGES, learner=MultiBit,
        lengths=lengths, venue="this paper",
    )  # fmt: skip


MULTIBIT_METHODS = (
        _method("multibit", "Full MultiBit", "the paper's method: FRT, SBO and MPA"),
        _method(
            "multibit-plus",
            "MultiBit+",
            "multibit with rankings of the binary codes, consistent over lengths, that follow labels and content",
            {
                "binary_weight": 1.0, "within_weight": 1.0, "consistency_weight": 1.0, "content_weight": 0.1,
                "item_weight": 0.4, "dropout": 0.2, "input_dropout": 0.2, "mixing": 0.4, "averaging": 0.125,
                "learning_rate": 2e-3,
            },
        ),
        _method(
            "baseline", "Baseline (no FRT/SBO/MPA)", "the field's standard objective on one head of the longest code",
            {**STANDARD, "aligned": "none"},
        ),
        _method("frt", "+ FRT", "the baseline, with the longest code following g*", {**STANDARD, "aligned": "longest"}),
        _method(
            "frt-sbo", "+ FRT + SBO", "without MPA: the longest code follows g*, each block its scale",
            {"aligned": "longest"},
        ),
        _method(
            "naive-prefix", "Naive Prefix", "one head, only the longest code follows g*",
            {**ONE_HEAD, "aligned": "longest"},
        ),
        _method("separate", "MultiBit-Sep", "one model per length", lengths="one"),
        _method("uniform-bits", "Uniform Bit Allocation", "equal bits for every scale", {"allocation": "uniform"}),
        _method("single-scale", "Single-scale Teacher", "g* diffuses at tau_1 only", {"teacher": "single-scale"}),
        _method(
            "pairwise", "Pairwise Alignment", "squared error of similarities instead of the listwise KL",
            {"alignment": "pairwise"},
        ),
)  # fmt: skip
"""MultiBit, MultiBit+, and the ablations of the paper."""

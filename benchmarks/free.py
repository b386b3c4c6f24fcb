"""Training without labels compared: python benchmarks/free.py FEATURES [--seeds 42,43,44,45,46].

`multibit-free`, CCA-ITQ, CCA-LSH and, as an independent peer, the loss of UCCH (Hu et al., Unsupervised Contrastive
Cross-modal Hashing, TPAMI 2023) on the network of MultiBit, one model for each length. UCCH is written from its
description: the cosines of the code of an image or text with the signs in a memory of all items are contrasted, and
images and texts of a batch are ranked against each other, where those far below the own counterpart count little. Its
constants are the published ones; its learning rate is the best of three by the recall of validation pairs.

Labels are used for the measured mAP only. The epoch of each training has the largest recall at 10 of the own
counterpart among validation pairs. Runs are kept in the folder of --out. --smoke trains tiny models on small planted
features and only checks that everything runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from trainings import comparison_parser, own_recall, reproduction, smoke_reproduction

from multibit import Config
from multibit.codes.items import DIRECTIONS, CodedItems
from multibit.evaluation.metrics import average_precision
from multibit.features import Pairs
from multibit.hashing.code_model import CodeModel
from multibit.hashing.encode import encode
from multibit.hashing.learner import Batch, Descent, LossLearner
from multibit.hashing.loop import fit
from multibit.hashing.methods.multibit import new_model
from multibit.paper.reproduction import Reproduction, Side

KEPT = ("multibit-free", "cca-itq", "cca-lsh")
SIDES: tuple[Side, ...] = ("query", "database", "unseen")
Coded = dict[int, dict[Side, CodedItems]]  # length -> side -> items


@dataclass(frozen=True)
class UcchConfig(Config):
    """The settings of UCCH; of those of MultiBit only the network and the training count."""

    epochs: int = 20
    learning_rate: float = 3e-4
    temperature: float = 0.9  # of the contrast, of cosines
    momentum: float = 0.4  # of the memory
    margin: float = 0.2  # an item is easy whose cosine is lower by more than that of the own counterpart
    shift: float = 1.0  # by which the cosine of an easy item is lowered further
    contrast: float = 0.9  # weight of the contrast with the memory; the ranking loss has the rest


class Ucch(LossLearner):
    """Contrast with the signs of a memory of all items, and a ranking loss over all others of a batch."""

    parts = ("contrast", "ranking", "total")
    memory: Tensor  # (n, B) unit rows

    def __init__(self, training: Pairs, settings: UcchConfig) -> None:
        super().__init__(training, settings)
        self.settings, self.model = settings, new_model(training, (settings.code_bits,), settings)
        signs = np.random.default_rng(settings.seed).choice([-1.0, 1.0], (len(training), settings.code_bits))
        self.register_buffer("memory", functional.normalize(torch.from_numpy(signs).float(), dim=1))

    def optimizers(self, steps: int) -> Sequence[Descent]:
        """Adam with a cosine schedule, gradients of at most unit length."""
        optimizer = torch.optim.Adam(self.model.parameters(), lr=self.settings.learning_rate)
        return [Descent(optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps), clip=1.0)]

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Both terms; then the memory moves towards the mean code of each item."""
        s = self.settings
        image, text = self.model(batch.image, "image"), self.model(batch.text, "text")
        codes = functional.normalize(image, dim=1), functional.normalize(text, dim=1)
        mean = functional.normalize(codes[0] + codes[1], dim=1).detach()
        first = batch.epoch == 1  # the memory is still random: the batch is contrasted with itself
        signs = torch.where((mean if first else self.memory) >= 0, 1.0, -1.0) / s.code_bits**0.5
        own = torch.arange(len(mean)) if first else batch.rows
        scores = torch.stack(codes) @ signs.T / s.temperature  # (2, b, items), of cosines
        contrast = functional.cross_entropy(scores[0], own) + functional.cross_entropy(scores[1], own)
        products = codes[0] @ codes[1].T
        ranking = self._ranking(products) + self._ranking(products.T)
        kept = 0.0 if first else s.momentum
        self.memory[batch.rows] = functional.normalize(kept * self.memory[batch.rows] + (1 - kept) * mean, dim=1)
        return {"contrast": s.contrast * contrast, "ranking": (1 - s.contrast) * ranking}

    def _ranking(self, products: Tensor) -> Tensor:
        """Soft maximum of each row, easy ones lowered, above the own counterpart: ()."""
        own = products.diagonal()
        hard = (products >= own[:, None] - self.settings.margin).detach()
        lowered = torch.where(hard, products, products - self.settings.shift)
        return (lowered.logsumexp(dim=1) - own + self.settings.margin).mean()


def ucch(r: Reproduction, seed: int) -> Coded:
    """A model of each length, at the epoch with the largest recall among validation pairs."""
    coded, c, training = {}, r.config, r.pairs("train")
    network = {"hidden": c.hidden, "dimension": c.dimension, "scales": 1, "seed": seed}
    score = partial(mean_recall, pairs=r.pairs("validation"))
    for bits in c.lengths:
        settings = UcchConfig().override({**network, "epochs": min(c.epochs, UcchConfig.epochs), "lengths": (bits,)})
        learner = Ucch(training, settings)
        fit(learner, training, settings, score, state_file=r.folder / f"ucch-{bits}-{seed}.pt")
        coded[bits] = {side: encode(learner.model, r.pairs(side)) for side in SIDES}
    return coded


def kept(r: Reproduction, method: str, seed: int) -> Coded:
    """The same of a method of the product."""
    run = r.run(method, seed)
    return {bits: {side: r.codes(run, side).at(bits) for side in SIDES} for bits in r.config.lengths}


def recalls(items: CodedItems, bits: int | None = None) -> list[float]:
    """Recall at 10 of the own counterpart among the items, in percent, by direction."""
    return [own_recall(items, direction, bits) for direction in DIRECTIONS]


def mean_recall(model: CodeModel, pairs: Pairs) -> float:
    """Recall at 10 of a model, in percent, mean of both directions."""
    return float(np.mean(recalls(encode(model, pairs))))


def precisions(coded: Mapping[Side, CodedItems], searched: Side, bits: int) -> list[float]:
    """Mean average precision of the queries in percent, by direction."""
    query, database = coded["query"], coded[searched]
    labels = query.labels, database.labels
    return [
        100 * float(np.nanmean(average_precision(query.codes(a), database.codes(b), *labels, bits)))
        for a, b in DIRECTIONS.values()
    ]


def measure(coded: Coded) -> dict[str, np.ndarray]:
    """MAP with training items in and out, and recall at 10 among the queries: (directions, lengths) each."""
    measured = {
        "mAP in": [precisions(each, "database", bits) for bits, each in coded.items()],
        "mAP out": [precisions(each, "unseen", bits) for bits, each in coded.items()],
        "R@10": [recalls(each["query"], bits) for bits, each in coded.items()],
    }
    return {name: np.transpose(values) for name, values in measured.items()}


def report(r: Reproduction, seeds: list[int]) -> None:
    """Print the comparison."""
    columns = [f"{direction} {bits}" for direction in DIRECTIONS for bits in r.config.lengths]
    print(f"{len(r.subject.labels):,} items, no labels in training, means of seeds {', '.join(map(str, seeds))}")
    print(f"{'%':<24}" + "".join(f"{column:>9}" for column in columns) + "   mean of each seed")
    for method in (*KEPT, "UCCH"):
        found = [measure(ucch(r, seed) if method == "UCCH" else kept(r, method, seed)) for seed in seeds]
        for name in found[0]:
            values = np.array([each[name].ravel() for each in found])  # (seeds, columns)
            line = "".join(f"{value:9.2f}" for value in values.mean(axis=0))
            print(f"{f'{method}, {name}':<24}{line}   " + " ".join(f"{mean:.2f}" for mean in values.mean(axis=1)))


def smoke() -> None:
    """The comparison on 200 items with tiny models."""
    rng = np.random.default_rng(0)
    content = rng.normal(size=(200, 12))
    sides = {name: (content @ rng.normal(size=(12, 30))).astype(np.float32) for name in ("image", "text")}
    with smoke_reproduction(labels=(content[:, :6] > 0.5).astype(np.uint8), **sides) as tiny:
        report(tiny, [42])


def main() -> None:
    """Compare and print."""
    parser = comparison_parser(__doc__, folder="multibit-free-check", seeds="42")
    given = parser.parse_args()
    if given.smoke:
        smoke()
        return
    if given.features is None:
        parser.error("FEATURES is missing")
    report(reproduction(given.features, given.out, Config(epochs=given.epochs)), given.seeds)


if __name__ == "__main__":
    main()

"""Training without labels compared: python benchmarks/free.py FEATURES [--seeds 42].

`multibit-free`, CCA-ITQ, CCA-LSH and, as an independent peer, the loss of UCCH (Hu et al., Unsupervised Contrastive
Cross-modal Hashing, TPAMI 2023) on the network of MultiBit, one model for each length. UCCH is written from its
description: a memory of the codes of all training items, updated with momentum, against which each image and each text
is contrasted, and a ranking loss between the modalities over all negatives of a batch. Its temperature and momentum are
the better of two that were tried on the validation rows of the included sample. It is far below CCA there, so it is no
evidence about the published method.

Labels are used for the measured mAP only. Runs are kept in the folder of --out. --smoke trains tiny models on small
planted features and only checks that everything runs.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from multibit import Config, FeatureStore
from multibit.codes.items import DIRECTIONS, CodedItems
from multibit.evaluation.metrics import average_precision
from multibit.evaluation.pair_recall import pair_recall
from multibit.features import Pairs
from multibit.hashing.encode import encode
from multibit.hashing.learner import Batch, Descent, LossLearner
from multibit.hashing.loop import fit
from multibit.hashing.methods.multibit import new_model, temperature_descent
from multibit.paper.reproduction import Reproduction, Subject

KEPT = ("multibit-free", "cca-itq", "cca-lsh")
SMOKE = Config(epochs=1, lengths=(8, 16), scales=2, hidden=16, dimension=8)


@dataclass(frozen=True)
class UcchConfig(Config):
    """The settings of UCCH; of those of MultiBit only the network and the training count."""

    temperature: float = 0.1
    momentum: float = 0.95  # of the memory; with a small one all codes become the same
    margin: float = 0.2
    contrast: float = 0.7  # weight of the contrast with the memory; the ranking loss has the rest


class Ucch(LossLearner):
    """Contrast with a memory of all items, and a ranking loss over all negatives of a batch."""

    parts = ("contrast", "ranking", "total")
    memory: Tensor  # (n, B) unit rows

    def __init__(self, training: Pairs, settings: UcchConfig) -> None:
        super().__init__(training, settings)
        self.settings, self.model = settings, new_model(training, (settings.code_bits,), settings)
        rows = torch.from_numpy(np.random.default_rng(settings.seed).normal(size=(len(training), settings.code_bits)))
        self.register_buffer("memory", functional.normalize(rows.float(), dim=1))

    def optimizers(self, steps: int) -> Sequence[Descent]:
        """Adam."""
        return [temperature_descent(self.model.parameters(), (), self.settings, steps)]

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Both terms; then the memory moves to the mean code of each item."""
        s = self.settings
        image = functional.normalize(self.model(batch.image, "image"), dim=1)
        text = functional.normalize(self.model(batch.text, "text"), dim=1)
        found = [
            functional.cross_entropy(each @ self.memory.T.clone() / s.temperature, batch.rows) for each in (image, text)
        ]
        products = image @ text.T
        own = products.diagonal()
        wrong = ~torch.eye(len(own), dtype=torch.bool)
        hinges = [functional.relu(s.margin + each - own[:, None])[wrong].mean() for each in (products, products.T)]
        with torch.no_grad():
            moved = s.momentum * self.memory[batch.rows] + (1 - s.momentum) * (image + text) / 2
            self.memory[batch.rows] = functional.normalize(moved, dim=1)
        return {"contrast": s.contrast * (found[0] + found[1]), "ranking": (1 - s.contrast) * (hinges[0] + hinges[1])}


def ucch(r: Reproduction, seed: int, side: np.ndarray) -> dict[int, tuple[CodedItems, CodedItems]]:
    """Length -> coded queries and database of a model of that length."""
    coded = {}
    for bits in r.config.lengths:
        c = r.config
        sizes = {"epochs": c.epochs, "hidden": c.hidden, "dimension": c.dimension, "seed": seed, "lengths": (bits,)}
        settings = UcchConfig(scales=1, **sizes)
        learner = Ucch(r.pairs("train"), settings)
        fit(learner, r.pairs("train"), settings, None)
        coded[bits] = encode(learner.model, r.pairs("query")), encode(learner.model, r.store.take(side))
    return coded


def kept(r: Reproduction, method: str, seed: int) -> dict[int, tuple[CodedItems, CodedItems]]:
    """The same of a method of the product."""
    run = r.run(method, seed)
    query, database = r.codes(run, "query"), r.codes(run, "unseen")
    return {bits: (query.at(bits), database.at(bits)) for bits in r.config.lengths}


def measure(coded: dict[int, tuple[CodedItems, CodedItems]]) -> tuple[list[float], list[float]]:
    """MAP with training items out, and recall at 10 among the queries: direction by direction, then by length."""
    maps, recalls = [], []
    for asked, searched in DIRECTIONS.values():
        for bits, (query, database) in coded.items():
            sides = query.codes(asked), database.codes(searched)
            ap = average_precision(*sides, query.labels, database.labels, bits)
            maps.append(100 * float(np.nanmean(ap)))
            recalls.append(100 * float(np.mean(pair_recall(sides[0], query.codes(searched), 10, bits))))
    return maps, recalls


def report(r: Reproduction, seeds: list[int]) -> None:
    """Print the comparison."""
    columns = [f"{direction} {bits}" for direction in DIRECTIONS for bits in r.config.lengths]
    print(f"{len(r.subject.labels):,} items, no labels in training, seeds {', '.join(map(str, seeds))}")
    print(f"{'%':<28}" + "".join(f"{column:>9}" for column in columns))
    for method in (*KEPT, "UCCH"):
        found = [
            measure(ucch(r, seed, r.split.unseen) if method == "UCCH" else kept(r, method, seed)) for seed in seeds
        ]
        for name, values in zip(("mAP out", "R@10"), np.mean(found, axis=0), strict=True):
            print(f"{method + ', ' + name:<28}" + "".join(f"{value:9.2f}" for value in values))


def smoke() -> None:
    """The comparison on 200 items with tiny models, in a temporary folder."""
    rng = np.random.default_rng(0)
    content = rng.normal(size=(200, 12))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "planted.npz"
        sides = {name: (content @ rng.normal(size=(12, 30))).astype(np.float32) for name in ("image", "text")}
        np.savez(path, labels=(content[:, :6] > 0.5).astype(np.uint8), **sides)
        store = FeatureStore.open(path)
        subject = Subject(store.dataset.labels, store.dataset.label_names, store)
        report(Reproduction(subject, Path(folder), SMOKE, say=lambda text: None), [42])


def main() -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path, nargs="?", help="a feature store or .npz file")
    parser.add_argument("--out", type=Path, default=Path("multibit-free-check"))
    parser.add_argument("--seeds", default="42")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--smoke", action="store_true", help="run in a few seconds, without meaningful results")
    given = parser.parse_args()
    if given.smoke:
        smoke()
        return
    if given.features is None:
        parser.error("FEATURES is missing")
    store = FeatureStore.open(given.features)
    subject = Subject(store.dataset.labels, store.dataset.label_names, store)
    config = Config(epochs=given.epochs)
    report(Reproduction(subject, given.out, config, say=lambda text: None), [int(s) for s in given.seeds.split(",")])


if __name__ == "__main__":
    main()

"""Is MultiBit+ better than the paper's method: python benchmarks/plus.py FEATURES [--labels FILE.npz KEY CLIP.npy].

Trains `full` and `multibit-plus` for five seeds on one split and compares them on the query set: mean mAP under both
protocols with a paired interval, resolution, cross-length agreement, and ranking with relaxed queries. Runs are kept in
the folder of --out, so that a second call measures only.

FEATURES is a feature store or `.npz`. With --labels it is made instead: features are planted on real labels, with mean
and covariance of real CLIP picture vectors (CLIP.npy, any number of rows), as a check on data that the method was not
chosen on.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from multibit import Config, FeatureStore
from multibit.evaluation.agreement import asymmetric_average_precision, cross_length_agreement
from multibit.evaluation.comparison import compare_queries
from multibit.evaluation.protocol import DIRECTIONS, Evaluation, evaluate, first_rows
from multibit.report.reproduction import Reproduction, Subject

METRICS = ("NDCG@100 IDF", "tau-b IDF", "collision IDF", "inversion IDF")
ITEMS = 12_000  # planted


def planted(labels: np.ndarray, clip: np.ndarray, seed: int = 0) -> dict[str, np.ndarray]:
    """Features (N, d) of two modalities on real labels, with mean and covariance of real CLIP vectors.

    In the whitened space of the CLIP vectors an item is a sum of three parts: what its labels say, of which each
    modality shows a part only; a content that both modalities share; and noise.
    """
    rng = np.random.default_rng(seed)
    unit = clip / np.linalg.norm(clip, axis=1, keepdims=True)
    mean, (variance, axes) = unit.mean(axis=0), np.linalg.eigh(np.cov(unit.T))
    kept = np.argsort(-variance)[:256]
    spread = np.sqrt(np.maximum(variance[kept], 0))[:, None] * axes[:, kept].T  # (256, d)
    frequency, content = labels.mean(axis=0), rng.normal(size=(len(labels), 256))
    features = {}
    for modality, visible in {"image": 0.85, "text": 0.7}.items():
        seen = labels * (rng.random(labels.shape) < visible)
        signal = (seen - visible * frequency) @ rng.normal(size=(labels.shape[1], 256))
        shared = content @ rng.normal(size=(256, 256)) / 16
        parts = np.sqrt([0.35, 0.25, 0.4])
        whitened = parts[0] * signal / signal.std() + parts[1] * shared + parts[2] * rng.normal(size=content.shape)
        features[modality] = (mean + whitened @ spread).astype(np.float32)
    return features


def mean_map(evaluation: Evaluation) -> np.ndarray:
    """(lengths,) mean mAP of both directions in percent."""
    return np.array([50 * sum(evaluation.mean("mAP", d, b) for d in DIRECTIONS) for b in evaluation.lengths])


def per_query(evaluation: Evaluation) -> np.ndarray:
    """(Q,) AP in percent, mean over directions and lengths."""
    return 100 * np.mean([evaluation.values["mAP", d, b] for d in DIRECTIONS for b in evaluation.lengths], axis=0)


def same_candidates(r: Reproduction, variant: str, other: str, seed: int) -> Evaluation:
    """Resolution of a variant over the first ranks of both, the same candidates for either.

    In the paper's pools the full model is measured on its own first ranks alone, which only it has sorted.
    """
    (query, database), (asked, searched) = (
        [r.codes(r.run(name, seed), side) for side in ("query", "database")] for name in (variant, other)
    )
    return evaluate(
        query,
        database,
        r.config.lengths,
        training_labels=r.subject.labels[r.split.train],
        graded=[r.references["IDF"]],
        anchor=first_rows(asked, searched, r.config.lengths),
    )


def resolution(evaluations: list[Evaluation], metric: str) -> np.ndarray:
    """(lengths,) mean of both directions and all seeds in percent."""
    each = [[np.mean([e.mean(metric, d, b) for d in DIRECTIONS]) for b in e.lengths] for e in evaluations]
    return 100 * np.mean(each, axis=0)


def agreement(r: Reproduction, variant: str, seed: int) -> float:
    """Mean tau-b of all pairs of lengths and both directions."""
    run = r.run(variant, seed)
    query, database = r.codes(run, "query"), r.codes(run, "database")
    pairs = [
        pair
        for a, b in DIRECTIONS.values()
        for pair in cross_length_agreement(query.codes(a), database.codes(b), r.config.lengths)
    ]
    return float(np.mean([pair.tau.mean() for pair in pairs]))


def asymmetric(r: Reproduction, variant: str, seed: int, side: str) -> np.ndarray:
    """(lengths,) mean mAP in percent where the query keeps its real values and the database is binary."""
    run, pairs = r.run(variant, seed), r.store.take(r.split.query)
    database = r.codes(run, side)
    values = []
    for asked, searched in DIRECTIONS.values():
        relaxed = run.model.encode(pairs.image if asked == "image" else pairs.mean_text, asked)
        codes = database.codes(searched)
        aps = [asymmetric_average_precision(relaxed, codes, pairs.labels, database.labels, b) for b in r.config.lengths]
        values.append([100 * np.nanmean(ap) for ap in aps])
    return np.mean(values, axis=0)


def row(name: str, values: np.ndarray) -> str:
    """One line of a table: a value for each length, and their mean."""
    return f"{name:<34}" + "".join(f"{value:9.2f}" for value in (*values, np.mean(values)))


def report(r: Reproduction, seeds: list[int]) -> None:
    """Everything that the two are compared by."""
    names = ("full", "multibit-plus")
    print(f"{len(r.subject.labels):,} items, split seed 42, trained with seeds {', '.join(map(str, seeds))}")
    print(f"{'mean mAP of both directions, %':<34}" + "".join(f"{bits:>9}" for bits in (*r.config.lengths, "mean")))
    for protocol in ("in", "out"):
        found = {n: [r.evaluation(n, s, protocol=protocol) for s in seeds] for n in names}
        for name in names:
            print(row(f"{protocol}, {name}", np.mean([mean_map(e) for e in found[name]], axis=0)))
        gains = [mean_map(p) - mean_map(f) for f, p in zip(*found.values(), strict=True)]
        of_seeds = " ".join(f"{gain.mean():.2f}" for gain in gains)
        print(row(f"{protocol}, gain", np.mean(gains, axis=0)) + f"   of seeds {of_seeds}")
        side = "database" if protocol == "in" else "unseen"
        for name in names:
            relaxed = np.mean([asymmetric(r, name, s, side) for s in seeds], axis=0)
            print(row(f"{protocol}, {name}, asymmetric", relaxed))
        full, plus = (np.mean([per_query(e) for e in found[name]], axis=0) for name in names)
        test = compare_queries(plus, full)
        print(f"{'':<34}paired over queries: {test.mean:+.2f}, 95 % interval {test.low:+.2f} to {test.high:+.2f}")
    for metric in METRICS:
        for name in names:
            print(row(f"{metric}, {name}", resolution([r.evaluation(name, s, graded=True) for s in seeds], metric)))
    shared = {name: [same_candidates(r, name, other, s) for s in seeds] for name, other in (names, names[::-1])}
    print("on the same candidates, the first ranks of both:")
    for metric in METRICS[1:]:
        for name in names:
            print(row(f"{metric}, {name}", resolution(shared[name], metric)))
    for name in names:
        print(f"{'cross-length tau-b, ' + name:<34}{100 * np.mean([agreement(r, name, s) for s in seeds]):9.2f}")


def main() -> None:
    """Compare, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path)
    parser.add_argument("--labels", nargs=3, metavar=("FILE", "KEY", "CLIP"))
    parser.add_argument("--out", type=Path, default=Path("multibit-plus-check"))
    parser.add_argument("--seeds", default="42,43,44,45,46")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--alpha", type=float, default=0.9)
    given = parser.parse_args()
    if given.labels and not given.features.exists():
        labels = np.load(given.labels[0])[given.labels[1]]
        labels = labels[np.sort(np.random.default_rng(0).permutation(len(labels))[:ITEMS])]
        given.features.parent.mkdir(parents=True, exist_ok=True)
        np.savez(given.features, labels=labels, **planted(labels, np.load(given.labels[2]).astype(np.float64)))
    store = FeatureStore.open(given.features)
    config = Config(epochs=given.epochs, alpha=given.alpha)
    subject = Subject(store.dataset.labels, store.dataset.label_names, store)
    report(Reproduction(subject, given.out, config, say=lambda text: None), [int(s) for s in given.seeds.split(",")])


if __name__ == "__main__":
    main()

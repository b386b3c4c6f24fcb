"""MultiBit+ compared with the paper's method: python benchmarks/plus.py FEATURES [--labels FILE.npz KEY CLIP.npy].

Trains `multibit` and `multibit-plus` for five seeds on one split and compares them on the query set: mean mAP under
both protocols with a paired interval, resolution, pair recall, cross-length agreement, and ranking with relaxed
queries. Runs are kept in the folder of --out, so a second call only measures. --before NAME=VALUE ... compares
`multibit-plus` with itself under other settings, instead of with `multibit`.

FEATURES is a feature store or `.npz`. With --labels it is created: features are planted on real labels, with mean and
covariance of real CLIP image vectors (CLIP.npy, any number of rows), as a check on data that the method was not
selected on; with --tags the texts are the real tags of FILE.npz as words. With --sides N it is created with one of ten
labels for each of 2,866 items and features of only N values, where the texts of ten values are topic vectors; with
--histograms the texts are these and the images are histograms of 128 visual words. --smoke trains a tiny model on small
planted features and only checks that everything runs.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_matrix
from trainings import comparison_parser, own_recall, reproduction, smoke_reproduction

from multibit import Config
from multibit.codes.items import DIRECTIONS
from multibit.evaluation.agreement import cross_length_agreement
from multibit.evaluation.comparison import compare_queries
from multibit.evaluation.evaluation import Evaluation
from multibit.evaluation.metric import COLLISION, INVERSION, MAP, NDCG, TAU_B, Metric
from multibit.evaluation.protocol import evaluate
from multibit.evaluation.real_precision import asymmetric_average_precision
from multibit.paper.reproduction import Reproduction
from multibit.runs import Run

METRICS = [metric.under("IDF") for metric in (NDCG, TAU_B, COLLISION, INVERSION)]
ITEMS = 12_000  # planted


def planted(labels: np.ndarray, clip: np.ndarray, seed: int = 0) -> dict[str, np.ndarray]:
    """Features (N, d) of two modalities on real labels, with mean and covariance of real CLIP vectors.

    In the whitened space of the CLIP vectors an item is a sum of three parts: its labels, of which each modality shows
    only some; a content that both modalities share; and noise.
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


def planted_on(file: str, key: str, clip: str, tags: bool) -> dict[str, np.ndarray]:
    """Features planted on the labels of at most `ITEMS` items of a file, with CLIP vectors of another.

    With `tags` the texts are not planted: they are the words of the items in the file, 1 for each that an item has.
    """
    data = np.load(file)
    rows = np.sort(np.random.default_rng(0).permutation(len(data[key]))[:ITEMS])
    arrays = {"labels": data[key][rows], **planted(data[key][rows], np.load(clip).astype(np.float64))}
    if tags:
        parts = (data["tags_indices"], data["tags_indptr"])
        words = csr_matrix((np.ones(len(parts[0]), np.float32), *parts), shape=tuple(data["tags_shape"]))
        arrays["text"] = words[rows].toarray()
    return arrays


SHARES = np.array([6, 5, 8, 9, 9, 7, 12, 14, 12, 18]) / 100  # of ten labels


def topics(rng: np.random.Generator, labels: np.ndarray, own: float) -> np.ndarray:
    """Topic vectors (N, 10): each label has a topic of its own, to this degree, and some of the others."""
    usual = own * np.eye(len(SHARES)) + 0.25 * rng.gamma(0.2, 1, (len(SHARES), len(SHARES))) + 0.03
    return np.maximum([rng.dirichlet(0.6 * each) for each in labels @ usual], 1e-4).astype(np.float32)


def histograms(items: int = 2866, words: int = 128, seed: int = 0) -> dict[str, np.ndarray]:
    """One of ten labels for each item, topic vectors as texts, and images that show little of it.

    An image has 200 to 800 visual words. How often each occurs depends most on the word, and less on item and label.
    """
    rng = np.random.default_rng(seed)
    labels = np.eye(len(SHARES), dtype=np.uint8)[rng.choice(len(SHARES), items, p=SHARES)]
    text = topics(rng, labels, own=0.7)
    common, of_label = 0.8 * rng.normal(size=words), 0.1 * rng.normal(size=(len(SHARES), words))
    of_item = 0.125 * rng.normal(size=(items, 16)) @ rng.normal(size=(16, words))
    frequency = np.exp(common + labels @ of_label + of_item)
    frequency /= frequency.sum(axis=1, keepdims=True)
    counts = np.array([rng.multinomial(rng.integers(200, 800), each) for each in frequency])
    return {"labels": labels, "image": (counts / counts.sum(axis=1, keepdims=True)).astype(np.float32), "text": text}


def few_values(dimension: int, items: int = 2866, seed: int = 0) -> dict[str, np.ndarray]:
    """One of ten labels for each item, and features of few values (N, dimension) that show it with noise.

    Texts of ten values are topic vectors.
    """
    rng = np.random.default_rng(seed)
    labels = np.eye(len(SHARES), dtype=np.uint8)[rng.choice(len(SHARES), items, p=SHARES)]
    content = rng.normal(size=(items, 64))
    features = {"labels": labels}
    for modality, visible in {"image": 0.9, "text": 0.9}.items():
        seen = labels * (rng.random(labels.shape) < visible)
        signal = (seen - visible * SHARES) @ rng.normal(size=(len(SHARES), dimension))
        shared = content @ rng.normal(size=(64, dimension)) / 8
        parts = np.sqrt([0.35, 0.25, 0.4])
        noise = rng.normal(size=signal.shape)
        values = parts[0] * signal / signal.std() + parts[1] * shared + parts[2] * noise
        features[modality] = (values * np.arange(1, dimension + 1) ** -0.3).astype(np.float32)
    if dimension == len(SHARES):
        features["text"] = topics(rng, labels, own=1.2)
    return features


class Contender(NamedTuple):
    """A method with settings of its own, and its name in the tables."""

    name: str
    method: str
    settings: dict[str, Any]

    def run(self, r: Reproduction, seed: int) -> Run:
        """Its model."""
        return r.run(self.method, seed, **self.settings)

    def evaluations(self, r: Reproduction, seeds: list[int], **how: Any) -> list[Evaluation]:
        """One for each seed; `how` is that of `Reproduction.evaluation`."""
        return [r.evaluation(self.method, seed, **how, **self.settings) for seed in seeds]


MULTIBIT, PLUS = (Contender(name, name, {}) for name in ("multibit", "multibit-plus"))


def mean_map(evaluation: Evaluation) -> np.ndarray:
    """(lengths,) mean mAP of both directions in percent."""
    return np.array([50 * sum(evaluation.mean(MAP, d, b) for d in DIRECTIONS) for b in evaluation.lengths])


def gain_by_direction(plus: list[Evaluation], full: list[Evaluation]) -> dict[str, np.ndarray]:
    """Direction -> (lengths,) gain of mAP in percent, mean of all seeds."""
    both = zip(plus, full, strict=True)
    gains = [[[p.mean(MAP, d, b) - f.mean(MAP, d, b) for b in p.lengths] for d in DIRECTIONS] for p, f in both]
    return dict(zip(DIRECTIONS, 100 * np.mean(gains, axis=0), strict=True))


def per_query(evaluation: Evaluation) -> np.ndarray:
    """(Q,) AP in percent, mean over directions and lengths."""
    return 100 * np.mean([evaluation.values[MAP, d, b] for d in DIRECTIONS for b in evaluation.lengths], axis=0)


def same_candidates(r: Reproduction, one: Contender, other: Contender, seed: int) -> Evaluation:
    """Resolution of one over the first ranks of both, so that the candidates are the same.

    In the paper's pools the method `multibit` is measured only on its own first ranks.
    """
    run, lengths = one.run(r, seed), r.config.lengths
    return evaluate(
        r.codes(run, "query"),
        r.codes(run, "database"),
        lengths,
        training_labels=r.subject.labels[r.split.train],
        graded=[r.references["IDF"]],
        anchor=r.rankings(other.run(r, seed), "database", lengths).anchor,
    )


def resolution(evaluations: list[Evaluation], metric: Metric) -> np.ndarray:
    """(lengths,) mean of both directions and all seeds in percent."""
    each = [[np.mean([e.mean(metric, d, b) for d in DIRECTIONS]) for b in e.lengths] for e in evaluations]
    return 100 * np.mean(each, axis=0)


def recalls(r: Reproduction, one: Contender, seed: int, direction: str) -> list[float]:
    """Recall at 10 of the own counterpart among the query items, in percent, by length."""
    query = r.codes(one.run(r, seed), "query")
    return [own_recall(query, direction, bits) for bits in r.config.lengths]


def agreement(r: Reproduction, one: Contender, seed: int) -> float:
    """Mean tau-b of all pairs of lengths and both directions."""
    run = one.run(r, seed)
    query, database = r.codes(run, "query"), r.codes(run, "database")
    pairs = [
        pair
        for a, b in DIRECTIONS.values()
        for pair in cross_length_agreement(query.codes(a), database.codes(b), r.config.lengths)
    ]
    return float(np.mean([pair.tau.mean() for pair in pairs]))


def asymmetric(r: Reproduction, one: Contender, seed: int, side: str) -> np.ndarray:
    """(lengths,) mean mAP in percent where the query keeps its real values and the database is binary."""
    run = one.run(r, seed)
    query, database = r.codes(run, "query"), r.codes(run, side)
    values = []
    for asked, searched in DIRECTIONS.values():
        sides = query.relaxed[asked], database.codes(searched), query.labels, database.labels
        aps = [asymmetric_average_precision(*sides, bits) for bits in r.config.lengths]
        values.append([100 * np.nanmean(ap) for ap in aps])
    return np.mean(values, axis=0)


def row(name: str, values: np.ndarray) -> str:
    """One line of a table: a value for each length, and their mean."""
    return f"{name:<34}" + "".join(f"{value:9.2f}" for value in (*values, np.mean(values)))


def report(r: Reproduction, seeds: list[int], other: Contender = MULTIBIT) -> None:
    """Print the whole comparison."""
    print(f"{len(r.subject.labels):,} items, split seed 42, trained with seeds {', '.join(map(str, seeds))}")
    print(f"{'mean mAP of both directions, %':<34}" + "".join(f"{bits:>9}" for bits in (*r.config.lengths, "mean")))
    for protocol in ("in", "out"):
        report_accuracy(r, seeds, other, protocol)
    pair = other, PLUS
    report_resolution([(one.name, one.evaluations(r, seeds, graded=True)) for one in pair], METRICS)
    for direction in DIRECTIONS:
        for one in pair:
            found = np.mean([recalls(r, one, s, direction) for s in seeds], axis=0)
            print(row(f"R@10 {direction}, {one.name}", found))
    print("on the same candidates, the first ranks of both:")
    shared = [(a.name, [same_candidates(r, a, b, s) for s in seeds]) for a, b in (pair, pair[::-1])]
    report_resolution(shared, METRICS[1:])
    for one in pair:
        print(f"{'cross-length tau-b, ' + one.name:<34}{100 * np.mean([agreement(r, one, s) for s in seeds]):9.2f}")


def report_accuracy(r: Reproduction, seeds: list[int], other: Contender, protocol: str) -> None:
    """Print mAP under one protocol."""
    found = [one.evaluations(r, seeds, protocol=protocol) for one in (other, PLUS)]
    for one, each in zip((other, PLUS), found, strict=True):
        print(row(f"{protocol}, {one.name}", np.mean([mean_map(e) for e in each], axis=0)))
    gains = [mean_map(p) - mean_map(f) for f, p in zip(*found, strict=True)]
    of_seeds = " ".join(f"{gain.mean():.2f}" for gain in gains)
    print(row(f"{protocol}, gain", np.mean(gains, axis=0)) + f"   of seeds {of_seeds}")
    for direction, gain in gain_by_direction(found[1], found[0]).items():
        print(row(f"{protocol}, gain, {direction}", gain))
    side = "database" if protocol == "in" else "unseen"
    for one in (other, PLUS):
        relaxed = np.mean([asymmetric(r, one, s, side) for s in seeds], axis=0)
        print(row(f"{protocol}, {one.name}, asymmetric", relaxed))
    before, after = (np.mean([per_query(e) for e in each], axis=0) for each in found)
    test = compare_queries(after, before)
    print(f"{'':<34}paired over queries: {test.mean:+.2f}, 95 % interval {test.low:+.2f} to {test.high:+.2f}")


def report_resolution(found: list[tuple[str, list[Evaluation]]], metrics: list[Metric]) -> None:
    """Print some metrics of graded relevance."""
    for metric in metrics:
        for name, evaluations in found:
            print(row(f"{metric}, {name}", resolution(evaluations, metric)))


def smoke() -> None:
    """The comparison on 200 items with a tiny model."""
    rng = np.random.default_rng(0)
    labels = (rng.random((200, 6)) < 0.3).astype(np.uint8)
    labels[:, 0] |= ~labels.any(axis=1)
    with smoke_reproduction(labels=labels, **planted(labels, rng.normal(size=(400, 300)) + 1)) as tiny:
        report(tiny, [42])


def new_features(given: Namespace) -> dict[str, np.ndarray]:
    """The planted features that were asked for."""
    if given.histograms:
        return histograms()
    return few_values(given.sides) if given.sides else planted_on(*given.labels, given.tags)


def main() -> None:
    """Compare and print."""
    parser = comparison_parser(__doc__, folder="multibit-plus-check", seeds="42,43,44,45,46")
    parser.add_argument("--labels", nargs=3, metavar=("FILE", "KEY", "CLIP"))
    parser.add_argument("--tags", action="store_true", help="with --labels: the texts are the tags of FILE")
    parser.add_argument("--before", nargs="+", metavar="NAME=VALUE", help="settings of multibit-plus to compare with")
    parser.add_argument("--sides", type=int, metavar="N", help="plant features of N values")
    parser.add_argument("--histograms", action="store_true", help="plant histograms and topic vectors")
    parser.add_argument("--alpha", type=float, default=0.9)
    given = parser.parse_args()
    if given.smoke:
        smoke()
        return
    if given.features is None:
        parser.error("FEATURES is missing")
    if not given.features.exists() and (given.sides or given.histograms or given.labels):
        given.features.parent.mkdir(parents=True, exist_ok=True)
        np.savez(given.features, **new_features(given))
    other = MULTIBIT
    if given.before:
        other = Contender("before", "multibit-plus", dict(each.split("=", 1) for each in given.before))
    config = Config(epochs=given.epochs, alpha=given.alpha)
    report(reproduction(given.features, given.out, config), given.seeds, other)


if __name__ == "__main__":
    main()

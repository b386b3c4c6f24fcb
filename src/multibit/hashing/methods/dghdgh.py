"""DGHDGH: triplets with hard negatives that a graph network on the batch makes from the real ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from multibit.codes.items import MODALITIES, Modality
from multibit.config import EpochSettings
from multibit.features import Pairs
from multibit.hashing.graph_network import Edges, GraphNetwork
from multibit.hashing.learner import Batch, Descent, Learner, seeded
from multibit.hashing.linear_hash import LinearHash
from multibit.hashing.losses import mean_triplet_hinge, shared_labels, soft_label_cross_entropy
from multibit.hashing.methods.base import Method
from multibit.hashing.optimizers import bert_descent, constant_descent

LEAST_DISTANCE = 1e-6
NEGLIGIBLE = 2.0**-24  # eta below this changes no float32 value that lambda * eta is added to
SMALL_SHARE, LARGE_SHARE = 0.1, 0.9  # the two weights that synthetic negatives can have
HEAD_NORM, NETWORK_NORM = 2.0, 1.0  # largest norms of the gradients of the hash layers and of the graph network
GRAPHS = len(MODALITIES) ** 2
Sides = Mapping[Modality, Tensor]


@dataclass(frozen=True)
class DghdghSettings(EpochSettings):
    """The settings of DGHDGH."""

    lengths: tuple[int, ...] = (16, 32, 64, 128)  # target code lengths, each with a model of its own
    margin: float = 0.25  # of the cosine with a positive item over that with a negative one
    alpha: float = 5.0  # how easy synthetic negatives are while the triplet loss is large
    beta: float = 2.0  # how soon a falling loss of the generator gives synthetic negatives their large weight
    graph_weight: float = 1.0  # weight of the classification of the nodes
    classifier_weight: float = 10.0  # weight of the classification of codes
    class_weight: float = 10.0  # generator: weight of the classification of synthetic negatives
    near_weight: float = 10.0  # generator: weight of the cosine of synthetic negatives with their anchor
    diversity_weight: float = 0.3  # generator: weight of the diversity of lambda
    graph_layers: int = 2
    graph_heads: int = 4  # of the attention; reduced to a divisor of the code length
    graph_degree: int = 32  # most items of the batch that an item has edges with; from the batch size on all of them
    synthetic_triplets: int = 4096  # most triplets of a graph with a synthetic negative, a sample of all
    graph_rate: float = 1e-5  # learning rate of the graph network and of the classifier
    graph_decay: float = 0.2  # times its weights, added to the gradient of the graph network
    epochs: int = 100
    batch_size: int = 128
    learning_rate: float = 1e-3  # of the hash layers
    seed: int = 42  # of initial weights, batches, dropout and sampled triplets; the split has its own

    POSITIVE = ("learning_rate", "graph_rate")


class Triplets(NamedTuple):
    """Positions of anchors, positive and negative items: (T,) int64 each."""

    anchor: Tensor
    near: Tensor
    far: Tensor


class Graph(NamedTuple):
    """The graph of a batch from the codes of one modality to those of one.

    Attributes:
        first, second: modalities. related: (b, b) bool. edges: of the items. triplets: of linked items, or a sample.
    """

    first: Modality
    second: Modality
    related: Tensor
    edges: Edges
    triplets: Triplets


class Dghdgh(Learner):
    """Three updates for each batch: of the hash layers with the graph network, of the classifier, of the generator.

    Attributes:
        model: linear hash layers. network: the graph network. classifier: code -> logits.
        triplet_mean, generator_mean: means of their losses in this epoch so far, 0 before the first batch.
        batches: of this epoch so far.
    """

    parts = ("triplet", "graph", "synthetic", "classifier", "class", "near", "diversity", "total")
    smallest_batch = 2
    needs_unrelated = True
    full_batches = True
    triplet_mean: Tensor
    generator_mean: Tensor
    batches: Tensor

    def __init__(self, training: Pairs, settings: DghdghSettings) -> None:
        super().__init__(training, settings)
        self.settings = settings
        bits, classes = settings.code_bits, training.labels.shape[1]
        with seeded(settings.seed):
            self.model = LinearHash(training.image.shape[1], training.text.shape[1], bits)
            self.network = GraphNetwork(bits, classes, settings.graph_layers, settings.graph_heads)
            self.classifier = nn.Linear(bits, classes)
        for name in ("triplet_mean", "generator_mean", "batches"):
            self.register_buffer(name, torch.zeros(()))

    def optimizers(self, steps: int) -> Sequence[Descent]:
        """BertAdam for the hash layers, Adam at a constant rate for the graph network and for the classifier."""
        rate, decay = self.settings.graph_rate, self.settings.graph_decay
        heads = bert_descent(self.model.parameters(), self.settings.learning_rate, steps, clip=HEAD_NORM)
        network = torch.optim.Adam(self.network.parameters(), rate, weight_decay=decay, fused=True)
        classifier = torch.optim.Adam(self.classifier.parameters(), rate, fused=True)
        return [heads, constant_descent(network, NETWORK_NORM), constant_descent(classifier)]

    def start_epoch(self, epoch: int) -> None:
        """The running means begin anew."""
        for each in (self.triplet_mean, self.generator_mean, self.batches):
            each.zero_()

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """All weighted terms at the present weights: J_m, classifier and J_gen, which `step` minimises in turn."""
        codes, graphs = self.codes(batch), self.graphs(batch.labels)
        fixed = _detached(codes)
        terms = [
            self.triplet_loss(codes, batch.labels),
            *torch.stack([self.hash_terms(codes, batch.labels, graph) for graph in graphs]).sum(dim=0),
            self.classifier_loss(fixed, batch.labels),
            *torch.stack([self.generator_terms(fixed, batch.labels, graph) for graph in graphs]).sum(dim=0),
        ]
        return dict(zip(self.parts, terms, strict=False))

    def step(self, batch: Batch, descents: Sequence[Descent]) -> Tensor:
        """Update the hash layers with the graph network, then the classifier, then the graph network as generator.

        The last two see the codes as they were before the first update.
        """
        heads, network, classifier = descents
        labels, graphs = batch.labels, self.graphs(batch.labels)
        codes = self.codes(batch)
        hashed = self._update_hash(codes, labels, graphs, heads, network)  # (3,)
        fixed = _detached(codes)
        classified = self.classifier_loss(fixed, labels)  # ()
        classifier.step(classified)
        self.batches += 1
        self.triplet_mean += (hashed[0] - self.triplet_mean) / self.batches  # the generator has it with this batch
        generated = self._update_generator(fixed, labels, graphs, network)  # (3,)
        self.generator_mean += (generated.sum() - self.generator_mean) / self.batches
        values = torch.cat([hashed, classified.detach()[None], generated])  # (7,)
        return torch.cat([values, values.sum()[None]])

    def codes(self, batch: Batch) -> dict[Modality, Tensor]:
        """(b, B) relaxed codes of both modalities, of unit length."""
        return {
            "image": functional.normalize(self.model(batch.image, "image"), dim=1),
            "text": functional.normalize(self.model(batch.text, "text"), dim=1),
        }

    def graphs(self, labels: Tensor) -> list[Graph]:
        """The four graphs of a batch, from either modality to either.

        The order of the batch is random, so the ring of `Edges` links random items.

        Args:
            labels: (b, C) multi-hot.
        """
        related = shared_labels(labels) > 0
        graphs: list[Graph] = []
        for within in (True, False):
            edges = Edges.of(len(labels), symmetric=within, degree=self.settings.graph_degree, like=labels)
            triplets = draw_triplets(related, edges.linked, self.settings.synthetic_triplets, without_self=within)
            graphs += [
                Graph(first, second, related, edges, triplets)
                for first in MODALITIES
                for second in MODALITIES
                if (first == second) == within
            ]
        return graphs

    @property
    def eta(self) -> float:
        """exp(-alpha / J_avg), with J_avg the mean triplet loss of this epoch so far; 1 before the first is known."""
        if not self.batches:
            return 1.0
        mean = float(self.triplet_mean)
        return math.exp(-self.settings.alpha / mean) if mean else 0.0

    @property
    def synthetic_weight(self) -> float:
        """l3: 0.9 where 1 - exp(-beta / mean generator loss) is at least that, else 0.1."""
        mean = float(self.generator_mean)
        share = 1 - math.exp(-self.settings.beta / mean) if mean > 0 else 0.0
        return LARGE_SHARE if share >= LARGE_SHARE else SMALL_SHARE

    def triplet_loss(self, codes: Sides, labels: Tensor) -> Tensor:
        """J_r: mean of the triplet losses from either modality to either; inside one, no item is its own positive."""
        related = shared_labels(labels) > 0
        others = related & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
        losses = [
            mean_triplet_hinge(
                -codes[first] @ codes[second].T,
                (others if first == second else related).to(labels.dtype),
                ~related,
                self.settings.margin,
            )
            for first in MODALITIES
            for second in MODALITIES
        ]
        return torch.stack(losses).mean()

    def hash_terms(self, codes: Sides, labels: Tensor, graph: Graph) -> Tensor:
        """(2,) share of a graph in the mean of l2 J_gca and l3 J_syn; lambda is constant."""
        first, second = codes[graph.first], codes[graph.second]  # (b, B)
        logits, nodes, values = self.network(first, second, graph.related, graph.edges)
        anchor, near, far = graph.triplets
        eta, strength = self.eta, torch.zeros_like(first[anchor])  # (T, B) lambda * eta
        if eta >= NEGLIGIBLE:
            with torch.no_grad():
                strength = eta * self.network.interpolation(nodes, values, graph.edges)[graph.edges.row[anchor, far]]
        synthetic = synthesize(first[anchor], second[near], second[far], strength)
        classified = soft_label_cross_entropy(logits, labels)
        ranked = hard_hinge(first[anchor], second[near], synthetic, self.settings.margin)
        weighted = [self.settings.graph_weight * classified, self.synthetic_weight * ranked]
        return torch.stack(weighted) / GRAPHS

    def classifier_loss(self, codes: Sides, labels: Tensor) -> Tensor:
        """Weighted mean of the classification losses of both modalities."""
        losses = [soft_label_cross_entropy(self.classifier(each), labels) for each in codes.values()]
        return self.settings.classifier_weight * torch.stack(losses).mean()

    def generator_terms(self, codes: Sides, labels: Tensor, graph: Graph) -> Tensor:
        """(3,) share of a graph in the mean of weighted J_ce, J_sim and J_div; codes and classifier are constant."""
        first, second = codes[graph.first], codes[graph.second]  # (b, B)
        _, nodes, values = self.network(first, second, graph.related, graph.edges)
        between = self.network.interpolation(nodes, values, graph.edges)  # (E, B) lambda
        anchor, near, far = graph.triplets
        strength = self.eta * between[graph.edges.row[anchor, far]]
        synthetic = synthesize(first[anchor], second[near], second[far], strength)  # (T, B)
        logits = functional.linear(synthetic, self.classifier.weight.detach(), self.classifier.bias.detach())
        distances = 1 - torch.cosine_similarity(first[anchor], synthetic, dim=1)  # (T,)
        settings, some = self.settings, max(len(anchor), 1)
        terms = [
            settings.class_weight * -(labels[far] * torch.log_softmax(logits, dim=1)).sum() / some,
            settings.near_weight * distances.sum() / some,
            settings.diversity_weight * (1 - spread(between, graph.edges)),
        ]
        return torch.stack(terms) / GRAPHS

    def _update_hash(
        self, codes: Sides, labels: Tensor, graphs: Sequence[Graph], heads: Descent, network: Descent
    ) -> Tensor:
        """One step of both down the gradient of J_m, which is made graph by graph to have only one in memory.

        Returns:
            (3,) the triplet loss, and the terms of `hash_terms`.
        """
        ends: Sides = {name: each.detach().requires_grad_() for name, each in codes.items()}
        for descent in (heads, network):
            descent.clear()
        triplet = self.triplet_loss(ends, labels)
        triplet.backward()  # type: ignore[no-untyped-call]
        values = [_differentiate(self.hash_terms(ends, labels, graph)) for graph in graphs]
        torch.autograd.backward(list(codes.values()), [each.grad for each in ends.values()])
        heads.follow()
        network.follow()
        return torch.cat([triplet.detach()[None], torch.stack(values).sum(dim=0)])

    def _update_generator(self, codes: Sides, labels: Tensor, graphs: Sequence[Graph], network: Descent) -> Tensor:
        """One step of the graph network down the gradient of J_gen, graph by graph: (3,) terms of `generator_terms`."""
        network.clear()
        values = [_differentiate(self.generator_terms(codes, labels, graph)) for graph in graphs]
        network.follow()
        return torch.stack(values).sum(dim=0)


def draw_triplets(related: Tensor, linked: Tensor, most: int, *, without_self: bool) -> Triplets:
    """All triplets of an anchor, a related item, and an unrelated item that is linked with the anchor; or a sample.

    Args:
        related, linked: (n, n) bool. most: size of the sample that is drawn, with replacement, where there are more.
        without_self: whether an anchor is not its own positive.

    Example:
        >>> related = torch.tensor([[1, 1, 0], [1, 1, 0], [0, 0, 1]]) > 0
        >>> [part.tolist() for part in draw_triplets(related, torch.ones_like(related), 9, without_self=True)]
        [[0, 1], [1, 0], [2, 2]]
    """
    near = related & ~torch.eye(len(related), dtype=torch.bool, device=related.device) if without_self else related
    far = linked & ~related
    near_count, far_count = near.sum(dim=1), far.sum(dim=1)  # (n,)
    ends = (near_count * far_count).cumsum(dim=0)  # (n,) numbers of the triplets up to each anchor
    total = int(ends[-1])
    if total <= most:
        chosen = torch.arange(total, device=related.device)
    else:
        chosen = torch.randint(total, (most,), device=related.device)
    anchor = torch.searchsorted(ends, chosen, right=True)  # (T,)
    within = chosen - (ends - near_count * far_count)[anchor]
    near_items, far_items = (each.to(torch.int8).argsort(dim=1, descending=True, stable=True) for each in (near, far))
    return Triplets(
        anchor, near_items[anchor, within // far_count[anchor]], far_items[anchor, within % far_count[anchor]]
    )


def synthesize(anchor: Tensor, near: Tensor, far: Tensor, strength: Tensor) -> Tensor:
    """Synthetic negatives (1 - r) a + r n with r = (1 - s) d_ap / d_an + s; n itself where it is nearer than p.

    Args:
        anchor, near, far: (T, B) a, p and n. strength: (T, B) s = lambda * eta, in [0, 1] for each value.

    Example:
        >>> anchor, near, far = torch.zeros(1, 2), torch.tensor([[0.0, 1.0]]), torch.tensor([[4.0, 0.0]])
        >>> synthesize(anchor, near, far, strength=torch.tensor([[0.0, 0.0]]))  # as far from the anchor as p
        tensor([[1., 0.]])
    """
    to_near, to_far = (
        torch.linalg.vector_norm(anchor - each, dim=1, keepdim=True).clamp(min=LEAST_DISTANCE) for each in (near, far)
    )  # (T, 1)
    reach = (1 - strength) * (to_near / to_far) + strength  # (T, B)
    return torch.where(to_near < to_far, (1 - reach) * anchor + reach * far, far)


def hard_hinge(anchor: Tensor, near: Tensor, synthetic: Tensor, margin: float) -> Tensor:
    """Mean of S_an - S_ap + margin over the triplets with S_ap < S_an, of cosines; 0 without any.

    Args:
        anchor, near: (T, B) of unit length. synthetic: (T, B) negatives.

    Example:
        >>> anchor, near = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
        >>> float(hard_hinge(anchor, near, 2 * anchor, margin=0.25)), float(hard_hinge(anchor, near, near, margin=0.25))
        (1.25, 0.0)
    """
    excess = torch.cosine_similarity(anchor, synthetic, dim=1) - (anchor * near).sum(dim=1)  # (T,)
    hard = excess > 0
    return ((excess + margin) * hard).sum() / hard.sum().clamp(min=1)


def spread(between: Tensor, edges: Edges) -> Tensor:
    """Root of the mean over all pairs of the squared distance of lambda from its mean over the same source.

    Args:
        between: (E, B) lambda. edges: of n nodes.
    """
    centred = between - edges.mean(between)  # of small size, for the difference below
    means = edges.mean_by_source(centred)  # (n, B)
    variance = edges.mean(centred.square()).sum() - means.square().sum(dim=1).mean()
    return variance.clamp(min=LEAST_DISTANCE**2).sqrt()


def _detached(codes: Sides) -> dict[Modality, Tensor]:
    return {name: each.detach() for name, each in codes.items()}


def _differentiate(terms: Tensor) -> Tensor:
    """Add the gradient of the sum of some terms to that of the weights: the terms as values."""
    terms.sum().backward()  # type: ignore[no-untyped-call]
    return terms.detach()


DGHDGH = Method(
    "dghdgh",
    "DGHDGH",
    "triplets with hard negatives that a graph network on the batch makes from the real ones",
    defaults=DghdghSettings(),
    learner=Dghdgh,
    lengths="one",
    inputs="pooled",
    venue="ICLR 2026",
    source="QinLab-WFU/DGHDGH @ 7f37ac0",
    differs="CLIP is frozen. For speed an item has edges with 30 random items of the batch and itself, instead of all, "
    "and synthetic negatives are made for 4096 random triplets of each graph; attention and real triplets are of the "
    "whole batch. The softmax whose file is missing is the plain one, and the attention of the edges has no dropout.",
)

"""DGHDGH and its graph network against the fact sheet written as loops."""

from __future__ import annotations

from math import erf, exp, log, sqrt

import numpy as np
import pytest
import torch

from multibit import Pairs
from multibit.hashing.graph_network import Edges, GraphNetwork
from multibit.hashing.learner import Batch
from multibit.hashing.losses import mean_triplet_hinge
from multibit.hashing.methods.dghdgh import (
    Dghdgh,
    DghdghSettings,
    draw_triplets,
    hard_hinge,
    synthesize,
)

MODALITIES = ("image", "text")


def unit(vector):
    length = np.linalg.norm(vector)
    return vector / length if length > 0 else vector


def gelu(vector):
    return np.array([0.5 * x * (1 + erf(x / sqrt(2))) for x in vector])


class SlowNetwork:
    """The graph network, one node and one edge after the other; `linked` are the ordered pairs that are edges."""

    def __init__(self, weights, prefix="network."):
        self.weights = {name.removeprefix(prefix): each for name, each in weights.items() if name.startswith(prefix)}
        self.layers = 1 + max(int(name.split(".")[1]) for name in self.weights if name.startswith("nodes."))

    def linear(self, name, x):
        return self.weights[f"{name}.weight"] @ x + self.weights[f"{name}.bias"]

    def norm(self, name, x):
        scaled = (x - x.mean()) / sqrt(x.var() + 1e-5)
        return scaled * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def feed_forward(self, name, x):
        hidden = self.norm(f"{name}.network.2", gelu(self.linear(f"{name}.network.0", x)))
        return self.linear(f"{name}.network.3", hidden)

    def settle(self, name, x):
        return self.norm(f"{name}.norm", gelu(x))

    def update_nodes(self, name, nodes, receiving, edges, related, heads):
        n, width = len(nodes), len(nodes[0]) // heads
        updated = []
        for c in range(n):
            taken = []
            for head in range(heads):
                part = slice(head * width, (head + 1) * width)
                q = self.linear(f"{name}.ask", receiving[c])[part]
                keys = [self.linear(f"{name}.key", nodes[r])[part] for r in range(n)]
                scores = [-1e9 if related[r][c] else float(q @ k) / sqrt(width) for r, k in enumerate(keys)]
                powers = [exp(score - max(scores)) for score in scores]
                values = [self.linear(f"{name}.value", nodes[r])[part] for r in range(n)]
                taken.append(sum(p / sum(powers) * v for p, v in zip(powers, values, strict=True)))
            node = self.settle(name, nodes[c] + self.linear(f"{name}.out", np.concatenate(taken)))
            heard = sum(gelu(self.linear(f"{name}.listen", edge)) for (a, _), edge in edges.items() if a == c)
            node = self.settle(name, node + heard)
            updated.append(self.settle(name, node + self.feed_forward(name, node)))
        return updated

    def update_edge(self, name, edge, source, target):
        told = [gelu(self.linear(f"{name}.tell", node)) for node in (source, target)]
        q = self.linear(f"{name}.ask", edge)
        scores = [float(q @ self.linear(f"{name}.key", each)) / sqrt(len(edge)) for each in told]
        powers = [exp(score - max(scores)) for score in scores]
        values = [self.linear(f"{name}.value", each) for each in told]
        edge = self.settle(name, edge + sum(p / sum(powers) * v for p, v in zip(powers, values, strict=True)))
        return self.settle(name, edge + self.feed_forward(name, edge))

    def batch_norm(self, name, rows):
        rows = np.array(rows)
        return (rows - rows.mean(axis=0)) / np.sqrt(rows.var(axis=0) + 1e-5) * self.weights[f"{name}.scale"]

    def __call__(self, first, second, related, pairs, heads):
        """Logits (n, C) and lambda {(a, b): (K,)}."""
        edges = {}
        for a, b in pairs:
            x, y = first[a] - first[a].mean(), second[b] - second[b].mean()
            edges[a, b] = unit(x) * unit(y)
        nodes = [self.linear("enter", x) for x in first]
        receiving = [self.linear("enter", x) for x in second]
        for layer in range(self.layers):
            nodes = receiving = self.update_nodes(f"nodes.{layer}", nodes, receiving, edges, related, heads)
            edges = {(a, b): self.update_edge(f"edges.{layer}", edges[a, b], nodes[a], nodes[b]) for a, b in pairs}
        logits = [self.linear("classify", x) for x in self.batch_norm("node_norm", nodes)]
        normed = self.batch_norm("edge_norm", [edges[pair] for pair in pairs])
        between = {
            pair: 1 / (1 + np.exp(-self.linear("interpolate", x))) for pair, x in zip(pairs, normed, strict=True)
        }
        return logits, between


def slow_cross_entropy(logits, labels):
    loss = 0.0
    for row, y in zip(logits, labels, strict=True):
        loss -= sum(y_c * (o - max(row) - log(sum(np.exp(row - max(row))))) for o, y_c in zip(row, y, strict=True))
    return loss / max(len(labels), 1)


def slow_pairs(n, degree=10**6):
    """The ordered pairs with an edge: all of them, or those at most (degree - 1) // 2 apart on a ring."""
    pairs = [(a, b) for a in range(n) for b in range(n)]
    if degree >= n:
        return pairs
    return [(a, b) for a, b in pairs if min((a - b) % n, (b - a) % n) <= (degree - 1) // 2]


def slow_triplets(related, within, pairs=None):
    n = range(len(related))
    linked = set(slow_pairs(len(related)) if pairs is None else pairs)
    return [
        (a, p, b)
        for a in n
        for p in n
        for b in n
        if related[a][p] and not related[a][b] and not (within and a == p) and (a, b) in linked
    ]


def slow_hinge(similarity, triplets, margin):
    values = [similarity[a][n] - similarity[a][p] + margin for a, p, n in triplets]
    above = [value for value in values if value > 0]
    return sum(above) / len(above) if above else 0.0


def slow_synthesis(a, p, n, strength):
    to_near, to_far = (max(np.linalg.norm(a - x), 1e-6) for x in (p, n))
    if to_near >= to_far:
        return n
    r = (1 - strength) * to_near / to_far + strength
    return (1 - r) * a + r * n


def slow_cosine(a, b):
    return float(unit(a) @ unit(b))


def slow_hash(codes, labels, weights, settings, eta, large_share):
    """The triplet loss, and the weighted node classification and loss of the synthetic negatives."""
    related = labels @ labels.T > 0
    network, heads = SlowNetwork(weights), int(np.gcd(len(codes["image"][0]), settings.graph_heads))
    ranking = classified = synthetic = 0.0
    for x in MODALITIES:
        for y in MODALITIES:
            first, second = codes[x], codes[y]
            pairs = slow_pairs(len(labels), settings.graph_degree)
            ranking += slow_hinge(first @ second.T, slow_triplets(related, x == y), settings.margin) / 4
            logits, between = network(first, second, related, pairs, heads)
            classified += slow_cross_entropy(logits, labels) / 4
            hard = []
            for a, p, n in slow_triplets(related, x == y, pairs):
                made = slow_synthesis(first[a], second[p], second[n], eta * between[a, n])
                if slow_cosine(first[a], made) > first[a] @ second[p]:
                    hard.append(slow_cosine(first[a], made) - first[a] @ second[p] + settings.margin)
            synthetic += sum(hard) / len(hard) / 4 if hard else 0.0
    return [ranking, settings.graph_weight * classified, (0.9 if large_share else 0.1) * synthetic]


def slow_classifier(codes, labels, weights, settings):
    weight, bias = weights["classifier.weight"], weights["classifier.bias"]
    losses = [slow_cross_entropy([weight @ u + bias for u in codes[x]], labels) for x in MODALITIES]
    return settings.classifier_weight * sum(losses) / 2


def slow_generator(codes, labels, weights, settings, eta):
    related, n_items = labels @ labels.T > 0, len(labels)
    network, heads = SlowNetwork(weights), int(np.gcd(len(codes["image"][0]), settings.graph_heads))
    weight, bias = weights["classifier.weight"], weights["classifier.bias"]
    classes = near = diversity = 0.0
    for x in MODALITIES:
        for y in MODALITIES:
            first, second = codes[x], codes[y]
            pairs = slow_pairs(n_items, settings.graph_degree)
            _, between = network(first, second, related, pairs, heads)
            triplets = slow_triplets(related, x == y, pairs)
            made = [slow_synthesis(first[a], second[p], second[n], eta * between[a, n]) for a, p, n in triplets]
            logits = [weight @ each + bias for each in made]
            classes += slow_cross_entropy(logits, [labels[n] for _, _, n in triplets]) / 4
            distances = [1 - slow_cosine(first[a], each) for (a, _, _), each in zip(triplets, made, strict=True)]
            near += sum(distances) / max(len(distances), 1) / 4
            squares = []
            for a in range(n_items):
                leaving = [each for (source, _), each in between.items() if source == a]
                mean = sum(leaving) / len(leaving)
                squares += [float(np.sum((each - mean) ** 2)) for each in leaving]
            diversity += (1 - sqrt(max(sum(squares) / len(squares), 1e-12))) / 4
    return [settings.class_weight * classes, settings.near_weight * near, settings.diversity_weight * diversity]


def slow_codes(weights, batch):
    codes = {}
    for name in MODALITIES:
        weight, bias = weights[f"model.heads.{name}.weight"], weights[f"model.heads.{name}.bias"]
        features = getattr(batch, name).numpy()
        codes[name] = np.array(
            [unit(np.tanh(weight @ (x * sqrt(len(x)) / np.linalg.norm(x)) + bias)) for x in features]
        )
    return codes


def slow_terms(weights, batch, settings, eta, large_share=False):
    codes, labels = slow_codes(weights, batch), batch.labels.numpy()
    return [
        *slow_hash(codes, labels, weights, settings, eta, large_share),
        slow_classifier(codes, labels, weights, settings),
        *slow_generator(codes, labels, weights, settings, eta),
    ]


LABELS = {
    "several": [[1, 0, 1, 0], [0, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 1]],
    "one": [[1], [1], [1], [0], [1]],
    "none": [[0, 0, 0]] * 5,
    "all": [[1, 1, 1]] * 5,
}


def after_batches(learner, mean):
    """The state in an epoch with this mean of the triplet loss; before the first batch when 0."""
    learner.triplet_mean.fill_(mean)
    learner.batches.fill_(bool(mean))


def problem(labels, bits, **settings):
    """A learner and a batch, in float64 and without dropout; norms and offsets are not those of the start."""
    rng = np.random.default_rng(bits)
    labels = np.array(labels, np.uint8)
    n = len(labels)
    training = Pairs(*rng.normal(size=(2, n, 6)).astype(np.float32), np.arange(n + 1), labels)
    learner = Dghdgh(training, DghdghSettings(lengths=(bits,), **settings)).double().eval()
    with torch.no_grad():
        for each in learner.parameters():
            each += 0.1 * torch.from_numpy(rng.normal(size=tuple(each.shape)))
    image, text = (torch.from_numpy(each).double() for each in (training.image, training.text))
    return learner, Batch(torch.arange(n), image, text, torch.from_numpy(labels).double(), 1)


def arrays(learner):
    return {name: each.detach().numpy().copy() for name, each in learner.named_parameters()}


def total(terms):
    return torch.stack(list(terms.values())).sum()


@pytest.mark.parametrize("bits, heads", [(1, 4), (6, 4), (8, 4)])
@pytest.mark.parametrize("labels", ["several", "none", "all"])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("degree", [5, 4, 1])
def test_graph_network_is_that_of_loops(bits, heads, labels, symmetric, degree):
    rng = np.random.default_rng(0)
    network = GraphNetwork(bits, classes=3, layers=2, heads=heads).double()
    with torch.no_grad():
        for each in network.parameters():
            each += 0.2 * torch.from_numpy(rng.normal(size=tuple(each.shape)))
    first, second = rng.normal(size=(2, 5, bits))
    second = first if symmetric else second
    y = np.array(LABELS[labels])
    related = y @ y.T > 0
    tensors = [torch.from_numpy(each) for each in (first, second, related)]
    edges = Edges.of(5, symmetric=symmetric, degree=degree, like=tensors[0])
    logits, nodes, values = network(*tensors, edges)
    between = network.interpolation(nodes, values, edges)
    pairs, slow = slow_pairs(5, degree), SlowNetwork(arrays(network), "")
    expected_logits, expected = slow(first, second, related, pairs, int(np.gcd(bits, heads)))
    assert logits.detach().numpy() == pytest.approx(np.array(expected_logits), abs=1e-9)
    for (a, b), each in expected.items():
        assert between[edges.row[a, b]].detach().numpy() == pytest.approx(each, abs=1e-9)


def test_blocks_of_edges_change_nothing(monkeypatch):
    network = GraphNetwork(8, classes=3, layers=2, heads=4).double()
    codes, edges = torch.randn(7, 8).double(), Edges.of(7, symmetric=False, like=torch.zeros(0).double())
    related = torch.eye(7, dtype=torch.bool)
    whole = network.interpolation(*network(codes, -codes, related, edges)[1:], edges)
    monkeypatch.setattr("multibit.hashing.graph_network.NUMBERS_AT_ONCE", 100)
    assert torch.allclose(network.interpolation(*network(codes, -codes, related, edges)[1:], edges), whole)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("nodes", [1, 2, 3, 6, 7])
@pytest.mark.parametrize("degree", [None, 1, 2, 3, 5, 6, 100])
def test_edges_are_the_pairs_on_a_ring(nodes, symmetric, degree):
    edges = Edges.of(nodes, symmetric=symmetric, degree=degree)
    pairs = slow_pairs(nodes, degree or nodes)
    assert edges.linked.nonzero().tolist() == sorted(map(list, pairs))
    assert edges.times.sum() == len(pairs)
    ends = [{(int(edges.source[edges.row[pair]]), int(edges.target[edges.row[pair]]))} for pair in pairs]
    assert all(one <= ({pair, pair[::-1]} if symmetric else {pair}) for one, pair in zip(ends, pairs, strict=True))
    values = torch.randn(len(edges.source), 3)
    if symmetric:  # opposite nodes have a row in either direction, with equal values
        values = values[edges.row[edges.source, edges.target].minimum(edges.row[edges.target, edges.source])]
    for a in range(nodes):
        leaving = torch.stack([values[edges.row[pair]] for pair in pairs if pair[0] == a])
        assert torch.allclose(edges.sum_by_source(values)[a], leaving.sum(dim=0), atol=1e-5)
        assert torch.allclose(edges.mean_by_source(values)[a], leaving.mean(dim=0), atol=1e-5)
    every = torch.stack([values[edges.row[pair]] for pair in pairs])
    assert torch.allclose(edges.mean(values), every.mean(dim=0), atol=1e-5)


def test_edges_that_equal_their_reverse_are_kept_once():
    assert len(Edges.of(128, symmetric=False).source) == 128**2
    assert len(Edges.of(128, symmetric=True).source) == 128 * 65
    assert len(Edges.of(128, symmetric=True, degree=32).source) == 128 * 16


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
@pytest.mark.parametrize("bits", [1, 4, 6])
@pytest.mark.parametrize("mean", [0.0, 2.0, 0.2], ids=["first", "later", "negligible"])
def test_terms_are_those_as_published(labels, bits, mean):
    learner, batch = problem(labels, bits)
    after_batches(learner, mean)
    found = learner.losses(batch)
    assert tuple(found) == Dghdgh.parts[:-1]
    eta = exp(-5 / mean) if mean else 1.0
    expected = slow_terms(arrays(learner), batch, learner.settings, eta)
    assert [each.item() for each in found.values()] == pytest.approx(expected, rel=1e-5, abs=1e-7)


def test_terms_follow_the_settings():
    changes = {
        "margin": 0.6, "alpha": 1.0, "graph_weight": 0.3, "classifier_weight": 2.0, "class_weight": 0.5,
        "near_weight": 3.0, "diversity_weight": 1.5, "graph_layers": 1, "graph_heads": 2, "graph_degree": 3,
    }  # fmt: skip
    learner, batch = problem(LABELS["several"], 6, **changes)
    after_batches(learner, 0.8)
    expected = slow_terms(arrays(learner), batch, learner.settings, exp(-1 / 0.8))
    assert [each.item() for each in learner.losses(batch).values()] == pytest.approx(expected)


@pytest.mark.slow
@pytest.mark.parametrize("mean", [0.0, 3.0])
def test_gradients_are_those_as_published(mean):
    """The hash terms hold lambda constant; the others hold the codes and, in the generator, the classifier constant."""
    learner, batch = problem([[1, 0], [0, 1], [1, 1], [0, 1]], 4)
    after_batches(learner, mean)
    eta, settings, labels = learner.eta, learner.settings, batch.labels.numpy()
    total(learner.losses(batch)).backward()
    rng, start = np.random.default_rng(0), arrays(learner)
    fixed_codes = slow_codes(start, batch)
    fixed_network = SlowNetwork(start)

    def value(weights, monkey):
        """The sum of all terms, each with what it holds constant."""
        classifier = {**start, **{name: each for name, each in weights.items() if name.startswith("classifier")}}
        network = {**start, **{name: each for name, each in weights.items() if name.startswith("network")}}
        with monkey.context() as patch:
            free = SlowNetwork.__call__

            def constant_lambda(self, first, second, related, linked, heads):
                pairs = [(x, y) for x in MODALITIES for y in MODALITIES]
                at = next(pair for pair in pairs if (first is now[pair[0]]) and (second is now[pair[1]]))
                logits, _ = free(self, first, second, related, linked, heads)
                return logits, free(fixed_network, fixed_codes[at[0]], fixed_codes[at[1]], related, linked, heads)[1]

            now = slow_codes(weights, batch)
            patch.setattr(SlowNetwork, "__call__", constant_lambda)
            hashed = sum(slow_hash(now, labels, weights, settings, eta, False))
        rest = slow_classifier(fixed_codes, labels, classifier, settings)
        return hashed + rest + sum(slow_generator(fixed_codes, labels, network, settings, eta))

    monkey = pytest.MonkeyPatch()
    names = [
        "model.heads.image.weight", "model.heads.text.weight", "model.heads.text.bias", "classifier.weight",
        "network.enter.weight", "network.nodes.0.ask.weight", "network.nodes.0.listen.weight",
        "network.nodes.1.network.0.weight", "network.edges.0.ask.weight", "network.edges.0.ask.bias",
        "network.edges.0.value.weight", "network.edges.1.key.weight", "network.edges.1.network.3.weight",
        "network.edge_norm.scale", "network.node_norm.scale", "network.interpolate.bias", "network.classify.weight",
    ]  # fmt: skip
    for name in names:
        parameter = learner.get_parameter(name)
        for position in rng.integers(parameter.numel(), size=1):
            ends = []
            for change in (1e-6, -1e-6):
                weights = arrays(learner)
                weights[name].reshape(-1)[position] += change
                ends.append(value(weights, monkey))
            slope = (ends[0] - ends[1]) / 2e-6
            assert float(parameter.grad.reshape(-1)[position]) == pytest.approx(slope, rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize("labels", ["several", "one", "none", "all"])
@pytest.mark.parametrize("bits", [1, 4])
def test_a_step_is_finite(labels, bits):
    learner, batch = problem(LABELS[labels], bits)
    values = learner.step(batch, learner.optimizers(10))
    assert torch.isfinite(values).all() and values[-1] == pytest.approx(values[:-1].sum().item())
    assert all(torch.isfinite(each).all() for each in learner.state_dict().values())


@pytest.mark.parametrize("graph_degree", [128, 4])
def test_a_step_is_the_three_updates_one_after_the_other(graph_degree):
    """Against plain autograd of whole losses: the step goes graph by graph."""
    labels = [[1, 0, 1], [0, 1, 0], [1, 1, 0], [0, 0, 0], [0, 0, 1], [1, 0, 0], [0, 1, 1]]
    (learner, batch), (plain, _) = (problem(labels, 4, graph_degree=graph_degree) for _ in range(2))
    fast, slow = learner.optimizers(10), plain.optimizers(10)
    for _ in range(3):  # the first step of a warm-up has the rate 0
        values = learner.step(batch, fast)
        codes, graphs = plain.codes(batch), plain.graphs(batch.labels)
        ranked = plain.triplet_loss(codes, batch.labels)
        terms = torch.stack([plain.hash_terms(codes, batch.labels, graph) for graph in graphs]).sum(dim=0)
        for descent in slow:
            descent.optimizer.zero_grad()
        (ranked + terms.sum()).backward()
        for descent in slow[:2]:
            weights = [each for group in descent.optimizer.param_groups for each in group["params"]]
            torch.nn.utils.clip_grad_norm_(weights, descent.clip)
            descent.optimizer.step()
            descent.schedule.step()
        fixed = {name: each.detach() for name, each in codes.items()}
        classified = plain.classifier_loss(fixed, batch.labels)
        slow[2].step(classified)
        count = plain.batches.item()
        plain.batches += 1
        plain.triplet_mean.copy_((count * plain.triplet_mean + ranked.detach()) / (count + 1))
        made = torch.stack([plain.generator_terms(fixed, batch.labels, graph) for graph in graphs]).sum(dim=0)
        slow[1].step(made.sum())
        plain.generator_mean.copy_((count * plain.generator_mean + made.detach().sum()) / (count + 1))
        expected = torch.cat([ranked[None], terms, classified[None], made])
        assert values[:-1].tolist() == pytest.approx(expected.tolist())
        for (name, one), other in zip(learner.state_dict().items(), plain.state_dict().values(), strict=True):
            assert one.numpy() == pytest.approx(other.numpy(), abs=1e-10), name
    assert [each.clip for each in fast] == [2.0, 1.0, None]


def test_each_update_changes_its_own_weights_only():
    learner, batch = problem(LABELS["several"], 4)
    fixed = {name: each.detach() for name, each in learner.codes(batch).items()}
    learner.classifier_loss(fixed, batch.labels).backward()
    changed = {name.split(".")[0] for name, each in learner.named_parameters() if each.grad is not None}
    assert changed == {"classifier"}
    learner.zero_grad(set_to_none=True)
    for graph in learner.graphs(batch.labels):
        learner.generator_terms(fixed, batch.labels, graph).sum().backward()
    changed = {name.split(".")[0] for name, each in learner.named_parameters() if each.grad is not None}
    assert changed == {"network"}


@pytest.mark.parametrize(
    "mean, share", [(0.0, 0.1), (100.0, 0.1), (1.0, 0.1), (0.88, 0.1), (0.86, 0.9), (0.01, 0.9), (-0.1, 0.1)]
)
def test_synthetic_negatives_have_one_of_two_weights(mean, share):
    learner, _ = problem(LABELS["several"], 4)
    learner.generator_mean.fill_(mean)
    assert learner.synthetic_weight == share  # 1 - exp(-2 / 0.8686) = 0.9


def test_running_means_restart_with_the_epoch():
    learner, batch = problem(LABELS["several"], 4)
    descents = learner.optimizers(10)
    assert learner.eta == 1.0 and learner.synthetic_weight == 0.1
    values = torch.stack([learner.step(batch, descents) for _ in range(3)])
    assert learner.triplet_mean.item() == pytest.approx(values[:, 0].mean().item())
    assert learner.generator_mean.item() == pytest.approx(values[:, 4:7].sum(dim=1).mean().item())
    assert learner.eta == pytest.approx(exp(-5 / learner.triplet_mean.item()))
    learner.triplet_mean.zero_()
    assert learner.eta == 0.0  # no triplet was inside the margin
    learner.start_epoch(2)
    assert learner.eta == 1.0 and learner.generator_mean == 0 and learner.batches == 0
    assert {"triplet_mean", "generator_mean", "batches"} <= set(learner.state_dict())


@pytest.mark.parametrize("seed", range(4))
def test_hinge_is_the_mean_over_triplets_above_zero(seed):
    rng = np.random.default_rng(seed)
    labels = (rng.random((9, 4)) < 0.3).astype(float)
    related, within = labels @ labels.T > 0, bool(seed % 2)
    similarity = torch.from_numpy(rng.normal(size=(9, 9))).requires_grad_()
    near = related & ~np.eye(9, dtype=bool) if within else related
    positives = torch.from_numpy(near.astype(float))
    loss = mean_triplet_hinge(-similarity, positives, torch.from_numpy(~related), 0.25)
    triplets = slow_triplets(related, within)
    assert loss.item() == pytest.approx(slow_hinge(similarity.detach().numpy(), triplets, 0.25))
    loss.backward()
    for row in range(9):
        for column in range(0, 9, 2):
            ends = []
            for change in (1e-6, -1e-6):
                moved = similarity.detach().numpy().copy()
                moved[row, column] += change
                ends.append(slow_hinge(moved, triplets, 0.25))
            assert similarity.grad[row, column].item() == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=1e-6)


@pytest.mark.parametrize("within", [True, False])
@pytest.mark.parametrize("degree", [1, 3, 5])
@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_all_triplets_of_linked_items_are_listed(labels, degree, within):
    y = np.array(labels)
    related, linked = torch.from_numpy(y @ y.T > 0), Edges.of(5, symmetric=within, degree=degree).linked
    found = draw_triplets(related, linked, 10**6, without_self=within)
    expected = slow_triplets(related.numpy(), within, slow_pairs(5, degree))
    assert list(zip(*(each.tolist() for each in found), strict=True)) == expected


def test_a_sample_of_triplets_is_even():
    y = np.array(LABELS["several"])
    related = torch.from_numpy(y @ y.T > 0)
    every, linked = slow_triplets(related.numpy(), within=False), torch.ones_like(related)
    torch.manual_seed(0)
    drawn = [draw_triplets(related, linked, len(every) - 1, without_self=False) for _ in range(400)]
    listed = [each for found in drawn for each in zip(*(part.tolist() for part in found), strict=True)]
    counts = {each: listed.count(each) for each in every}
    assert sum(counts.values()) == len(listed) == 400 * (len(every) - 1)
    assert min(counts.values()) > 300 and max(counts.values()) < 500


def test_synthetic_negatives_lie_between_the_anchor_and_the_negative():
    rng = np.random.default_rng(0)
    anchor, near, far = (torch.from_numpy(each) for each in rng.normal(size=(3, 20, 4)))
    to_near, to_far = (anchor - near).norm(dim=1), (anchor - far).norm(dim=1)
    nearest = synthesize(anchor, near, far, torch.zeros(20, 4))
    assert torch.allclose((anchor - nearest).norm(dim=1), torch.minimum(to_near, to_far))
    assert torch.allclose(synthesize(anchor, near, far, torch.ones(20, 4)), far)
    assert torch.equal(nearest[to_near >= to_far], far[to_near >= to_far])
    assert (to_near >= to_far).any() and (to_near < to_far).any()


def test_only_hard_synthetic_negatives_count():
    anchor = torch.tensor([[1.0, 0.0]] * 3)
    near = torch.tensor([[0.6, 0.8]] * 3)
    negatives = torch.tensor([[0.55, 0.9], [0.8, 0.6], [0.6, 0.8]])  # inside the margin; above; equal
    assert float(hard_hinge(anchor, near, negatives, 0.25)) == pytest.approx(0.8 - 0.6 + 0.25)


def test_a_batch_has_a_graph_from_either_modality_to_either():
    learner, batch = problem(LABELS["several"], 4, graph_degree=3, synthetic_triplets=2)
    graphs = learner.graphs(batch.labels)
    assert [len(each.triplets.anchor) for each in graphs] == [2] * 4
    pairs = [(each.first, each.second) for each in graphs]
    assert sorted(pairs) == [(x, y) for x in MODALITIES for y in MODALITIES]
    assert all(each.edges.symmetric == (each.first == each.second) for each in graphs)
    assert all((each.edges.linked.sum(dim=1) == 3).all() for each in graphs)
    assert all(each.edges.linked[each.triplets.anchor, each.triplets.far].all() for each in graphs)

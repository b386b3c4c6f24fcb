"""The label graph against its definition, written as loops over labels."""

import math

import numpy as np
import pytest
import scipy.sparse

from multibit.errors import ConfigError, DataError
from multibit.relation import LabelGraph
from multibit.relation.graph import related_labels

rng = np.random.default_rng(3)
CASES = {
    "chain": np.repeat([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1], [0, 0, 0, 0]], [4, 4, 4, 8], axis=0),
    "random": rng.random((40, 9)) < 0.3,
    "isolated label": np.repeat([[1, 1, 0], [1, 1, 0], [0, 0, 1], [1, 0, 0]], 3, axis=0),
    "label on every item": np.column_stack([np.ones(30), rng.random((30, 4)) < 0.4]),
    "label on no item": np.column_stack([np.zeros(30), rng.random((30, 4)) < 0.4]),
    "items without labels": np.vstack([np.zeros((6, 3)), np.repeat([[1, 1, 0], [0, 1, 1]], 4, axis=0)]),
    "one label per item": np.eye(4)[rng.integers(4, size=20)],
    "one item": np.array([[1, 1]]),
}
every_case = pytest.mark.parametrize("labels", CASES.values(), ids=CASES.keys())


def ppmi_by_loop(labels, epsilon):
    items, count = labels.shape
    weights = np.zeros((count, count))
    for a in range(count):
        for b in range(count):
            together = sum(1 for row in labels if row[a] and row[b])
            if a == b or together == 0:
                continue
            n_a, n_b = sum(labels[:, a]), sum(labels[:, b])
            weights[a, b] = max(0.0, math.log((together + epsilon) * items / ((n_a + epsilon) * (n_b + epsilon))))
    return weights


def laplacian_by_loop(weights):
    count = len(weights)
    laplacian = np.zeros((count, count))
    for a in range(count):
        for b in range(count):
            degrees = weights[a].sum() * weights[b].sum()
            laplacian[a, b] = (a == b) - (weights[a, b] / math.sqrt(degrees) if degrees > 0 else 0.0)
    return laplacian


@every_case
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 1e-6])
def test_weights_are_the_positive_mutual_information_of_label_pairs(labels, epsilon):
    np.testing.assert_allclose(
        LabelGraph.from_labels(labels, epsilon).weights, ppmi_by_loop(labels.astype(float), epsilon), atol=1e-12
    )


@every_case
def test_the_laplacian_follows_its_definition(labels):
    expected = laplacian_by_loop(ppmi_by_loop(labels.astype(float), 0.1))
    np.testing.assert_allclose(LabelGraph.from_labels(labels).laplacian, expected, atol=1e-12)


@every_case
def test_specificity_and_cooccurrence_are_counted(labels):
    graph = LabelGraph.from_labels(labels)
    for a in range(labels.shape[1]):
        carriers = sum(1 for row in labels if row[a])
        assert graph.specificity[a] == pytest.approx(math.log((len(labels) + 1) / (carriers + 1)), abs=1e-15)
        for b in range(labels.shape[1]):
            assert graph.cooccurrence[a, b] == sum(1 for row in labels if row[a] and row[b])


def test_some_weights_are_positive_and_some_are_cut_to_zero():
    weights = LabelGraph.from_labels(CASES["random"]).weights
    together = LabelGraph.from_labels(CASES["random"]).cooccurrence > 0
    assert (weights > 0).any()
    assert (together & (weights == 0) & ~np.eye(9, dtype=bool)).any()


def test_a_label_that_never_cooccurs_has_one_on_the_diagonal_of_the_laplacian():
    laplacian = LabelGraph.from_labels(CASES["isolated label"]).laplacian
    assert laplacian[2].tolist() == [0, 0, 1]


def test_one_label_per_item_gives_no_edges_and_the_identity():
    graph = LabelGraph.from_labels(CASES["one label per item"])
    assert not graph.weights.any()
    np.testing.assert_array_equal(graph.laplacian, np.eye(4))


def test_a_label_that_every_item_has_weighs_nothing():
    assert LabelGraph.from_labels(CASES["label on every item"]).specificity[0] == 0


def test_the_rarest_label_weighs_most():
    specificity = LabelGraph.from_labels([[1, 1, 0], [1, 1, 0], [1, 0, 0]]).specificity
    assert specificity[0] < specificity[1] < specificity[2] == pytest.approx(math.log(4))


@pytest.mark.parametrize("kind", [bool, np.uint8, np.int64, np.float32, list])
def test_any_type_of_zeros_and_ones_gives_the_same_graph(kind):
    labels = CASES["chain"]
    given = labels.tolist() if kind is list else labels.astype(kind)
    np.testing.assert_array_equal(LabelGraph.from_labels(given).laplacian, LabelGraph.from_labels(labels).laplacian)


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        ([1, 0, 1], "(3,)"),
        ([[1, 0], [0, 2]], "[1, 1] is 2"),
        ([[1, 0.5]], "[0, 1] is 0.5"),
        ([[1, np.nan]], "[0, 1] is nan"),
        ([[-1, 1]], "[0, 0] is -1"),
        (np.zeros((4, 3)), "4 rows"),
        (np.zeros((0, 3)), "0 rows"),
    ],
)
def test_invalid_labels_are_refused(labels, found):
    with pytest.raises(DataError) as caught:
        LabelGraph.from_labels(labels)
    assert caught.value.field == "labels" and found in caught.value.problem


@pytest.mark.parametrize("epsilon", [0, -0.1, np.nan])
def test_the_smoothing_must_be_positive(epsilon):
    with pytest.raises(ConfigError) as caught:
        LabelGraph.from_labels([[1, 1]], epsilon)
    assert caught.value.option == "epsilon" and str(epsilon) in caught.value.problem


def test_a_graph_shows_its_size():
    assert repr(LabelGraph.from_labels([[1, 1, 0], [1, 1, 0], [0, 0, 1], [0, 0, 1]])) == "LabelGraph(3 labels, 1 edges)"


@every_case
def test_related_labels_are_the_neighbours_in_the_graph(labels):
    sparse = scipy.sparse.csr_array(np.asarray(labels, np.uint8))
    expected = (LabelGraph.from_labels(labels).weights > 0).sum(axis=1)
    np.testing.assert_array_equal(related_labels(sparse), expected)


def test_no_label_is_related_where_there_are_none():
    assert related_labels(scipy.sparse.csr_array((3, 2), dtype=np.uint8)).tolist() == [0, 0]

"""What every relation teacher promises: the scores of its definition, computed here slowly from the labels alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.linalg import expm, fractional_matrix_power
from scipy.special import gamma, roots_genlaguerre

from multibit import Config, train
from multibit.errors import ConfigError, DataError, FormatError
from multibit.files import read_arrays, write_arrays
from multibit.relation import TEACHERS, RelationTeacher, load_teacher, teacher_class

ALPHA, ETA, SCALES, EPSILON = 0.9, 1.0, 3, 0.1
SETTINGS = {"alpha": ALPHA, "eta": ETA, "scales": SCALES, "epsilon": EPSILON}
BY_SETS = ("binary", "jaccard")  # their scores do not rest on specificity alone

rng = np.random.default_rng(11)
CASES = {
    "chain": np.repeat([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1], [0, 0, 0, 0]], [4, 4, 4, 8], axis=0),
    "random": (rng.random((40, 9)) < 0.3).astype(int),
    "isolated label": np.repeat([[1, 1, 0], [1, 0, 0], [0, 0, 1]], 3, axis=0),
    "label on every item": np.column_stack([np.ones(30, int), rng.random((30, 4)) < 0.4]),
    "label on no item": np.column_stack([np.zeros(30, int), rng.random((30, 4)) < 0.4]),
    "one label per item": np.eye(4, dtype=int)[rng.integers(4, size=20)],
    "nothing but labels on every item": np.ones((5, 3), int),
    "one item": np.array([[1, 1]]),
}
every_case = pytest.mark.parametrize("labels", CASES.values(), ids=CASES.keys())
every_teacher = pytest.mark.parametrize("name", TEACHERS)


def fit(name, labels):
    return teacher_class(name).fit(labels, **SETTINGS)


def label_sets(labels):
    """The distinct rows, each label alone, and no label at all."""
    columns = labels.shape[1]
    return np.unique(np.vstack([labels, np.eye(columns, dtype=int), np.zeros((1, columns), int)]), axis=0)


# ---- the definitions, slowly ----------------------------------------------------------------------------------------


def slow_graph(labels):
    """Normalised Laplacian (`eq:ppmi-graph`) and specificity, label by label."""
    items, columns = labels.shape
    n = [[int((labels[:, a] & labels[:, b]).sum()) for b in range(columns)] for a in range(columns)]
    weights = np.zeros((columns, columns))
    for a in range(columns):
        for b in range(columns):
            if a != b and n[a][b] > 0:
                expected = (n[a][a] + EPSILON) * (n[b][b] + EPSILON)
                weights[a, b] = max(0.0, math.log((n[a][b] + EPSILON) * items / expected))
    laplacian = np.eye(columns)
    for a in range(columns):
        for b in range(columns):
            if weights[a, b]:
                laplacian[a, b] -= weights[a, b] / math.sqrt(weights[a].sum() * weights[b].sum())
    return laplacian, np.array([math.log((items + 1) / (n[a][a] + 1)) for a in range(columns)])


def slow_rule():
    """Diffusion times and their weights (`eq:quadrature-decomposition`)."""
    nodes, weights = roots_genlaguerre(SCALES, ALPHA - 1)
    return nodes / ETA, ETA**-ALPHA * weights / gamma(ALPHA)


def kernel_cosines(kernel, sets):
    scores = np.zeros((len(sets), len(sets)))
    for i, q in enumerate(sets):
        for j, r in enumerate(sets):
            size = (q @ kernel @ q) * (r @ kernel @ r)
            scores[i, j] = q @ kernel @ r / math.sqrt(size) if size > 0 else 0.0
    return scores


def of_sets(score, sets):
    found = [set(np.flatnonzero(row)) for row in sets]
    return np.array([[score(a, b) for b in found] for a in found], float)


def binary(sets):
    return of_sets(lambda a, b: bool(a & b), sets)


def slow_scores(name, labels, sets):
    """g* of every pair of label sets, from the dense matrices of the whole graph."""
    laplacian, specificity = slow_graph(labels)
    tau, rho = slow_rule()
    identity, weighted = np.eye(len(laplacian)), sets * specificity
    heat = [expm(-t * laplacian) for t in tau]
    fractional = kernel_cosines(fractional_matrix_power(laplacian + ETA * identity, -ALPHA).real, weighted)
    return {
        "frt": lambda: fractional,
        "binary": lambda: binary(sets),
        "jaccard": lambda: of_sets(lambda a, b: len(a & b) / len(a | b) if a | b else 0.0, sets),
        "ppmi": lambda: kernel_cosines(2 * identity - laplacian, sets),
        "ppmi-specificity": lambda: kernel_cosines(2 * identity - laplacian, weighted),
        "single-scale": lambda: kernel_cosines(heat[0], weighted),
        "umh": lambda: np.mean([kernel_cosines(kernel, weighted) for kernel in heat], axis=0),
        "ukm": lambda: kernel_cosines(sum(heat) / SCALES, weighted),
        "learned-weights": lambda: kernel_cosines(sum(r * k for r, k in zip(rho, heat, strict=True)), weighted),
    }[name]()


# ---- the contract ---------------------------------------------------------------------------------------------------


@every_case
@every_teacher
def test_scores_are_those_of_the_definition(name, labels):
    sets = label_sets(labels)
    np.testing.assert_allclose(fit(name, labels).scores(sets, sets), slow_scores(name, labels, sets), atol=1e-7)


@every_case
@every_teacher
def test_scores_are_symmetric_and_from_0_to_1(name, labels):
    sets = label_sets(labels)
    scores = fit(name, labels).scores(sets, sets)
    assert scores.dtype == np.float64 and np.isfinite(scores).all()
    np.testing.assert_allclose(scores, scores.T, atol=1e-12)
    assert scores.min() > -1e-12 and scores.max() <= 1


@every_case
@every_teacher
def test_an_item_without_label_scores_exactly_0_with_everything(name, labels):
    scores = fit(name, labels).scores(np.zeros_like(labels[:1]), label_sets(labels))
    assert not scores.any()


@every_case
@every_teacher
def test_an_item_scores_1_with_itself_unless_its_labels_weigh_nothing(name, labels):
    teacher = fit(name, labels)
    sets = label_sets(labels)
    sets = sets[(sets * slow_graph(labels)[1]).any(axis=1)]
    np.testing.assert_allclose(np.diag(teacher.scores(sets, sets)), 1.0, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in TEACHERS if name not in (*BY_SETS, "ppmi")])
def test_a_label_on_every_item_tells_the_teachers_with_specificity_nothing(name):
    labels = CASES["label on every item"]
    common = [[1, 0, 0, 0, 0]]
    assert not fit(name, labels).scores(common, label_sets(labels)).any()
    assert fit("binary", labels).scores(common, labels).all()


@every_teacher
def test_labels_without_any_path_between_them_are_exactly_unrelated(name):
    scores = fit(name, CASES["isolated label"]).scores([[0, 0, 1]], [[1, 0, 0], [1, 1, 0], [0, 0, 1]])
    np.testing.assert_array_equal(scores.round(12), [[0, 0, 1]])
    assert not scores[0, :2].any()


@every_teacher
def test_with_one_label_per_item_every_teacher_says_the_same_class(name):
    labels = CASES["one label per item"]
    np.testing.assert_allclose(fit(name, labels).scores(labels, labels), labels @ labels.T, atol=1e-12)


@every_case
@every_teacher
def test_numpy_and_torch_compare_alike(name, labels):
    teacher = fit(name, labels)
    rows = teacher.embed(label_sets(labels))
    tensor = torch.from_numpy(rows)
    by_torch = teacher.compare(tensor, tensor)
    assert isinstance(by_torch, torch.Tensor)
    np.testing.assert_allclose(by_torch.numpy(), teacher.compare(rows, rows), atol=1e-12)


@every_case
@every_teacher
def test_the_scales_are_the_same_whatever_the_teacher(name, labels):
    sets, teacher, plain = label_sets(labels), fit(name, labels), RelationTeacher.fit(labels, **SETTINGS)
    np.testing.assert_array_equal(teacher.scale_scores(sets, sets), plain.scale_scores(sets, sets))
    np.testing.assert_array_equal((teacher.tau, teacher.rho), slow_rule())


@every_case
@every_teacher
def test_saving_and_loading_keeps_the_teacher(name, labels, tmp_path):
    teacher = fit(name, labels)
    teacher.save(tmp_path / "teacher.safetensors")
    loaded = load_teacher(tmp_path / "teacher.safetensors")
    sets = label_sets(labels)
    assert type(loaded) is TEACHERS[name] and loaded.name == name
    assert loaded.fingerprint() == teacher.fingerprint()
    np.testing.assert_array_equal(loaded.scores(sets, sets), teacher.scores(sets, sets))
    np.testing.assert_array_equal(loaded.scale_scores(sets, sets), teacher.scale_scores(sets, sets))


@every_teacher
def test_the_order_of_label_columns_does_not_matter(name):
    labels = CASES["random"]
    columns = np.random.default_rng(3).permutation(labels.shape[1])
    before, after = fit(name, labels), fit(name, labels[:, columns])
    sets = label_sets(labels)
    moved = sets[:, columns]
    np.testing.assert_allclose(after.scores(moved, moved), before.scores(sets, sets), atol=1e-9)


def test_teachers_of_the_same_labels_have_different_fingerprints():
    assert len({fit(name, CASES["random"]).fingerprint() for name in TEACHERS}) == len(TEACHERS)


def test_every_teacher_is_known_by_its_own_name():
    assert {name: teacher.name for name, teacher in TEACHERS.items()} == {name: name for name in TEACHERS}


# ---- what is refused ------------------------------------------------------------------------------------------------


@every_teacher
def test_labels_of_another_count_or_value_are_refused(name):
    teacher = fit(name, CASES["chain"])
    with pytest.raises(DataError) as caught:
        teacher.scores(np.ones((2, 3)), CASES["chain"])
    assert caught.value.field == "labels" and "4 columns" in caught.value.problem
    with pytest.raises(DataError) as caught:
        teacher.scores([[0, 0, 0, 1], [2, 0, 0, 0]], CASES["chain"])
    assert caught.value.field == "labels" and "[1, 0] is 2" in caught.value.problem


@every_teacher
def test_a_scale_that_does_not_exist_is_refused(name):
    with pytest.raises(ConfigError) as caught:
        fit(name, CASES["chain"]).embed(CASES["chain"], 3)
    assert caught.value.option == "scale" and "3" in caught.value.problem


@every_teacher
def test_a_teacher_shows_its_class_and_settings(name):
    shown = repr(fit(name, CASES["chain"]))
    assert shown.startswith(f"{TEACHERS[name].__name__}(4 labels, alpha=") and "array" not in shown


def test_an_unknown_teacher_is_refused_and_the_known_ones_are_listed(planted_pairs):
    for use in (teacher_class, lambda name: train(planted_pairs, None, Config(teacher=name))):
        with pytest.raises(ConfigError) as caught:
            use("oracle")
        assert caught.value.option == "teacher"
        assert all(name in caught.value.problem for name in ("'oracle'", *TEACHERS))


def test_a_file_of_an_unknown_teacher_is_refused(tmp_path):
    path = tmp_path / "teacher.safetensors"
    fit("umh", CASES["chain"]).save(path)
    arrays, header = read_arrays(path, kind="relation teacher", version=2)
    write_arrays(path, arrays, {**header, "name": "oracle"}, kind="relation teacher", version=2)
    with pytest.raises(FormatError) as caught:
        load_teacher(path)
    assert caught.value.file == path and "'oracle'" in caught.value.problem

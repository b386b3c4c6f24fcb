"""The relation teacher against dense matrix functions and the cosine by its definition."""

import math

import numpy as np
import pytest
from scipy.linalg import expm, fractional_matrix_power

from multibit.codes import Codes
from multibit.errors import ConfigError, DataError, FormatError
from multibit.paper import label_cells
from multibit.relation import RelationTeacher, load_teacher, teacher_class
from multibit.relation.teacher import quadrature

rng = np.random.default_rng(11)
CASES = {
    "chain": np.repeat([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1], [0, 0, 0, 0]], [4, 4, 4, 8], axis=0),
    "random": (rng.random((40, 9)) < 0.3).astype(int),
    "two worlds": np.repeat([[1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 1, 1], [0, 0, 1, 0]], 4, axis=0),
    "isolated label": np.repeat([[1, 1, 0], [1, 0, 0], [0, 0, 1]], 3, axis=0),
    "label on every item": np.column_stack([np.ones(30, int), rng.random((30, 4)) < 0.4]),
    "label on no item": np.column_stack([np.zeros(30, int), rng.random((30, 4)) < 0.4]),
    "items without labels": np.vstack([np.zeros((6, 3), int), np.repeat([[1, 1, 0], [0, 1, 1]], 4, axis=0)]),
    "one label per item": np.eye(4, dtype=int)[rng.integers(4, size=20)],
    "nothing but labels on every item": np.ones((5, 3), int),
    "one item": np.array([[1, 1]]),
}
every_case = pytest.mark.parametrize("labels", CASES.values(), ids=CASES.keys())
SETTINGS = [(0.9, 0.2), (1.2, 0.2), (0.3, 1.5), (2.5, 0.05)]


def cosines_by_loop(kernel, queries, database):
    scores = np.zeros((len(queries), len(database)))
    for i, q in enumerate(queries):
        for j, r in enumerate(database):
            size = (q @ kernel @ q) * (r @ kernel @ r)
            scores[i, j] = q @ kernel @ r / math.sqrt(size) if size > 0 else 0.0
    return scores


def all_label_sets(labels):
    """The distinct rows, and a row without any label."""
    return np.unique(np.vstack([labels, np.zeros_like(labels[:1])]), axis=0)


@every_case
@pytest.mark.parametrize(("alpha", "eta"), SETTINGS)
def test_scores_are_cosines_under_the_exact_fractional_kernel(labels, alpha, eta):
    teacher = RelationTeacher.fit(labels, alpha=alpha, eta=eta)
    sets = all_label_sets(labels)
    laplacian = teacher.graph.laplacian
    kernel = fractional_matrix_power(laplacian + eta * np.eye(len(laplacian)), -alpha).real
    weighted = sets * teacher.graph.specificity
    expected = cosines_by_loop(kernel, weighted[:5], weighted)
    np.testing.assert_allclose(teacher.scores(sets[:5], sets), expected, atol=1e-10)


@every_case
def test_scale_scores_are_cosines_under_each_heat_kernel(labels):
    teacher = RelationTeacher.fit(labels, alpha=0.9, eta=1.0, scales=3)
    sets = all_label_sets(labels)
    weighted = sets * teacher.graph.specificity
    got = teacher.scale_scores(sets[:5], sets)
    assert got.shape == (3, len(sets[:5]), len(sets))
    for scale, tau in enumerate(teacher.tau):
        expected = cosines_by_loop(expm(-tau * teacher.graph.laplacian), weighted[:5], weighted)
        np.testing.assert_allclose(got[scale], expected, atol=1e-7)


@every_case
@pytest.mark.parametrize("scales", [16, 32, 128])
def test_very_long_diffusion_gives_no_nan_and_every_item_is_itself(labels, scales):
    teacher = RelationTeacher.fit(labels, scales=scales)
    sets = all_label_sets(labels)
    got = teacher.scale_scores(sets, sets)
    has_weight = (sets * teacher.graph.specificity).any(axis=1)
    assert np.isfinite(got).all()
    for scores in got:
        np.testing.assert_allclose(np.diag(scores), has_weight, atol=1e-12)


def test_diffusion_times_are_tested_to_where_every_response_of_an_isolated_label_underflows():
    tau = RelationTeacher.fit(CASES["chain"], scales=128).tau
    assert np.exp(-tau[-1] / 2) == 0


def test_long_diffusion_makes_all_labels_of_one_component_alike():
    teacher = RelationTeacher.fit(CASES["chain"], scales=32)
    kinds = np.eye(4)
    local, far = teacher.scale_scores(kinds, kinds)[[0, -1]]
    assert local.min() < 0.9
    np.testing.assert_allclose(far, 1.0, atol=1e-9)


def test_labels_without_a_path_between_them_have_exactly_no_relation():
    twins = (rng.random((30, 6)) < 0.4).astype(int)  # equal spectra, which a single decomposition would mix
    labels = np.zeros((60, 12), int)
    labels[:30, ::2], labels[30:, 1::2] = twins, twins
    teacher = RelationTeacher.fit(labels)
    assert not teacher.scores(labels[:30], labels[30:]).any()
    assert not teacher.scale_scores(labels[:30], labels[30:]).any()


def test_labels_without_common_item_are_related_through_a_third():
    scores = RelationTeacher.fit(CASES["chain"]).scores([[1, 0, 0, 0]], [[0, 1, 0, 0], [0, 0, 1, 0]])
    assert scores[0, 0] > scores[0, 1] > 0


def test_one_label_per_item_gives_the_same_class_relation():
    labels = CASES["one label per item"]
    np.testing.assert_allclose(RelationTeacher.fit(labels).scores(labels, labels), labels @ labels.T, atol=1e-12)


def test_an_item_whose_labels_weigh_nothing_scores_zero_with_everything():
    teacher = RelationTeacher.fit(CASES["label on every item"])
    only_common = [[1, 0, 0, 0, 0], [0, 0, 0, 0, 0]]
    assert not teacher.scores(only_common, CASES["label on every item"]).any()
    assert not teacher.scale_scores(CASES["label on every item"], only_common).any()


@pytest.mark.parametrize("scale", [None, 0, 2])
def test_embedded_rows_have_length_one_and_their_products_are_the_scores(scale):
    labels = CASES["random"]
    teacher = RelationTeacher.fit(labels)
    rows = teacher.embed(labels, scale)
    has_label = labels.any(axis=1)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), has_label, atol=1e-12)
    scores = teacher.scores(labels, labels) if scale is None else teacher.scale_scores(labels, labels)[scale]
    np.testing.assert_allclose(rows @ rows.T, scores, atol=1e-12)


@pytest.mark.parametrize(("alpha", "eta"), SETTINGS)
@pytest.mark.parametrize("scales", [1, 2, 4, 8])
def test_the_quadrature_rule_integrates_every_polynomial_it_should(alpha, eta, scales):
    tau, rho = quadrature(alpha, eta, scales)
    for power in range(2 * scales):  # integral of t^(alpha-1) e^(-eta t) t^power / Gamma(alpha)
        exact = math.gamma(alpha + power) / math.gamma(alpha) * eta ** -(alpha + power)
        assert (rho * tau**power).sum() == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("scales", [1, 4, 16, 32])
def test_diffusion_times_ascend_and_weights_sum_to_the_kernel_at_eigenvalue_zero(scales):
    teacher = RelationTeacher.fit(CASES["chain"], alpha=1.2, eta=0.2, scales=scales)
    assert teacher.scales == len(teacher.tau) == len(teacher.rho) == scales
    assert (np.diff(teacher.tau) > 0).all()
    assert (teacher.rho > 0).all()
    assert teacher.rho.sum() == pytest.approx(0.2**-1.2)


def test_the_rebuilt_quadrature_kernel_approaches_the_exact_kernel():
    alpha, eta = 0.9, 0.5
    distance = []
    for scales in (1, 2, 4, 8, 16, 32):
        teacher = RelationTeacher.fit(CASES["random"], alpha=alpha, eta=eta, scales=scales)
        laplacian = teacher.graph.laplacian
        exact = fractional_matrix_power(laplacian + eta * np.eye(len(laplacian)), -alpha).real
        rebuilt = sum(rho * expm(-tau * laplacian) for tau, rho in zip(teacher.tau, teacher.rho, strict=True))
        distance.append(np.linalg.norm(exact - rebuilt) / np.linalg.norm(exact))
    assert (np.diff(distance) < 0).all()
    assert distance[0] > 0.1
    assert distance[-1] < 1e-5


@every_case
@pytest.mark.parametrize("scales", [1, 2, 4])
def test_the_quadrature_error_is_the_lost_share_of_signal(labels, scales):
    alpha, eta = 0.9, 0.2
    teacher = RelationTeacher.fit(labels, alpha=alpha, eta=eta)
    laplacian = teacher.graph.laplacian
    exact = fractional_matrix_power(laplacian + eta * np.eye(len(laplacian)), -alpha).real
    rebuilt = sum(rho * expm(-tau * laplacian) for tau, rho in zip(*quadrature(alpha, eta, scales), strict=True))
    weighted = labels * teacher.graph.specificity
    whole = sum(row @ exact @ row for row in weighted)
    lost = sum(row @ (exact - rebuilt) @ row for row in weighted)
    assert teacher.quadrature_error(scales) == pytest.approx(lost / whole if whole else 0.0, abs=1e-10)


def test_the_quadrature_error_is_that_of_the_own_rule_unless_another_is_asked_for():
    teacher = RelationTeacher.fit(CASES["random"], scales=3)
    assert teacher.quadrature_error() == teacher.quadrature_error(3) > teacher.quadrature_error(5)


@every_case
def test_eigenpairs_rebuild_the_laplacian(labels):
    teacher = RelationTeacher.fit(labels)
    values, vectors = teacher.spectrum
    np.testing.assert_allclose(vectors * values @ vectors.T, teacher.graph.laplacian, atol=1e-12)
    np.testing.assert_allclose(vectors @ vectors.T, np.eye(len(values)), atol=1e-12)
    assert values.min() >= 0
    assert values.max() <= 2


def test_saving_and_loading_keeps_everything(tmp_path):
    teacher = RelationTeacher.fit(CASES["random"], alpha=1.2, eta=0.3, scales=5, epsilon=0.2)
    teacher.save(tmp_path / "teacher.safetensors")
    loaded = load_teacher(tmp_path / "teacher.safetensors")
    assert (loaded.alpha, loaded.eta, loaded.scales) == (1.2, 0.3, 5)
    np.testing.assert_array_equal(loaded.tau, teacher.tau)
    np.testing.assert_array_equal(loaded.rho, teacher.rho)
    for name, array in vars(teacher.graph).items():
        np.testing.assert_array_equal(getattr(loaded.graph, name), array)
    labels = CASES["random"]
    np.testing.assert_array_equal(loaded.scale_scores(labels, labels), teacher.scale_scores(labels, labels))
    assert loaded.quadrature_error(2) == teacher.quadrature_error(2)


def test_a_file_of_another_kind_is_not_a_teacher(tmp_path):
    path = tmp_path / "codes.safetensors"
    Codes.binarize([[1, -1]]).save(path)
    with pytest.raises(FormatError) as caught:
        load_teacher(path)
    assert caught.value.file == path and "multibit codes" in caught.value.problem


@pytest.mark.parametrize(
    "setting", [{"alpha": 0}, {"alpha": np.nan}, {"eta": 0}, {"eta": np.inf}, {"scales": 0}, {"scales": 2.5}]
)
def test_settings_out_of_range_are_refused(setting):
    with pytest.raises(ConfigError) as caught:
        RelationTeacher.fit(CASES["chain"], **setting)
    assert [caught.value.option] == list(setting)


@pytest.mark.filterwarnings("ignore:overflow")
def test_more_scales_than_float64_can_weigh_are_refused():
    with pytest.raises(ConfigError) as caught:
        RelationTeacher.fit(CASES["chain"], scales=400)
    assert caught.value.option == "scales" and "400" in caught.value.problem


@pytest.mark.parametrize("scale", [-1, 4])
def test_a_scale_that_does_not_exist_is_refused(scale):
    with pytest.raises(ConfigError) as caught:
        RelationTeacher.fit(CASES["chain"]).embed(CASES["chain"], scale)
    assert caught.value.option == "scale" and str(scale) in caught.value.problem


def test_label_columns_must_be_those_of_the_graph():
    teacher = RelationTeacher.fit(CASES["chain"])
    with pytest.raises(DataError) as caught:
        teacher.scores(CASES["chain"], np.ones((2, 3)))
    assert caught.value.field == "labels" and "4 columns" in caught.value.problem and "(2, 3)" in caught.value.problem


def test_values_other_than_zero_and_one_are_refused():
    teacher = RelationTeacher.fit(CASES["chain"])
    with pytest.raises(DataError) as caught:
        teacher.embed([[0, 1, 3, 0]])
    assert caught.value.field == "labels" and "[0, 2] is 3" in caught.value.problem


def test_a_teacher_shows_its_settings():
    assert repr(RelationTeacher.fit(CASES["chain"])) == "RelationTeacher(4 labels, alpha=0.9, eta=0.2, scales=4)"


@pytest.mark.parametrize("name", ["frt", "jaccard", "umh"])
@pytest.mark.parametrize("items", [1, 7, 8, 50])
def test_the_first_of_a_teacher_are_those_of_a_whole_sort(name, items, monkeypatch):
    monkeypatch.setattr(label_cells, "BLOCK", 7)
    rng = np.random.default_rng(items)
    asked, database = rng.random((6, 5)) < 0.4, rng.random((items, 5)) < 0.3  # few label sets, so many ties
    teacher = teacher_class(name).fit(rng.random((40, 5)) < 0.4)
    scores = np.round(teacher.compare(teacher.embed(asked), teacher.embed(database)), 10)
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :10]
    np.testing.assert_array_equal(label_cells.first_of_teacher(teacher, asked, database, k=10), expected)

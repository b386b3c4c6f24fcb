"""What holds for the relation teacher of any labels."""

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.linalg import expm, fractional_matrix_power

from multibit.relation import LabelGraph, RelationTeacher

quick = settings(max_examples=40, deadline=None)
alphas, etas = st.floats(0.1, 3.0), st.floats(0.05, 3.0)


@st.composite
def label_matrices(draw, most_labels=7):
    """Multi-hot labels with at least one label somewhere."""
    shape = draw(st.integers(1, 12)), draw(st.integers(1, most_labels))
    labels = draw(arrays(np.uint8, shape, elements=st.integers(0, 1)))
    assume(labels.any())
    return labels


def with_weight(teacher, labels):
    """Whether each item has a label that weighs something."""
    return (labels * teacher.graph.specificity).any(axis=1)


def cosines(kernel, weighted):
    products = weighted @ kernel @ weighted.T
    sizes = np.sqrt(np.outer(np.diag(products), np.diag(products)))
    return np.divide(products, sizes, out=np.zeros_like(products), where=sizes > 0)


@given(label_matrices(), alphas, etas, st.integers(1, 6))
@quick
def test_scores_are_symmetric_one_on_the_diagonal_and_in_range(labels, alpha, eta, scales):
    teacher = RelationTeacher.fit(labels, alpha, eta, scales)
    for scores in [teacher.scores(labels, labels), *teacher.scale_scores(labels, labels)]:
        np.testing.assert_allclose(scores, scores.T, atol=1e-12)
        np.testing.assert_allclose(np.diag(scores), with_weight(teacher, labels), atol=1e-12)
        assert (np.abs(scores) <= 1).all()  # false for NaN too


@given(label_matrices(), alphas, etas)
@quick
def test_scores_are_kernel_cosines(labels, alpha, eta):
    teacher = RelationTeacher.fit(labels, alpha, eta)
    laplacian = teacher.graph.laplacian
    kernel = fractional_matrix_power(laplacian + eta * np.eye(len(laplacian)), -alpha).real
    expected = cosines(kernel, labels * teacher.graph.specificity)
    np.testing.assert_allclose(teacher.scores(labels, labels), expected, atol=1e-8)


@given(label_matrices(), alphas, st.integers(1, 3))
@quick
def test_scale_scores_are_heat_kernel_cosines(labels, alpha, scales):
    teacher = RelationTeacher.fit(labels, alpha, 2.0, scales)
    weighted = labels * teacher.graph.specificity
    for tau, scores in zip(teacher.tau, teacher.scale_scores(labels, labels), strict=True):
        np.testing.assert_allclose(scores, cosines(expm(-tau * teacher.graph.laplacian), weighted), atol=1e-7)


@given(label_matrices(), st.sampled_from([16, 32, 64]))
@quick
def test_no_diffusion_time_gives_a_nan(labels, scales):
    teacher = RelationTeacher.fit(labels, scales=scales)
    assert np.isfinite(teacher.scale_scores(labels, labels)).all()
    assert np.isfinite(teacher.quadrature_error())


@given(label_matrices(), alphas)
@quick
def test_a_vanishing_shift_gives_no_nan(labels, alpha):
    """An eigenvalue that rounding made negative would have no power."""
    teacher = RelationTeacher.fit(labels, alpha, eta=1e-20)
    np.testing.assert_allclose(np.diag(teacher.scores(labels, labels)), with_weight(teacher, labels), atol=1e-12)


@given(label_matrices())
@quick
def test_scores_are_not_negative(labels):
    """Every heat kernel of a graph with positive weights is positive, and so is their mixture."""
    teacher = RelationTeacher.fit(labels, scales=3)
    assert teacher.scores(labels, labels).min() > -1e-12
    assert teacher.scale_scores(labels, labels).min() > -1e-12


@given(label_matrices(), st.randoms(use_true_random=False))
@quick
def test_the_order_of_label_columns_does_not_matter(labels, random):
    columns = random.sample(range(labels.shape[1]), labels.shape[1])
    moved = labels[:, columns]
    before, after = RelationTeacher.fit(labels), RelationTeacher.fit(moved)
    np.testing.assert_allclose(after.scores(moved, moved), before.scores(labels, labels), atol=1e-9)
    np.testing.assert_allclose(after.scale_scores(moved, moved), before.scale_scores(labels, labels), atol=1e-9)
    assert abs(after.quadrature_error() - before.quadrature_error()) < 1e-9


@given(label_matrices(), st.randoms(use_true_random=False))
@quick
def test_the_order_of_training_items_does_not_matter(labels, random):
    rows = random.sample(range(len(labels)), len(labels))
    np.testing.assert_array_equal(
        LabelGraph.from_labels(labels[rows]).laplacian, LabelGraph.from_labels(labels).laplacian
    )


@given(label_matrices())
@quick
def test_the_laplacian_is_symmetric_with_eigenvalues_from_0_to_2(labels):
    graph = LabelGraph.from_labels(labels)
    np.testing.assert_allclose(graph.laplacian, graph.laplacian.T, atol=1e-15)
    eigenvalues = np.linalg.eigvalsh(graph.laplacian)
    assert eigenvalues.min() > -1e-12
    assert eigenvalues.max() < 2 + 1e-12


@given(label_matrices(), alphas, etas)
@quick
def test_a_finer_rule_is_never_worse_and_none_exceeds_the_kernel(labels, alpha, eta):
    """The kernel is completely monotone in the eigenvalue, so each Gauss rule stays below it and approaches it."""
    teacher = RelationTeacher.fit(labels, alpha, eta)
    errors = [teacher.quadrature_error(scales) for scales in (1, 2, 4, 8, 16)]
    assert errors[-1] > -1e-9
    assert (np.diff(errors) < 1e-9).all()

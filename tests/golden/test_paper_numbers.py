"""Numbers of the paper that do not depend on an encoder, recomputed from its rules and from real labels."""

import numpy as np
import pytest
from scipy.linalg import expm, fractional_matrix_power

from multibit.codes import Codes
from multibit.config import Config
from multibit.data import Split
from multibit.evaluation.floors import random_floor
from multibit.evaluation.metrics import count_rankings, precision_recall
from multibit.hashing import allocate_bits
from multibit.relation import RelationTeacher
from multibit.relation.teacher import quadrature

LENGTHS = (16, 32, 64, 128)
REAL = {  # preset -> file, array
    "mirflickr": ("mirflickr/mirflickr25k_20015.npz", "L24"),
    "coco": ("coco/coco2014_labels_122218.npz", "L80_patched"),
}
SHARES = {  # preset -> share of pairs with a common label: known from a sample, counted over all pairs
    "mirflickr": (0.557, 0.5555),
    "coco": (0.344, 0.3484),
}
RULES = {  # preset -> tau, rho, bits of each scale
    "mirflickr": ((2.0021, 9.5480, 23.8893, 48.5605), (3.8768, 2.6967, 0.3203, 0.0047), (71, 50, 6, 1)),
    "coco": ((1.4250, 8.3205, 22.0774, 46.1771), (2.6670, 1.4386, 0.1491, 0.0020), (80, 43, 4, 1)),
}
ERRORS = {  # preset, M -> signal-weighted quadrature error in percent: of our split, of the paper's
    ("mirflickr", 2): (15.36, 14.98), ("mirflickr", 4): (6.19, 6.08),
    ("mirflickr", 8): (0.91, 0.90), ("mirflickr", 16): (0.02, 0.02),
    ("coco", 2): (37.64, 36.83), ("coco", 4): (13.55, 13.28),
    ("coco", 8): (1.55, 1.55), ("coco", 16): (0.02, 0.02),
}  # fmt: skip
every_preset = pytest.mark.parametrize("preset", REAL)


@pytest.fixture(scope="module")
def real_labels(shared_data):
    def read(preset):
        file, name = REAL[preset]
        with np.load(shared_data / file, allow_pickle=False) as arrays:
            return arrays[name]

    return {preset: read(preset) for preset in REAL}


@pytest.fixture(scope="module")
def teachers(real_labels):
    """Teachers of the 9,000 training rows of the seed-42 split, drawn here by the paper's rule."""
    made = {}
    for preset, labels in real_labels.items():
        config, order = Config.preset(preset), np.random.RandomState(42).permutation(len(labels))
        settings = config.alpha, config.eta, config.scales, config.epsilon
        made[preset] = RelationTeacher.fit(labels[order[5000:14000]], *settings)
    return made


@every_preset
def test_diffusion_times_and_weights(preset):
    config = Config.preset(preset)
    tau, rho = quadrature(config.alpha, config.eta, config.scales)
    assert tuple(tau.round(4)) == RULES[preset][0]
    assert tuple(rho.round(4)) == RULES[preset][1]
    assert rho.sum() == pytest.approx(config.eta**-config.alpha)


@every_preset
def test_bits_of_each_scale(preset):
    config = Config.preset(preset)
    _, rho = quadrature(config.alpha, config.eta, config.scales)
    assert allocate_bits(rho, config.code_bits) == RULES[preset][2]


@pytest.mark.parametrize("preset", ["iapr", "nuswide"])
def test_the_other_data_sets_share_the_settings_of_coco(preset):
    assert Config.preset(preset) == Config.preset("coco")


@every_preset
def test_weights_of_the_lengths(preset):
    config = Config.preset(preset)
    assert config.lengths == LENGTHS
    assert [round(weight, 4) for weight in config.length_weights] == [0.1381, 0.1953, 0.2761, 0.3905]
    assert sum(config.length_weights) == pytest.approx(1)


@pytest.mark.parametrize(
    ("database", "nested", "separate"), [(15_015, 0.458, 0.859), (14_627, 0.446, 0.837), (117_218, 3.577, 6.707)]
)
def test_size_of_one_nested_database_and_of_four_separate_ones(database, nested, separate):
    codes = Codes.from_bits(np.zeros((database, 128), np.bool_))
    assert codes.nbytes == database * 128 // 8
    assert round(2 * codes.nbytes / 2**20, 3) == nested
    four = sum(codes.prefix(bits).nbytes for bits in LENGTHS)
    assert round(2 * four / 2**20, 3) == separate


@pytest.mark.parametrize(
    ("preset", "shape", "per_item"), [("mirflickr", (20_015, 24), 3.78), ("coco", (122_218, 80), None)]
)
def test_size_of_the_real_labels(real_labels, preset, shape, per_item):
    labels = real_labels[preset]
    assert labels.shape == shape
    assert per_item is None or round(labels.sum() / len(labels), 2) == per_item


@pytest.mark.parametrize(("items", "database"), [(20_015, 15_015), (122_218, 117_218)])
def test_the_usual_split_is_the_seeded_permutation_cut_in_order(items, database):
    split, order = Split.usual(items), np.random.RandomState(42).permutation(items)
    np.testing.assert_array_equal(split.query, order[:5000])
    np.testing.assert_array_equal(split.train, order[5000:14000])
    np.testing.assert_array_equal(split.validation, order[14000:15000])
    np.testing.assert_array_equal(split.database, order[5000:])
    assert len(split.database) == database


@pytest.mark.parametrize(("preset", "scales"), ERRORS)
def test_quadrature_error_on_real_labels(teachers, preset, scales):
    checked, paper = ERRORS[preset, scales]
    error = 100 * teachers[preset].quadrature_error(scales)
    assert round(error, 2) == checked
    assert error == pytest.approx(paper, rel=0.03, abs=0.005)  # the paper's permutation is not published


@every_preset
@pytest.mark.parametrize("scales", [2, 8])
def test_quadrature_error_on_real_labels_by_dense_matrix_functions(teachers, preset, scales):
    teacher = teachers[preset]
    laplacian, s = teacher.graph.laplacian, teacher.graph.specificity
    exact = fractional_matrix_power(laplacian + teacher.eta * np.eye(len(s)), -teacher.alpha).real
    rule = zip(*quadrature(teacher.alpha, teacher.eta, scales), strict=True)
    rebuilt = sum(rho * expm(-tau * laplacian) for tau, rho in rule)
    signal = teacher.graph.cooccurrence * np.outer(s, s)  # sum of y y^T over the weighted training items
    expected = ((exact - rebuilt) * signal).sum() / (exact * signal).sum()
    assert teacher.quadrature_error(scales) == pytest.approx(expected, rel=1e-8)


@every_preset
def test_teacher_of_real_labels_is_a_cosine(teachers, real_labels, preset):
    labels = real_labels[preset][:300]
    for scores in [teachers[preset].scores(labels, labels), *teachers[preset].scale_scores(labels, labels)]:
        np.testing.assert_allclose(scores, scores.T, atol=1e-12)
        np.testing.assert_allclose(np.diag(scores), labels.any(axis=1), atol=1e-12)
        assert (np.abs(scores) <= 1).all()


@every_preset
def test_share_of_random_pairs_with_a_common_label(real_labels, preset):
    labels, (sampled, counted) = real_labels[preset], SHARES[preset]
    rng = np.random.default_rng(0)
    first, second = rng.integers(len(labels), size=(2, 200_000))
    share = (labels[first] & labels[second]).any(axis=1).mean()
    assert share == pytest.approx(counted, abs=0.003)
    assert share == pytest.approx(sampled, abs=0.006)


@every_preset
def test_a_ranking_that_learned_nothing_scores_that_share(real_labels, preset):
    labels, (_, counted) = real_labels[preset], SHARES[preset]
    order = np.random.RandomState(42).permutation(len(labels))
    query, database = labels[order[:5000]], labels[order[5000:15000]]
    same = Codes.from_bits(np.zeros((5000, 1))), Codes.from_bits(np.zeros((10_000, 1)))
    assert precision_recall(*same, query, database).precision[-1] == pytest.approx(counted, abs=0.004)
    assert random_floor(count_rankings(*same, query, database)).mean() == pytest.approx(counted, abs=0.004)

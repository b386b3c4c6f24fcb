"""Training targets: the teacher's scores, and a mixture of scale kernels that is trained with the codes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.linalg import expm

from multibit import Config, Run, Split, train
from multibit.errors import MismatchError
from multibit.hashing.loop import fit
from multibit.hashing.methods.multibit import MultiBit
from multibit.hashing.targets import LearnedTargets, Targets, build_targets, content_rows
from multibit.relation import TEACHERS, RelationTeacher, load_teacher, teacher_class
from multibit.relation.teachers import LearnedWeights

TINY = Config(lengths=(4, 8), scales=2, hidden=16, dimension=8, epochs=4, batch_size=64, learning_rate=0.01)
LEARNED = {"teacher": "learned-weights"}
SHARPENED = {"binary_weight": 1.0, "within_weight": 0.5, "input_dropout": 0.2}
ROWS = np.array([3, 0, 17, 3, 42])  # in no order, one of them twice


@pytest.fixture
def labels(planted_pairs):
    """With an item that has no label among the batch."""
    found = planted_pairs.labels.copy()
    found[17] = 0
    return found


def learned(labels, scales=3):
    teacher = LearnedWeights.fit(labels, alpha=0.9, eta=1.0, scales=scales)
    return teacher, LearnedTargets(teacher, labels)


def slow_mixture(teacher, labels, weights):
    """Cosines of the weighted labels under the mixed kernel, pair by pair."""
    kernel = sum(w * expm(-t * teacher.graph.laplacian) for w, t in zip(weights, teacher.tau, strict=True))
    items = labels * teacher.graph.specificity
    size = [float(item @ kernel @ item) for item in items]
    return np.array(
        [
            [q @ kernel @ r / math.sqrt(a * b) if a * b else 0.0 for r, b in zip(items, size, strict=True)]
            for q, a in zip(items, size, strict=True)
        ]
    )


def softmax(logits):
    powers = np.exp(logits - np.max(logits))
    return powers / powers.sum()


@pytest.mark.parametrize("name", TEACHERS)
def test_targets_are_the_scores_of_the_teacher(name, labels):
    teacher = teacher_class(name).fit(labels, scales=3)
    targets = build_targets(teacher, labels)
    batch = labels[ROWS]
    got = targets(torch.from_numpy(ROWS))
    assert got.shape == (4, 5, 5) and got.dtype == torch.float32
    np.testing.assert_allclose(got[0].detach(), teacher.scores(batch, batch), atol=1e-5)
    np.testing.assert_allclose(got[1:].detach(), teacher.scale_scores(batch, batch), atol=1e-5)


def slow_content(texts):
    """Cosines of unit texts less their mean, pair by pair."""
    unit = [text / (math.sqrt(float(text @ text)) or 1) for text in texts.astype(np.float64)]
    rows = [each - sum(unit) / len(unit) for each in unit]
    return np.array([[a @ b / (math.sqrt(a @ a * (b @ b)) or 1) for b in rows] for a in rows])


@pytest.mark.parametrize("name", TEACHERS)
def test_content_has_its_share_of_what_the_prefixes_follow(name, labels):
    teacher = teacher_class(name).fit(labels, scales=3)
    texts = np.random.default_rng(0).normal(size=(len(labels), 7)).astype(np.float32) + 1
    got = build_targets(teacher, labels, False, content_rows(texts), 0.3)(torch.from_numpy(ROWS)).detach().numpy()
    plain = build_targets(teacher, labels)(torch.from_numpy(ROWS)).detach().numpy()
    content = slow_content(texts)[np.ix_(ROWS, ROWS)]
    np.testing.assert_allclose(got[0], 0.7 * plain[0] + 0.3 * content, atol=1e-5)
    np.testing.assert_array_equal(got[1:], plain[1:])  # the scales stay those of the labels


def test_content_of_equal_and_of_missing_texts_is_finite():
    assert not content_rows(np.zeros((3, 4), np.float32)).any()
    assert np.abs(content_rows(np.ones((3, 4), np.float32))).max() <= 1


@pytest.mark.parametrize("name", [name for name in TEACHERS if name != "learned-weights"])
def test_a_fixed_teacher_has_nothing_to_train(name, labels):
    teacher = teacher_class(name).fit(labels)
    targets = build_targets(teacher, labels)
    assert type(targets) is Targets and targets.pull() is None and targets.finished() is teacher
    assert not list(targets.parameters()) and not targets.state_dict()


@pytest.mark.parametrize("logits", [[0.0, 0.0, 0.0], [2.0, -1.0, 0.5], [-3.0, 0.0, 4.0]])
def test_learned_scores_are_the_cosines_of_the_mixture(logits, labels):
    teacher, targets = learned(labels)
    targets.logits.data = torch.tensor(logits)
    expected = slow_mixture(teacher, labels[ROWS], softmax(logits))
    np.testing.assert_allclose(targets(torch.from_numpy(ROWS))[0].detach(), expected, atol=1e-5)


def test_learned_weights_start_at_the_quadrature_weights(labels):
    teacher, targets = learned(labels)
    np.testing.assert_allclose(softmax(targets.logits.detach().numpy()), teacher.rho / teacher.rho.sum(), rtol=1e-6)
    assert targets.pull().item() == pytest.approx(0, abs=1e-7)


def test_the_pull_is_the_divergence_from_the_quadrature_weights(labels):
    teacher, targets = learned(labels)
    targets.logits.data = torch.tensor([0.3, -0.8, 1.1])
    weights, prior = softmax([0.3, -0.8, 1.1]), teacher.rho / teacher.rho.sum()
    expected = sum(w * math.log(w / p) for w, p in zip(weights, prior, strict=True))
    assert targets.pull().item() == pytest.approx(expected, rel=1e-5)


def test_the_gradient_of_the_mixture_is_that_of_finite_differences(labels):
    targets = learned(labels)[1].double()
    targets.logits.data += torch.tensor([0.3, -0.8, 1.1])
    rows = torch.from_numpy(ROWS)

    def outputs(logits):
        return torch.func.functional_call(Both(targets, rows), {"targets.logits": logits})

    assert torch.autograd.gradcheck(outputs, targets.logits.detach().clone().requires_grad_())


class Both(torch.nn.Module):
    """Scores and pull of a batch in one call."""

    def __init__(self, targets, rows):
        super().__init__()
        self.targets, self.rows = targets, rows

    def forward(self):
        return self.targets(self.rows)[0], self.targets.pull()


@pytest.mark.parametrize("eta", [0.02, 0.002])
def test_long_diffusion_keeps_self_similarity_one_and_gradients_finite(eta, labels):
    teacher = LearnedWeights.fit(labels, alpha=1.2, eta=eta, scales=1)
    targets, rows = LearnedTargets(teacher, labels), np.array([0, 1, 2])
    scores = targets(torch.from_numpy(rows))[0]
    scores.sum().backward()
    np.testing.assert_allclose(scores.detach(), teacher.scores(labels[rows], labels[rows]), atol=1e-5)
    assert torch.isfinite(targets.logits.grad).all()


def test_the_finished_teacher_carries_the_trained_weights(labels):
    teacher, targets = learned(labels)
    targets.logits.data = torch.tensor([0.3, -0.8, 1.1])
    finished = targets.finished()
    assert isinstance(finished, LearnedWeights) and finished.fingerprint() != teacher.fingerprint()
    np.testing.assert_allclose(finished.mixture, softmax([0.3, -0.8, 1.1]), rtol=1e-6)
    batch = labels[ROWS]
    trained = targets.scores(torch.from_numpy(ROWS)).detach().numpy()
    np.testing.assert_allclose(finished.scores(batch, batch), trained, atol=1e-5)


@pytest.mark.slow
def test_a_run_keeps_the_weights_that_it_learned(planted_store, tmp_path):
    split = Split.draw(200, query=40, train=120, validation=20)
    run = Run.create(tmp_path / "run", planted_store, split, TINY.override(LEARNED))
    untrained = LearnedWeights.fit(planted_store.dataset.labels[split.train], TINY.alpha, TINY.eta, TINY.scales)
    assert np.abs(run.teacher.mixture - untrained.mixture).max() > 1e-4
    assert run.teacher.mixture.sum() == pytest.approx(1)
    loaded = Run.load(run.folder)
    np.testing.assert_array_equal(loaded.teacher.mixture, run.teacher.mixture)
    assert load_teacher(run.folder / "teacher.safetensors").fingerprint() == run.record.teacher


def test_the_pull_is_in_the_loss_but_not_in_a_named_part(planted_pairs):
    settings = TINY.override(LEARNED)
    learner = MultiBit(planted_pairs, settings)
    far = learner.targets
    far.logits.data = torch.tensor([-4.0, 4.0])  # so wrong that the pull outweighs the ranking
    before = far.pull().item()
    fit(learner, planted_pairs, settings, None)
    assert 0 < far.pull().item() < before


# ---- interruption ---------------------------------------------------------------------------------------------------


class Stopped(Exception):  # noqa: N818 - stands for a power failure
    pass


def train_all(pairs, config, stop_after=None, **options):
    """All trained parameters at the best epoch by a rugged score; can stop before the score of an epoch."""
    calls = []

    def score(model):
        calls.append(1)
        if stop_after is not None and len(calls) > stop_after:
            raise Stopped
        return math.sin(1e4 * model.heads.weight.detach().double().sum().item())

    learner = MultiBit(pairs, config)
    state = fit(learner, pairs, config, score, save_every=0, **options)
    return state, {**state.best, "mixture": torch.tensor(getattr(learner.teacher, "mixture", 0.0))}


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        (LEARNED, {"targets.logits"}),
        (SHARPENED, {"objective.sharpness"}),
        ({**LEARNED, **SHARPENED}, {"targets.logits", "objective.sharpness"}),
    ],
    ids=["learned weights", "temperatures", "both"],
)
@pytest.mark.parametrize("epochs", [1, 3])
def test_an_interrupted_training_resumes_bit_for_bit_with_all_trained_parameters(
    settings, names, epochs, planted_pairs, tmp_path
):
    config, path = TINY.override(settings), tmp_path / "state.pt"
    state, weights = train_all(planted_pairs, config)
    with pytest.raises(Stopped):
        train_all(planted_pairs, config, stop_after=epochs, state_file=path)
    kept = torch.load(path, weights_only=True)
    assert kept["epoch"] == epochs and names <= kept["learner"].keys()
    assert all(kept["learner"][name].any() for name in names)  # they have moved
    resumed, again = train_all(planted_pairs, config, state_file=path)
    assert resumed.history == state.history and resumed.best_epoch == state.best_epoch
    assert again.keys() == weights.keys()
    assert all(torch.equal(again[name], weights[name]) for name in weights)


def test_a_state_of_another_teacher_is_refused(planted_pairs, tmp_path):
    path = tmp_path / "state.pt"
    with pytest.raises(Stopped):
        train_all(planted_pairs, TINY, stop_after=1, state_file=path)
    with pytest.raises(MismatchError) as caught:
        train_all(planted_pairs, TINY.override({"teacher": "umh"}), state_file=path)
    assert caught.value.file == path


def test_temperatures_are_trained_faster_than_weights_and_stay_finite(planted_pairs):
    state, weights = train_all(planted_pairs, TINY.override(SHARPENED))
    assert weights["objective.sharpness"].shape == (2, 2)
    assert weights["objective.sharpness"].abs().max() > 0.01
    assert all(np.isfinite(list(row.values())).all() for row in state.history)


def test_training_returns_the_teacher_with_its_trained_weights(planted_pairs):
    plain = train(planted_pairs, None, TINY)
    assert plain.teacher.fingerprint() == RelationTeacher.fit(planted_pairs.labels, scales=2).fingerprint()
    learned_one = train(planted_pairs, None, TINY.override(LEARNED))
    assert isinstance(learned_one.teacher, LearnedWeights) and learned_one.teacher.learned is not None

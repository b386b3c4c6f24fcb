"""MultiBit without labels: what it follows, that it reads none, how its epoch is selected, when it is chosen."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from multibit import FeatureStore, Pairs, Run, Split, encode, train
from multibit.codes.items import DIRECTIONS
from multibit.errors import ConfigError
from multibit.hashing.learner import Batch
from multibit.hashing.methods import METHODS, choose_method, free
from multibit.hashing.methods.free import Free, common_content

TINY = {"lengths": (4, 8), "hidden": 16, "dimension": 8, "epochs": 3, "batch_size": 32, "learning_rate": 0.01}


def pairs(n=80, labels=None, seed=0):
    """Both modalities show the same content, with noise."""
    rng = np.random.default_rng(seed)
    content = rng.normal(size=(n, 6))
    maps = np.random.default_rng(9)
    image, text = content @ maps.normal(size=(6, 12)), content @ maps.normal(size=(6, 10))
    image, text = (each + 0.1 * rng.normal(size=each.shape) for each in (image, text))
    given = np.zeros((n, 2), np.uint8) if labels is None else labels
    return Pairs(image.astype(np.float32), text.astype(np.float32), np.arange(n + 1), given)


def slow_recall(model, validation, lengths, k=10):
    """Share of queries whose own counterpart is among the first k, over all orders of ties, one query after another."""
    coded, values = encode(model, validation), []
    for asked, searched in DIRECTIONS.values():
        for bits in lengths:
            query, found = (coded.at(bits).codes(each).to_signs()[:, :bits] for each in (asked, searched))
            for row, code in enumerate(query):
                distances = [int((code != other).sum()) for other in found]
                before = sum(each < distances[row] for each in distances)
                tied = distances.count(distances[row])
                values.append(min(max((k - before) / tied, 0), 1))
    return np.mean(values)


def test_the_labels_are_never_read():
    config = METHODS["multibit-free"].config(**TINY)
    some = np.random.default_rng(1).integers(0, 2, (80, 2)).astype(np.uint8)
    plain, labelled = (train(pairs(labels=labels), None, config, method="multibit-free") for labels in (None, some))
    assert plain.model.fingerprint() == labelled.model.fingerprint() and plain.teacher is None
    assert plain.state.history[-1]["total"] < plain.state.history[0]["total"]


def test_the_epoch_has_the_largest_recall_of_the_own_counterpart():
    validation = pairs(40, seed=5)
    result = train(pairs(), validation, method="multibit-free", **TINY)
    scores = [row["validation_recall"] for row in result.state.history]
    assert result.state.best_score == max(scores) == scores[result.state.best_epoch - 1]
    recalls = [slow_recall(result.model, validation, (4, 8), k) for k in (1, 5, 10)]
    assert result.state.best_score == pytest.approx(np.mean(recalls))


@pytest.mark.parametrize("own", [0.0, 0.4])
def test_the_teacher_is_the_cosine_of_common_content_and_the_own_counterpart(own, monkeypatch):
    training, config = pairs(), METHODS["multibit-free"].config(own_weight=own, **TINY)
    learner = Free(training, config)
    rows, seen = torch.tensor([5, 0, 7]), {}

    def objective(image, text, teacher):
        seen["teacher"] = teacher
        return type(learner.objective).forward(learner.objective, image, text, teacher)

    monkeypatch.setattr(learner.objective, "forward", objective)
    image, text = (torch.from_numpy(each)[rows] for each in (training.image, training.text))
    learner.step(Batch(rows, image, text, torch.zeros(3, 2), 1), learner.optimizers(1))
    content = free.teacher_rows(training, config)
    for i, a in enumerate(rows):
        for j, b in enumerate(rows):
            expected = (1 - own) * float(content[a] @ content[b]) + own * (i == j)
            assert seen["teacher"][0, i, j].item() == pytest.approx(expected, abs=1e-5)


def test_common_content_is_of_unit_length_and_finite_for_constant_features():
    np.testing.assert_allclose(np.linalg.norm(common_content(pairs()), axis=1), 1, rtol=1e-5)
    constant = Pairs(np.ones((4, 3), np.float32), np.ones((4, 2), np.float32), np.arange(5), np.zeros((4, 1), np.uint8))
    assert np.isfinite(common_content(constant)).all()


def test_it_finds_new_items_at_every_length():
    result = train(pairs(300), None, method="multibit-free", **{**TINY, "epochs": 20, "lengths": (8, 16, 32)})
    fresh = pairs(100, seed=3)
    assert all(slow_recall(result.model, fresh, (bits,)) > 0.5 for bits in (8, 16, 32))  # 0.1 by chance


@pytest.mark.parametrize("columns", [0, 2])
def test_items_without_labels_choose_it_and_the_run_says_how_its_epoch_was_selected(columns, tmp_path):
    data = pairs(60, labels=np.zeros((60, columns), np.uint8))
    np.savez(tmp_path / "features.npz", image=data.image, text=data.text, labels=data.labels)
    store = FeatureStore.open(tmp_path / "features.npz")
    run = Run.create(tmp_path / "run", store, Split.draw(60, query=20, train=30, validation=10), **TINY)
    assert run.record.selection.rule == "largest validation mean recall" and run.teacher is None
    assert 0 <= run.record.selection.validation_recall <= 1 and run.record.selection.validation_mean_mAP is None
    assert Run.load(run.folder).config == METHODS["multibit-free"].config(**TINY)
    assert train(data, None, **TINY).method.name == "multibit-free"


def test_a_named_method_or_a_preset_of_the_paper_is_not_replaced():
    assert choose_method("multibit", labels=False).name == choose_method(preset="coco", labels=False).name == "multibit"
    with pytest.raises(ConfigError) as caught:
        METHODS["multibit-free"].config(own_weight=1.0)
    assert caught.value.option == "own_weight"


def slow_means(rows, count):
    """Mean of the nearest rows by cosine, one row after another."""
    means = []
    for row in rows:
        cosines = rows @ row
        nearest = np.argsort(-cosines)[:count]
        mean = sum(max(cosines[i], 0) * rows[i] for i in nearest)
        means.append(mean / np.linalg.norm(mean))
    return np.array(means)


@pytest.mark.parametrize("count", [2, 7, 200])
def test_the_mean_of_neighbours_is_that_of_the_nearest_rows(count, monkeypatch):
    monkeypatch.setattr(free, "BLOCK", 32)  # several blocks
    content = common_content(pairs())
    np.testing.assert_allclose(free.mean_of_neighbours(content, count), slow_means(content, count), atol=1e-5)


def test_of_many_rows_only_some_can_be_neighbours(monkeypatch):
    content = common_content(pairs(75))
    monkeypatch.setattr(free, "CANDIDATES", 25)
    nearest = np.argsort(-(content @ content[::3].T))[:, 0]
    np.testing.assert_allclose(free.mean_of_neighbours(content, 1), content[::3][nearest], atol=1e-5)


def test_one_neighbour_is_the_item_itself():
    one, some = (METHODS["multibit-free"].config(neighbours=count, **TINY) for count in (1, 5))
    np.testing.assert_array_equal(free.teacher_rows(pairs(), one), common_content(pairs()))
    assert np.abs(free.teacher_rows(pairs(), some) - common_content(pairs())).max() > 0.1

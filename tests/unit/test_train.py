"""Training: it learns, is reproducible and resumable bit for bit, and sees only its pairs."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import math
import os
import random
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import plant
from multibit import Config, HashModel, Pairs, train
from multibit.errors import ConfigError, DataError, FormatError, MismatchError, SpeedNote
from multibit.hashing.code_model import check_device
from multibit.hashing.encode import encode
from multibit.hashing.loop import fit
from multibit.hashing.methods import METHODS
from multibit.hashing.methods.multibit import MultiBit

pytestmark = pytest.mark.slow  # models are trained

SMALL = Config(
    lengths=(6, 16), scales=3, hidden=24, dimension=12, epochs=5, batch_size=32, learning_rate=3e-3, dropout=0.3
)


def take(pairs, first, last):
    start, stop = pairs.offsets[first], pairs.offsets[last]
    return Pairs(
        pairs.image[first:last],
        pairs.text[start:stop],
        pairs.offsets[first : last + 1] - start,
        pairs.labels[first:last],
    )


def planted(items, **kwargs):
    data = plant(items, **kwargs)
    return Pairs(data["image"], data["text"], np.arange(items + 1), data["labels"])


def weights(model):
    return {name: tensor.cpu().numpy().copy() for name, tensor in model.state_dict().items()}


def same(first, second):
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)


def start(pairs, config=SMALL):
    return MultiBit(pairs, config)


def fit_small(pairs, score=None, config=SMALL, **kwargs):
    learner = start(pairs, config)
    return learner.model, fit(learner, pairs, config, score, **kwargs)


def rugged(model):
    """A score that is a pure function of the weights and has its best epoch anywhere."""
    return math.sin(1e4 * model.heads.weight.detach().double().sum().item())


class Stopped(Exception):  # noqa: N818 - stands for a power failure
    pass


def stop_at(epoch, score=rugged):
    calls = []

    def stopping(*args):
        calls.append(1)
        if len(calls) == epoch:
            raise Stopped
        return score(*args)

    return stopping


def slow_map(query_bits, database_bits, query_labels, database_labels):
    """Mean average precision of rankings by (distance, row), over queries with a relevant item."""
    values = []
    for bits, labels in zip(query_bits, query_labels, strict=True):
        order = np.argsort((bits != database_bits).sum(axis=1), kind="stable")
        relevant = (database_labels[order] & labels).any(axis=1)
        if relevant.any():
            values.append(np.mean((np.cumsum(relevant) / np.arange(1, len(relevant) + 1))[relevant]))
    return float(np.mean(values))


def slow_selection(model, validation, training, lengths):
    sides = {
        name: (model.encode(pairs.image, "image") >= 0, model.encode(pairs.text, "text") >= 0)
        for name, pairs in (("asked", validation), ("searched", training))
    }
    return np.mean(
        [
            slow_map(
                sides["asked"][asked][:, :B], sides["searched"][1 - asked][:, :B], validation.labels, training.labels
            )
            for asked in (0, 1)
            for B in lengths
        ]
    )


@pytest.mark.slow
def test_training_beats_chance_clearly_on_planted_data():
    pairs = planted(240)
    training, validation = take(pairs, 0, 180), take(pairs, 180, 240)
    config = dataclasses.replace(SMALL, epochs=15, dropout=0.0)
    result = train(training, validation, config)
    chance = (validation.labels.astype(int) @ training.labels.T > 0).mean()
    untrained = slow_selection(start(training, config).model, validation, training, config.lengths)
    assert result.state.best_score > chance + 0.25
    assert result.state.best_score > untrained + 0.2
    assert result.state.history[-1]["total"] < 0.7 * result.state.history[0]["total"]


@pytest.mark.slow
def test_bfloat16_training_learns_the_same_and_keeps_weights_in_single_precision():
    pairs = planted(240)
    training, validation = take(pairs, 0, 180), take(pairs, 180, 240)
    results = [
        train(training, validation, dataclasses.replace(SMALL, epochs=15, dropout=0.0, precision=precision))
        for precision in ("float32", "bfloat16", "bfloat16")
    ]
    assert {tensor.dtype for tensor in results[1].model.state_dict().values()} == {torch.float32}
    assert not same(weights(results[0].model), weights(results[1].model))
    assert same(weights(results[1].model), weights(results[2].model))
    assert results[1].state.best_score == pytest.approx(results[0].state.best_score, abs=0.03)


@pytest.mark.parametrize(
    ("able", "precision", "noted"),
    [
        ({"avx512_bf16": False, "amx_bf16": False}, "bfloat16", True),
        ({"avx512_bf16": True, "amx_bf16": False}, "bfloat16", False),
        ({"avx512_bf16": False, "amx_bf16": False}, "float32", False),
        ({}, "bfloat16", False),  # of another kind of processor, or unknown
    ],
)
def test_bfloat16_in_software_is_noted(able, precision, noted, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able, raising=False)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        train(planted(20), None, dataclasses.replace(SMALL, epochs=1, precision=precision))
    assert [each.category for each in found if each.category is SpeedNote] == [SpeedNote] * noted


def test_the_selection_score_is_the_mean_map_of_both_directions_and_all_lengths():
    pairs = planted(90)
    training, validation = take(pairs, 0, 70), take(pairs, 70, 90)
    result = train(training, validation, SMALL)
    expected = slow_selection(result.model, validation, training, SMALL.lengths)
    assert result.state.best_score == pytest.approx(expected, abs=1e-12)
    scores = [row["validation_mAP"] for row in result.state.history]
    assert result.state.best_score == max(scores)
    assert result.state.best_epoch == 1 + int(np.argmax(scores))


def test_the_seed_determines_the_weights():
    pairs = planted(70)
    first, again = fit_small(pairs), fit_small(pairs)
    other = fit_small(pairs, config=dataclasses.replace(SMALL, seed=43))
    assert same(weights(first[0]), weights(again[0])) and first[1].history == again[1].history
    assert not same(weights(first[0]), weights(other[0]))


def test_the_seed_determines_the_initial_weights_and_the_batches():
    pairs = planted(70)
    other = dataclasses.replace(SMALL, seed=43)
    learner = start(pairs)
    assert not same(weights(learner.model), weights(start(pairs, other).model))
    fit(learner, pairs, other, None)
    assert not same(weights(learner.model), weights(fit_small(pairs)[0]))


@pytest.mark.parametrize("averaging", [0.0, 0.3])
@pytest.mark.parametrize("epoch", range(1, SMALL.epochs + 1))
def test_an_interrupted_training_resumes_bit_for_bit(epoch, averaging, tmp_path):
    pairs, state_file = planted(70), tmp_path / "state.pt"
    config = dataclasses.replace(SMALL, averaging=averaging, binary_weight=1.0)
    model, state = fit_small(pairs, rugged, config)
    with pytest.raises(Stopped):
        fit_small(pairs, stop_at(epoch), config, state_file=state_file, save_every=0)
    assert state_file.exists() == (epoch > 1)
    resumed_model, resumed = fit_small(pairs, rugged, config, state_file=state_file, save_every=0)
    assert same(weights(resumed_model), weights(model))
    assert resumed.history == state.history
    assert (resumed.best_epoch, resumed.best_score) == (state.best_epoch, state.best_score)


def test_a_training_can_be_interrupted_repeatedly(tmp_path):
    pairs, state_file = planted(70), tmp_path / "state.pt"
    model, state = fit_small(pairs, rugged)
    for _ in range(SMALL.epochs - 1):
        with pytest.raises(Stopped):
            fit_small(pairs, stop_at(2), state_file=state_file, save_every=0)
    resumed_model, resumed = fit_small(pairs, rugged, state_file=state_file)
    assert same(weights(resumed_model), weights(model)) and resumed.history == state.history


def test_a_finished_state_gives_the_model_without_training_again(tmp_path):
    pairs, state_file = planted(70), tmp_path / "state.pt"
    model, state = fit_small(pairs, rugged, state_file=state_file)  # the last epoch is always saved
    again, found = fit_small(pairs, stop_at(1), state_file=state_file)
    assert same(weights(again), weights(model)) and found.history == state.history


KILLED = """
import os, signal, sys
from pathlib import Path
import test_train as t

calls = []

def score(model):
    calls.append(1)
    if len(calls) == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return t.rugged(model)

t.fit_small(t.planted(70), score, state_file=Path(sys.argv[1]), save_every=0)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs POSIX signals")
def test_a_training_killed_by_the_system_resumes_bit_for_bit(tmp_path):
    pairs, state_file = planted(70), tmp_path / "state.pt"
    folders = [str(folder) for folder in (Path(__file__).parent, Path(__file__).parents[1], *sys.path) if folder]
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(state_file)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
        capture_output=True,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL and state_file.exists(), killed.stderr
    model, state = fit_small(pairs, rugged)
    resumed_model, resumed = fit_small(pairs, rugged, state_file=state_file)
    assert same(weights(resumed_model), weights(model)) and resumed.history == state.history


def saved_state(pairs, path):
    with pytest.raises(Stopped):
        fit_small(pairs, stop_at(3), state_file=path, save_every=0)
    return path


@pytest.mark.parametrize(
    "change",
    [{"seed": 1}, {"epochs": 6}, {"batch_size": 16}, {"learning_rate": 1e-3}, {"scale_weight": 0.5}, {"dropout": 0.0}],
    ids=str,
)
def test_a_state_of_other_settings_is_refused(change, tmp_path):
    pairs = planted(70)
    path = saved_state(pairs, tmp_path / "state.pt")
    with pytest.raises(MismatchError) as caught:
        fit_small(pairs, config=dataclasses.replace(SMALL, **change), state_file=path)
    assert caught.value.file == path
    for name, value in change.items():
        assert f"{name} {getattr(SMALL, name)} there, {value} now" in caught.value.problem


@pytest.mark.parametrize("field", ["image", "text", "labels"])
def test_a_state_of_other_data_is_refused(field, tmp_path):
    pairs = planted(70)
    path = saved_state(pairs, tmp_path / "state.pt")
    changed = getattr(pairs, field).copy()
    changed[-1, -1] = 1 - changed[-1, -1]
    with pytest.raises(MismatchError) as caught:
        fit_small(dataclasses.replace(pairs, **{field: changed}), state_file=path)
    assert caught.value.file == path


def test_a_state_of_other_text_groups_is_refused(tmp_path):
    pairs = planted(71)
    first, second = np.arange(71), np.arange(71)
    first[1:] += 1  # the first item has two texts
    second[-1] += 1  # the last item has two texts
    grouped = [Pairs(pairs.image[:70], pairs.text, offsets, pairs.labels[:70]) for offsets in (first, second)]
    path = saved_state(grouped[0], tmp_path / "state.pt")
    with pytest.raises(MismatchError) as caught:
        fit_small(grouped[1], state_file=path)
    assert caught.value.file == path


def test_a_state_of_other_validation_pairs_is_refused(tmp_path, monkeypatch):
    pairs = planted(100)
    path, training = tmp_path / "state.pt", take(pairs, 0, 70)
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr("multibit.hashing.train.selection_score", stop_at(3, lambda *_: 0.5))
        train(training, take(pairs, 70, 80), SMALL, state_file=path, save_every=0)
    for other in (take(pairs, 80, 100), None):
        with pytest.raises(MismatchError) as caught:
            train(training, other, SMALL, state_file=path)
        assert caught.value.file == path


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_a_truncated_state_is_refused(share, tmp_path):
    pairs = planted(70)
    path = saved_state(pairs, tmp_path / "state.pt")
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(FormatError) as caught:
        fit_small(pairs, state_file=path)
    assert caught.value.file == path and "Delete it" in caught.value.hint


def test_a_file_that_is_not_a_state_is_refused(tmp_path):
    path = tmp_path / "state.pt"
    torch.save(torch.zeros(3), path)
    with pytest.raises(FormatError) as caught:
        fit_small(planted(20), state_file=path)
    assert caught.value.file == path


def test_a_state_of_a_newer_version_is_refused(tmp_path):
    pairs = planted(70)
    path = saved_state(pairs, tmp_path / "state.pt")
    content = torch.load(path, weights_only=True)
    torch.save({**content, "version": content["version"] + 1}, path)
    with pytest.raises(FormatError) as caught:
        fit_small(pairs, state_file=path)
    assert (caught.value.file, caught.value.field) == (path, "version")
    assert f"version {content['version'] + 1}" in caught.value.problem


def test_a_state_of_the_version_before_averaging_is_resumed(tmp_path):
    pairs = planted(70)
    path = saved_state(pairs, tmp_path / "state.pt")
    content = torch.load(path, weights_only=True)
    assert not content.pop("average")
    torch.save({**content, "version": 3}, path)
    resumed, state = fit_small(pairs, rugged, state_file=path)
    model, expected = fit_small(pairs, rugged)
    assert same(weights(resumed), weights(model)) and state.history == expected.history


def test_one_pair_is_refused():
    with pytest.raises(DataError) as caught:
        train(take(planted(20), 0, 1), None, SMALL)
    assert caught.value.option == "training"
    assert "at least 2" in caught.value.problem and "got 1" in caught.value.problem


@pytest.mark.parametrize("rows", [2, 20])
def test_pairs_without_any_label_are_refused(rows):
    pairs = take(planted(20), 0, rows)
    with pytest.raises(DataError) as caught:
        train(dataclasses.replace(pairs, labels=np.zeros_like(pairs.labels)), None, SMALL)
    assert "label" in str(caught.value) and str(rows) in str(caught.value)


def test_validation_pairs_without_a_label_in_training_are_refused():
    pairs = planted(30)
    blind = dataclasses.replace(pairs, labels=np.zeros_like(pairs.labels))
    with pytest.raises(DataError) as caught:
        train(pairs, blind, SMALL)
    assert caught.value.option == "validation" and "30 rows" in caught.value.problem


def test_validation_labels_of_another_count_are_refused():
    pairs = planted(30)
    with pytest.raises(DataError) as caught:
        train(pairs, dataclasses.replace(pairs, labels=pairs.labels[:, :3]), SMALL)
    assert (caught.value.option, caught.value.field) == ("validation", "labels")
    assert all(number in caught.value.problem for number in ("3", "8"))


def test_validation_features_of_another_length_are_refused():
    pairs = planted(30)
    with pytest.raises(DataError) as caught:
        train(pairs, dataclasses.replace(pairs, image=pairs.image[:, :5]), SMALL)
    assert caught.value.field == "image features"
    assert all(shape in caught.value.problem for shape in ("(n, 24)", "(30, 5)"))


@pytest.mark.parametrize(
    ("items", "batch_size"),
    [(2, 128), (20, 128), (33, 32), (5, 1)],
    ids=["two items", "batch larger than the data", "last batch of one item", "batches of one item"],
)
def test_any_batch_size_fits_any_number_of_items(items, batch_size):
    config = dataclasses.replace(SMALL, batch_size=batch_size, epochs=2)
    model, state = fit_small(planted(items), config=config)
    assert all(np.isfinite(array).all() for array in weights(model).values())
    assert [row["epoch"] for row in state.history] == [1, 2]


def test_a_batch_of_one_item_changes_no_weight():
    pairs, config = planted(5), dataclasses.replace(SMALL, batch_size=1)
    untrained = weights(start(pairs, config).model)
    assert same(untrained, weights(fit_small(pairs, config=config)[0]))


def test_one_label_per_item_is_enough():
    pairs = planted(60)
    single = dataclasses.replace(pairs, labels=np.eye(4, dtype=np.uint8)[np.arange(60) % 4])
    _, state = fit_small(single, config=dataclasses.replace(SMALL, epochs=10, dropout=0.0))
    assert np.isfinite(state.history[-1]["total"]) and state.history[-1]["total"] < state.history[0]["total"]


@pytest.mark.parametrize("exponent", [-100, -70, 64, 110])
def test_features_of_any_size_train_to_the_same_model(exponent):
    pairs = planted(60)
    scaled = dataclasses.replace(pairs, image=np.ldexp(pairs.image, exponent), text=np.ldexp(pairs.text, exponent))
    assert same(weights(fit_small(scaled)[0]), weights(fit_small(pairs)[0]))


def test_items_without_label_do_not_spoil_training():
    pairs = planted(60)
    labels = pairs.labels.copy()
    labels[::3] = 0
    _, state = fit_small(dataclasses.replace(pairs, labels=labels))
    assert np.isfinite(state.history[-1]["total"])


@pytest.mark.parametrize("scales", [1, 6])
@pytest.mark.parametrize("lengths", [(32,), (256,), (7, 13, 50)], ids=str)
def test_any_lengths_and_scales_train(lengths, scales):
    config = dataclasses.replace(SMALL, lengths=lengths, scales=scales, epochs=2)
    result = train(planted(40), None, config)
    assert result.model.bits == max(lengths) and len(result.model.blocks) == scales
    assert encode(result.model, planted(40)).image.bits == max(lengths)
    names = {f"prefix {B}" for B in lengths} | {f"scale {m}" for m in range(1, scales + 1)}
    assert names < result.state.history[0].keys()


def test_without_a_score_the_last_epoch_is_kept():
    pairs, seen = planted(70), []
    model, state = fit_small(pairs, lambda model: seen.append(weights(model)) or 0.0)
    last, unscored = fit_small(pairs)
    assert same(weights(last), seen[-1]) and unscored.best_epoch == SMALL.epochs
    assert "validation_mAP" not in unscored.history[-1]
    assert same(weights(model), seen[0]) and state.best_epoch == 1  # the first of equal scores


@pytest.mark.parametrize("validation", [None, planted(0)], ids=["none", "no rows"])
def test_without_validation_pairs_the_last_epoch_is_kept(validation):
    assert train(planted(40), validation, SMALL).state.best_epoch == SMALL.epochs


@pytest.mark.parametrize("best", [1, 3, 5])
def test_the_model_is_left_at_the_epoch_that_scored_best(best):
    seen = []

    def score(model):
        seen.append(weights(model))
        return 1.0 if len(seen) == best else 0.0

    model, state = fit_small(planted(70), score)
    assert state.best_epoch == best and same(weights(model), seen[best - 1]) and not model.training


def test_the_score_gets_the_model_of_its_epoch_and_can_encode_with_it():
    pairs, modes = planted(70), []

    def score(model):
        model.encode(pairs.image, "image")
        modes.append(model.training)
        return 0.0

    scored, _ = fit_small(pairs, score, config=dataclasses.replace(SMALL, epochs=1))
    unscored, _ = fit_small(pairs, config=dataclasses.replace(SMALL, epochs=1))
    assert same(weights(scored), weights(unscored)) and len(modes) == 1


def test_a_score_may_leave_the_model_in_evaluation_mode():
    pairs = planted(70)
    careless = fit_small(pairs, lambda model: rugged(model.eval()))[1]
    assert careless.history == fit_small(pairs, rugged)[1].history


def test_the_learning_rate_falls_from_its_setting_along_a_cosine():
    pairs = planted(70)  # 3 batches per epoch
    steps = 3 * SMALL.epochs
    _, state = fit_small(pairs)
    expected = [SMALL.learning_rate * (1 + math.cos(math.pi * 3 * epoch / steps)) / 2 for epoch in range(SMALL.epochs)]
    assert [row["learning_rate"] for row in state.history] == pytest.approx(expected, rel=1e-9)


def slow_prefix_loss(image, text, scores, bits, config):
    student = image[:, :bits] @ text[:, :bits].T / (2 * bits * config.student_temperature)
    log_target = scores / config.teacher_temperature
    log_target = log_target - np.log(np.exp(log_target).sum(axis=1, keepdims=True))
    sides = [side - np.log(np.exp(side).sum(axis=1, keepdims=True)) for side in (student, student.T)]
    return sum((np.exp(log_target) * (log_target - side)).sum(axis=1).mean() for side in sides)


def test_the_history_is_the_mean_over_items_whatever_the_batches():
    pairs = planted(5)  # a batch of three items, then one of two
    still = dataclasses.replace(SMALL, epochs=1, dropout=0.0, batch_size=3, learning_rate=1e-30)
    learner = start(pairs, still)
    model = learner.model
    image, text = model.encode(pairs.image, "image").astype(float), model.encode(pairs.text, "text").astype(float)
    scores = learner.teacher.scores(pairs.labels, pairs.labels)
    row = fit(learner, pairs, still, None).history[0]
    for bits in still.lengths:
        possible = [
            sum(
                len(rows) / 5 * slow_prefix_loss(image[rows], text[rows], scores[np.ix_(rows, rows)], bits, still)
                for rows in (list(first), [row for row in range(5) if row not in first])
            )
            for first in itertools.combinations(range(5), 3)
        ]
        assert any(row[f"prefix {bits}"] == pytest.approx(value, rel=1e-4) for value in possible)


def test_a_loss_that_is_not_finite_stops_with_advice():
    with pytest.raises(ConfigError) as caught:
        fit_small(planted(70), config=dataclasses.replace(SMALL, learning_rate=1e38))
    assert caught.value.option == "learning_rate" and "nan in epoch" in caught.value.problem


@pytest.mark.parametrize("score", [None, lambda model: 0.5])
def test_codes_that_are_not_finite_after_the_last_batch_stop_with_advice(score):
    one_batch = dataclasses.replace(SMALL, learning_rate=1e30, epochs=1, batch_size=100)
    with pytest.raises(ConfigError) as caught:
        fit_small(planted(70), score, config=one_batch)
    assert caught.value.option == "learning_rate" and "epoch 1" in caught.value.problem


def several_texts(items=8, texts=3):
    """Item i has the image e_i and the texts e_(texts * i), e_(texts * i + 1), ..."""
    return Pairs(
        np.eye(items, dtype=np.float32),
        np.eye(items * texts, dtype=np.float32),
        np.arange(items + 1) * texts,
        planted(items).labels,
    )


def drawn_texts(pairs, monkeypatch, config):
    """(epochs, items): the text row of each item that every epoch was shown."""
    shown = {"image": [], "text": []}
    forward = HashModel.forward

    def spy(self, features, modality):
        if self.training:
            shown[modality].append(features.argmax(dim=1).numpy())
        return forward(self, features, modality)

    with monkeypatch.context() as patch:
        patch.setattr(HashModel, "forward", spy)
        fit_small(pairs, config=config)
    items, texts = (np.concatenate(shown[modality]).reshape(config.epochs, -1) for modality in ("image", "text"))
    return np.take_along_axis(texts, np.argsort(items, axis=1), axis=1)


def test_each_epoch_shows_one_text_of_each_item_by_seed_and_epoch(monkeypatch):
    pairs, config = several_texts(), dataclasses.replace(SMALL, epochs=20, batch_size=3)
    drawn = drawn_texts(pairs, monkeypatch, config)
    assert (drawn // 3 == np.arange(8)).all()  # its own texts, every item once per epoch
    assert set(drawn.ravel()) == set(range(24))  # all of them over the epochs
    assert len({tuple(row) for row in drawn}) > 10
    assert np.array_equal(drawn, drawn_texts(pairs, monkeypatch, config))
    assert not np.array_equal(drawn, drawn_texts(pairs, monkeypatch, dataclasses.replace(config, seed=1)))


def test_encoding_takes_the_mean_of_all_texts_of_an_item():
    rng = np.random.default_rng(0)
    counts = [1, 4, 2, 3]
    offsets = np.concatenate([[0], np.cumsum(counts)])
    pairs = Pairs(
        rng.normal(size=(4, 6)).astype(np.float32),
        rng.normal(size=(10, 5)).astype(np.float32),
        offsets,
        np.eye(4, dtype=np.uint8),
    )
    model = start(pairs).model
    means = np.stack([pairs.text[offsets[i] : offsets[i + 1]].mean(axis=0) for i in range(4)])
    expected = model.encode(means, "text")
    assert np.abs(expected).min() > 1e-4  # no sign depends on rounding
    assert np.array_equal(encode(model, pairs).text.to_signs(), np.where(expected >= 0, 1, -1))


def test_training_neither_reads_nor_changes_the_global_random_states():
    pairs = planted(40)
    results = []
    for seed in (0, 1):
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 - the global state is what is tested
        torch.manual_seed(seed)
        before = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
        results.append(weights(train(pairs, take(pairs, 0, 10), SMALL).model))
        after = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
        assert before[0] == after[0] and str(before[1]) == str(after[1]) and torch.equal(before[2], after[2])
    assert same(*results)


def test_training_does_not_change_its_pairs():
    pairs = planted(40)
    before = planted(40)
    train(pairs, pairs, SMALL)
    for field in dataclasses.fields(Pairs):
        assert np.array_equal(getattr(pairs, field.name), getattr(before, field.name))


def test_validation_pairs_choose_the_epoch_and_nothing_else():
    pairs = planted(120)
    training, one_epoch = take(pairs, 0, 70), dataclasses.replace(SMALL, epochs=1)
    choices = [take(pairs, 70, 95), take(pairs, 95, 120)]
    first, second = (train(training, validation, SMALL).state.history for validation in choices)
    scores = [[row.pop("validation_mAP") for row in history] for history in (first, second)]
    assert first == second and scores[0] != scores[1]
    assert same(*(weights(train(training, validation, one_epoch).model) for validation in choices))


def test_training_takes_neither_queries_nor_a_database():
    allowed = {
        "training",
        "validation",
        "config",
        "method",
        "preset",
        "device",
        "state_file",
        "until",
        "save_every",
        "workers",
        "threads",
        "progress",
        "settings",
    }
    assert set(inspect.signature(train).parameters) == allowed
    assert set(inspect.signature(fit).parameters) == {
        "learner", "training", "settings", "score", "measure", "selection", "state_file", "until",
        "save_every", "label",
    }  # fmt: skip
    assert inspect.signature(fit).parameters["selection"].annotation == "str"  # a name for data, not the data
    features = {"image", "text", "offsets", "labels", "image_tokens", "text_tokens"}
    assert {field.name for field in dataclasses.fields(Pairs)} == features


def test_an_unknown_device_is_refused():
    with pytest.raises(ConfigError) as caught:
        train(planted(20), None, SMALL, device="tpu")
    assert caught.value.option == "device" and "'tpu'" in caught.value.problem


def test_a_missing_gpu_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError) as caught:
        check_device("cuda")
    assert caught.value.option == "device" and "cuda" in caught.value.problem


def test_a_complete_config_excludes_a_preset_and_settings():
    for given in ({"preset": "coco"}, {"epochs": 3}):
        with pytest.raises(ConfigError) as caught:
            train(planted(20), None, SMALL, **given)
        assert caught.value.option == "config" and next(iter(given)) in caught.value.problem


def test_the_default_method_is_that_of_the_command_line():
    tiny = {"lengths": (8,), "scales": 2, "hidden": 16, "dimension": 8, "epochs": 1}
    assert train(planted(20), **tiny).config == METHODS["multibit-plus"].config(**tiny)
    assert train(planted(20), method="multibit", **tiny).config == Config(**tiny)


@pytest.mark.slow
@pytest.mark.parametrize("stops", [(1,), (2, 2, 4), (3, 5), (5,), (9,)], ids=str)
def test_a_training_that_stops_at_an_epoch_continues_bit_for_bit(stops, tmp_path):
    pairs = planted(60)
    whole, expected = fit_small(pairs, score=by_spread)
    for stop in stops:
        _, state = fit_small(pairs, score=by_spread, state_file=tmp_path / "state.pt", until=stop)
        assert state.epoch == min(stop, SMALL.epochs) and len(state.history) == state.epoch
    model, state = fit_small(pairs, score=by_spread, state_file=tmp_path / "state.pt")
    assert same(weights(model), weights(whole)) and state.history == expected.history
    assert (state.best_epoch, state.best_score) == (expected.best_epoch, expected.best_score)


def by_spread(model):
    """A score that does not grow with every epoch."""
    return math.sin(100 * float(model.heads.weight.detach().abs().sum()))


def test_a_stopped_training_leaves_the_best_model_so_far(tmp_path):
    pairs = planted(60)
    short, state = fit_small(pairs, score=by_spread, until=3)
    again, whole = fit_small(pairs, score=by_spread)
    assert state.history == whole.history[:3]
    assert state.best_score == max(row["validation_mAP"] for row in whole.history[:3])
    assert by_spread(short) == state.best_score and by_spread(again) == whole.best_score


@pytest.mark.parametrize(
    ("given", "alpha", "plus"),
    [
        ({}, 0.9, True),
        ({"preset": "default"}, 0.9, True),
        ({"preset": "mirflickr"}, 1.2, False),
        ({"preset": "coco"}, 0.9, False),
        ({"preset": "mirflickr", "method": "multibit-plus"}, 1.2, True),
        ({"preset": "mirflickr", "alpha": 0.5}, 0.5, False),
    ],
    ids=str,
)
def test_a_preset_trains_the_papers_method_unless_one_is_named(given, alpha, plus):
    config = train(planted(20), lengths=(4, 8), scales=2, hidden=8, dimension=4, epochs=1, **given).config
    assert config.alpha == alpha and bool(config.binary_weight) == plus
    method = METHODS[given.get("method", "multibit-plus" if plus else "multibit")]
    assert config == method.config(Config.preset(given.get("preset", "default"))).override(
        {"lengths": (4, 8), "scales": 2, "hidden": 8, "dimension": 4, "epochs": 1, "alpha": alpha}
    )


def test_a_preset_and_a_complete_config_are_refused():
    with pytest.raises(ConfigError) as caught:
        train(planted(20), config=SMALL, preset="coco")
    assert caught.value.option == "config" and "preset" in caught.value.problem
    for name, value in {"preset": "flickr", "until": 0}.items():
        with pytest.raises(ConfigError) as caught:
            train(planted(20), **{name: value})
        assert caught.value.option == name

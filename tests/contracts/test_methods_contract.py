"""Every method obeys the same contract: it trains, resumes, is saved, encodes and refuses like the others."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from conftest import plant
from multibit import METHODS, Config, FeatureStore, Pairs, Run, Split, encode, train
from multibit.codes.items import MODALITIES
from multibit.errors import ConfigError, DataError, MismatchError
from multibit.evaluation.floors import popularity_floor
from multibit.evaluation.protocol import selection_score
from multibit.features.tokens import Tokens
from multibit.hashing import learner as learners
from multibit.hashing.code_model import CodeModel
from multibit.hashing.loop import fit

LENGTHS = (8, 12)
TRAINED = [name for name, method in METHODS.items() if method.learner is not None]
COMPARED = [name for name, method in METHODS.items() if not isinstance(method.defaults, Config)]
every_method = pytest.mark.parametrize("name", METHODS)
every_trained = pytest.mark.parametrize("name", TRAINED)
every_compared = pytest.mark.parametrize("name", COMPARED)
SMALLER = {  # what makes a method quick on 60 items, where its own defaults are large
    "hidden": 16, "dimension": 8, "scales": 2, "samples": 4, "concepts": 4, "synthetic_triplets": 256,
    "graph_layers": 1,
}  # fmt: skip
LEARN_SLOWLY = ("pairwise", "dimch", "vh-abl")


def small(name, **settings):
    """Quick settings of a method, with its own hyper-parameters otherwise."""
    defaults = METHODS[name].defaults
    common = {"lengths": LENGTHS, "epochs": 3, "batch_size": 16, **SMALLER, **settings}
    return METHODS[name].config().override({key: value for key, value in common.items() if hasattr(defaults, key)})


def planted(first, last, seed=0):
    """Planted items with tokens: every token is the pooled vector with noise."""
    data = plant(160, labels=12, seed=seed)
    rng = np.random.default_rng(3)
    rows = np.arange(first, last)

    def tokens(features):
        values = features[rows][:, None, :6].repeat(3, 1) + 0.1 * rng.normal(size=(len(rows), 3, 6))
        counts = rng.integers(1, 4, len(rows))
        values[np.arange(3) >= counts[:, None]] = 0
        return Tokens(values.astype(np.float16), counts)

    return Pairs(
        data["image"][rows], data["text"][rows], np.arange(len(rows) + 1), data["labels"][rows],
        tokens(data["image"]), tokens(data["text"]),
    )  # fmt: skip


TRAINING, VALIDATION = planted(0, 80), planted(80, 120)


def weights(model):
    return {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()}


def assert_same(first, second):
    first, second = weights(first), weights(second)
    assert first.keys() == second.keys()
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name], err_msg=name)


@pytest.fixture(scope="module")
def trained():
    """Name -> the result of a quick training, made once."""
    kept = {}

    def of(name):
        if name not in kept:
            kept[name] = train(TRAINING, VALIDATION, small(name), method=name)
        return kept[name]

    return of


# ---- what every method is -------------------------------------------------------------------------------------------


@every_method
def test_a_method_is_described(name):
    method = METHODS[name]
    assert method.name == name and method.title and method.meaning and not method.meaning.endswith(".")
    assert (method.learner is None) != (method.fit is None)
    assert method.config() == method.defaults.override(method.settings)
    if name in COMPARED and method.source:
        assert method.venue and method.differs.endswith(".")
    for preset, settings in method.presets.items():
        assert all(getattr(method.config(preset=preset), key) == value for key, value in settings.items())


@every_method
def test_the_settings_survive_json(name):
    settings = small(name)
    assert METHODS[name].defaults.override(settings.to_dict()) == settings


@every_method
def test_a_comparison_sets_lengths_epochs_batch_and_seed_alike(name):
    base = Config(lengths=(8, 24), scales=2, epochs=7, batch_size=20, seed=5)
    found = METHODS[name].config(base)
    for setting in ("lengths", "epochs", "batch_size", "seed"):
        if hasattr(METHODS[name].defaults, setting):
            assert getattr(found, setting) == getattr(base, setting)


# ---- codes ----------------------------------------------------------------------------------------------------------


@every_method
def test_codes_have_the_lengths_that_were_asked_for(name, trained):
    model, items = trained(name).model, encode(trained(name).model, VALIDATION)
    layout = model.layout
    assert layout.longest == model.bits == max(LENGTHS)
    assert layout.nested == (METHODS[name].lengths == "nested") and layout.views == METHODS[name].views
    assert model.models == (len(LENGTHS) if METHODS[name].lengths == "one" else 1)
    for bits in LENGTHS:
        for modality in MODALITIES:
            codes = items.at(bits).codes(modality)
            assert len(codes) == len(VALIDATION) and codes.bits >= bits
            if not layout.nested:
                assert codes.bits == bits


@every_method
def test_relaxed_codes_are_finite_and_in_the_range_that_asymmetric_search_needs(name, trained):
    for modality in MODALITIES:
        relaxed = trained(name).model.encode(VALIDATION.features(modality), modality, VALIDATION.tokens(modality))
        assert relaxed.dtype == np.float32 and relaxed.shape == (len(VALIDATION), trained(name).model.layout.stored)
        assert np.abs(relaxed).max() <= 1


@every_method
def test_encoding_is_a_pure_function_of_each_row(name, trained):
    model = trained(name).model
    for modality in MODALITIES:
        features, tokens = VALIDATION.features(modality), VALIDATION.tokens(modality)
        whole = model.encode(features, modality, tokens)
        torch.manual_seed(1)
        np.testing.assert_array_equal(model.encode(features, modality, tokens), whole)
        alone = np.concatenate(
            [model.encode(features[[row]], modality, tokens.take([row])) for row in range(len(VALIDATION))]
        )
        np.testing.assert_allclose(alone, whole, atol=1e-5)


@every_method
def test_every_text_of_an_item_counts(name, trained):
    """Two texts for each image: the code of an item changes with its second text too."""
    model, rows = trained(name).model, np.arange(40).repeat(2)
    texts, tokens = VALIDATION.text[rows].copy(), VALIDATION.text_tokens.take(rows)
    codes = []
    for second in (1.0, -1.0):
        texts[1::2] *= second
        values = tokens.values.copy()
        values[1::2] *= np.float16(second)
        several = Pairs(
            VALIDATION.image, texts.copy(), np.arange(0, 81, 2), VALIDATION.labels, VALIDATION.image_tokens,
            Tokens(values, tokens.counts),
        )  # fmt: skip
        codes.append(encode(model, several).relaxed["text"])
    assert len(codes[0]) == 40 and (np.abs(codes[0] - codes[1]).max(axis=1) > 1e-6).mean() > 0.9
    np.testing.assert_allclose(codes[0], encode(model, VALIDATION).relaxed["text"], atol=1e-5)


@every_method
def test_a_saved_model_is_loaded_with_equal_codes(name, trained, tmp_path):
    model = trained(name).model
    model.save(tmp_path / "model.safetensors")
    loaded = CodeModel.load(tmp_path / "model.safetensors")
    assert loaded.fingerprint() == model.fingerprint() and loaded.layout == model.layout and not loaded.training
    assert type(loaded) is type(model) and loaded.sizes == model.sizes
    for modality in MODALITIES:
        inputs = VALIDATION.features(modality), modality, VALIDATION.tokens(modality)
        np.testing.assert_array_equal(loaded.encode(*inputs), model.encode(*inputs))


# ---- training -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@every_method
def test_it_learns(name):
    """Clearly better at every length than chance, than the most common labels first, and than the initial weights."""
    rate = max(1e-2, getattr(METHODS[name].defaults, "learning_rate", 0))
    epochs = 25 if name in LEARN_SLOWLY else 12
    settings = small(name, epochs=epochs, lengths=(8, 16), learning_rate=rate, hidden=128)
    result = train(TRAINING, VALIDATION, settings, method=name)
    chance = (VALIDATION.labels.astype(int) @ TRAINING.labels.T > 0).mean()
    popular = popularity_floor(VALIDATION.labels, TRAINING.labels, TRAINING.labels).mean()
    for bits in settings.lengths:
        floor = max(chance, popular)
        if METHODS[name].learner is not None:
            alone = METHODS[name].lengths == "one"
            untrained = METHODS[name].learner(TRAINING, settings.override({"lengths": (bits,)}) if alone else settings)
            floor = max(floor, score_at(untrained.model, bits))
        score = score_at(result.model, bits)
        assert score > floor + 0.08, f"{bits} bits: {score:.3f}, floor {floor:.3f}"


def score_at(model, bits):
    """Validation mean mAP of a length."""
    return selection_score(encode(model, VALIDATION), encode(model, TRAINING), [bits])


@every_method
def test_the_seed_changes_the_model(name, trained):
    if METHODS[name].fit is not None and name == "cca-itq":
        pytest.skip("only its rotation is random")
    other = train(TRAINING, VALIDATION, small(name, seed=7), method=name)
    assert other.model.fingerprint() != trained(name).model.fingerprint()


def rugged(model):
    """A score that is a pure function of the model and has its best epoch anywhere."""
    return math.sin(1e3 * float(np.abs(model.encode(VALIDATION.image, "image", VALIDATION.image_tokens)).sum()))


class Stopped(Exception):  # noqa: N818 - stands for a power failure
    pass


@every_trained
def test_an_interrupted_training_resumes_bit_for_bit(name, tmp_path):
    settings = small(name, lengths=(12,))
    learner = METHODS[name].learner(TRAINING, settings)
    state = fit(learner, TRAINING, settings, rugged)
    calls = []

    def stopping(model):
        calls.append(1)
        if len(calls) == 2:
            raise Stopped
        return rugged(model)

    with pytest.raises(Stopped):
        fit(
            METHODS[name].learner(TRAINING, settings),
            TRAINING,
            settings,
            stopping,
            state_file=tmp_path / "s.pt",
            save_every=0,
        )
    resumed = METHODS[name].learner(TRAINING, settings)
    again = fit(resumed, TRAINING, settings, rugged, state_file=tmp_path / "s.pt")
    assert again.history == state.history and again.best_epoch == state.best_epoch
    assert_same(resumed.model, learner.model)


@every_trained
def test_the_values_of_a_step_are_its_parts_and_finite(name):
    settings = small(name, lengths=(12,), epochs=1)
    learner = METHODS[name].learner(TRAINING, settings)
    assert learner.parts[-1] == "total" and len(set(learner.parts)) == len(learner.parts)
    (row,) = fit(learner, TRAINING, settings, None).history
    assert all(math.isfinite(row[part]) for part in learner.parts)


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.inputs == "tokens"])
def test_a_state_of_other_tokens_is_refused(name, tmp_path):
    settings = small(name, lengths=(12,), epochs=1)
    fit(METHODS[name].learner(TRAINING, settings), TRAINING, settings, None, state_file=tmp_path / "s.pt")
    values = TRAINING.text_tokens.values[np.arange(80)] * 2
    other = dataclasses.replace(TRAINING, text_tokens=Tokens(values, TRAINING.text_tokens.counts))
    with pytest.raises(MismatchError):
        fit(METHODS[name].learner(other, settings), other, settings, None, state_file=tmp_path / "s.pt")


@every_trained
def test_a_state_of_other_settings_is_refused(name, tmp_path):
    settings = small(name, lengths=(12,), epochs=1)
    fit(METHODS[name].learner(TRAINING, settings), TRAINING, settings, None, state_file=tmp_path / "s.pt")
    other = settings.override({"seed": 1})
    with pytest.raises(MismatchError):
        fit(METHODS[name].learner(TRAINING, other), TRAINING, other, None, state_file=tmp_path / "s.pt")


# ---- odd data and what is refused -----------------------------------------------------------------------------------


@every_method
def test_items_without_labels_and_batches_of_one_label_give_finite_codes(name):
    odd = planted(0, 40)
    odd.labels[:], odd.labels[:20, 0], odd.labels[20:35, 1] = (
        0,
        1,
        1,
    )  # five have none; many batches of 4 have one label
    result = train(odd, None, small(name, batch_size=4, epochs=1), method=name)
    for modality in MODALITIES:
        codes = result.model.encode(odd.features(modality), modality, odd.tokens(modality))
        assert np.isfinite(codes).all()
    assert all(math.isfinite(row["total"]) for row in result.state.history)


@every_method
def test_one_bit_is_trained(name):
    if METHODS[name].name in ("multibit", "multibit-plus") or hasattr(METHODS[name].defaults, "allocation"):
        pytest.skip("a scale needs a bit")
    result = train(TRAINING, VALIDATION, small(name, lengths=(1, 8), epochs=1), method=name)
    assert encode(result.model, VALIDATION).at(1).image.check_length(1) == 1


@every_compared
def test_training_items_that_are_all_related_are_refused(name):
    learner = METHODS[name].learner
    if learner is None or not learner.needs_unrelated:
        pytest.skip("does not compare items")
    same = dataclasses.replace(TRAINING, labels=np.ones_like(TRAINING.labels))
    with pytest.raises(DataError) as caught:
        train(same, None, small(name), method=name)
    assert caught.value.field == "labels" and "80" in caught.value.problem


@every_compared
def test_fewer_items_than_a_batch_are_refused(name):
    learner = METHODS[name].learner
    if learner is None or not learner.needs_unrelated:
        pytest.skip("does not compare items")
    with pytest.raises(DataError) as caught:
        train(TRAINING, None, small(name, batch_size=100), method=name)
    assert caught.value.option == "batch_size"
    assert "80" in caught.value.problem and "100" in caught.value.problem


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.inputs == "tokens"])
def test_features_without_tokens_are_refused_and_the_pooled_variant_is_named(name):
    pooled = dataclasses.replace(TRAINING, image_tokens=None, text_tokens=None)
    with pytest.raises(DataError) as caught:
        train(pooled, None, small(name), method=name)
    assert f"{name.removesuffix('-single')}-pooled" in caught.value.hint and "tokens" in caught.value.problem
    assert f"{name.removesuffix('-single')}-pooled" in METHODS


def test_lengths_that_cannot_be_stored_together_are_refused():
    for name in COMPARED:
        if METHODS[name].lengths == "nested":
            continue
        with pytest.raises(ConfigError) as caught:
            train(TRAINING, None, small(name, lengths=(512, 1000)), method=name)
        assert caught.value.option == "lengths" and "1024" in caught.value.problem.replace(",", "")


# ---- nothing but training items is read -----------------------------------------------------------------------------


@pytest.mark.slow
@every_method
def test_poisoned_queries_and_database_labels_and_the_callers_random_state_change_nothing(name, tmp_path):
    """The labels and features of all items outside of the train and validation rows are exchanged for noise.

    So is the random state of the caller: a training repeats bit for bit.
    """
    data = plant(160, labels=12)
    split = Split.draw(160, query=30, train=80, validation=20, seed=3)
    outside = np.setdiff1d(np.arange(160), np.concatenate([split.train, split.validation]))
    if METHODS[name].inputs == "tokens":
        rng = np.random.default_rng(0)
        data["image_tokens"] = rng.normal(size=(160, 3, 6)).astype(np.float16)
        data["text_tokens"] = rng.normal(size=(160, 2, 5)).astype(np.float16)
    models = []
    for poisoned in (False, True):
        torch.manual_seed(99 * poisoned)
        arrays = {key: value.copy() for key, value in data.items()}
        if poisoned:
            rng = np.random.default_rng(8)
            arrays["labels"][outside] = rng.integers(0, 2, arrays["labels"][outside].shape)
            for key in set(arrays) - {"labels"}:
                arrays[key][outside] = rng.normal(size=arrays[key][outside].shape)
        np.savez(tmp_path / f"{poisoned}.npz", **arrays)
        store = FeatureStore.open(tmp_path / f"{poisoned}.npz")
        run = Run.create(tmp_path / f"run-{poisoned}", store, split, small(name, epochs=2), method=name)
        models.append(run.record.model)
    assert models[0] == models[1]


def test_a_learner_gets_training_items_only():
    """By construction: a learner is made from training pairs and settings, a step from a batch of them."""
    assert set(learners.Batch._fields) == {
        "rows", "image", "text", "labels", "epoch", "image_tokens", "text_tokens",
    }  # fmt: skip

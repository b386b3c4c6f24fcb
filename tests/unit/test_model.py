"""The hash model: shapes, the formula, encoding without side effects, and its file."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from multibit import HashModel, Split
from multibit.errors import ConfigError, DataError, FormatError
from multibit.files import read_arrays, write_arrays
from multibit.hashing import code_model as module
from multibit.hashing.layers import Dropout

SIZES = {"image": 20, "text": 12}


def build(blocks=(5, 2, 1), hidden=24, dimension=10, dropout=0.0, seed=0, image=20, text=12):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return HashModel(image, text, blocks, hidden, dimension, dropout)


def features(count, modality, seed=0):
    return np.random.default_rng(seed).normal(size=(count, SIZES[modality])).astype(np.float32)


@pytest.mark.parametrize("modality", ["image", "text"])
@pytest.mark.parametrize("blocks", [(1,), (1, 1), (3, 7, 13), (71, 50, 6, 1), (100,) * 6, (511, 1), (512,)])
def test_a_code_has_one_value_per_bit_between_minus_one_and_one(blocks, modality):
    model = build(blocks)
    codes = model.encode(features(7, modality), modality)
    assert codes.shape == (7, sum(blocks)) and codes.dtype == np.float32
    assert model.bits == sum(blocks) and np.abs(codes).max() <= 1


@pytest.mark.parametrize("modality", ["image", "text"])
def test_the_code_is_the_tanh_of_linear_heads_on_a_two_layer_network(modality):
    model = build((5, 2, 1), hidden=24, dimension=10)
    weights = {name: tensor.numpy().astype(np.float64) for name, tensor in model.state_dict().items()}
    first, second = (f"projections.{modality}.layers.{layer}" for layer in (0, 3))
    for row, got in zip(features(6, modality), model.encode(features(6, modality), modality), strict=True):
        x = row / np.sqrt((row.astype(np.float64) ** 2).sum()) * np.sqrt(len(row))
        hidden = np.maximum(weights[f"{first}.weight"] @ x + weights[f"{first}.bias"], 0)
        z = weights[f"{second}.weight"] @ hidden + weights[f"{second}.bias"]
        np.testing.assert_allclose(
            got, np.tanh(weights["heads.weight"] @ z + weights["heads.bias"]), rtol=1e-4, atol=1e-6
        )


def test_each_modality_has_its_own_projection_and_both_share_the_heads():
    model = build((5, 3), hidden=24, dimension=10)
    projections = sum(inputs * 24 + 24 + 24 * 10 + 10 for inputs in SIZES.values())
    assert sum(p.numel() for p in model.parameters()) == projections + 10 * 8 + 8


@pytest.mark.parametrize("factor", [1e-37, 1e-20, 1e-6, 0.5, 1e6, 1e19, 1e37])
def test_only_the_direction_of_a_feature_counts(factor):
    model, x = build(), features(9, "image")
    scaled = (x * factor).astype(np.float32)
    np.testing.assert_allclose(model.encode(scaled, "image"), model.encode(x, "image"), atol=1e-6)


def test_the_smallest_and_the_largest_numbers_have_a_direction():
    model = build()
    ones = np.ones((1, 20), np.float32)
    for value in (np.finfo(np.float32).smallest_subnormal, np.finfo(np.float32).max):
        np.testing.assert_allclose(model.encode(value * ones, "image"), model.encode(ones, "image"), atol=1e-6)


@pytest.mark.parametrize(("value", "said"), [(1e300, "1e+300"), (1e-300, "1e-300")])
def test_values_outside_float32_are_refused_with_their_row(value, said):
    x = features(4, "image").astype(np.float64)
    x[2] = value
    with pytest.raises(DataError) as caught:
        build().encode(x, "image")
    assert caught.value.field == "image features" and f"[2, 0] is {said}" in caught.value.problem


def test_a_zero_feature_has_a_finite_code():
    assert np.isfinite(build().encode(np.zeros((2, 20)), "image")).all()


@pytest.mark.parametrize("modality", ["image", "text"])
def test_encoding_one_by_one_equals_encoding_together(modality):
    model, x = build((100, 28), hidden=64, dimension=32), features(200, modality)
    together = model.encode(x, modality)
    single = np.concatenate([model.encode(x[row : row + 1], modality) for row in range(len(x))])
    np.testing.assert_allclose(single, together, atol=1e-5)
    flipped = ((single >= 0) != (together >= 0)).mean()
    assert flipped <= 1e-3  # only a value within rounding of 0 may change its sign


def test_a_refused_feature_is_reported_with_its_row_in_any_block(monkeypatch):
    x = features(50, "text")
    x[33, 5] = np.nan
    monkeypatch.setattr(module, "ENCODE_ROWS", 8)
    with pytest.raises(DataError) as caught:
        build().encode(x, "text")
    assert caught.value.field == "text features" and "[33, 5] is nan" in caught.value.problem


@pytest.mark.parametrize("rows", [1, 7, 50])
def test_the_block_size_of_encoding_changes_nothing_but_rounding(rows, monkeypatch):
    model, x = build(), features(50, "text")
    whole = model.encode(x, "text")
    monkeypatch.setattr(module, "ENCODE_ROWS", rows)
    np.testing.assert_allclose(model.encode(x, "text"), whole, atol=1e-5)


def test_encoding_never_drops_units_and_leaves_the_mode_as_it_was():
    model, x = build(dropout=0.9), features(30, "image")
    expected = model.eval().encode(x, "image")
    model.train()
    assert np.array_equal(model.encode(x, "image"), expected)
    assert model.training and all(part.training for part in model.modules())


def test_the_forward_pass_of_training_does_drop_units():
    model, x = build(dropout=0.9).train(), torch.from_numpy(features(30, "image"))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        assert not torch.equal(model(x, "image"), model(x, "image"))


def test_encoding_changes_neither_features_nor_weights():
    model, x = build(), features(8, "image")
    before, weights = x.copy(), model.fingerprint()
    model.encode(x, "image")
    assert np.array_equal(x, before) and model.fingerprint() == weights


@pytest.mark.parametrize(
    "change",
    [lambda x: x.astype(np.float64), lambda x: x.tolist(), np.asfortranarray, lambda x: np.repeat(x, 2, axis=0)[::2]],
    ids=["float64", "lists", "column-major", "strided"],
)
def test_encoding_accepts_features_in_any_layout(change):
    model, x = build(), features(6, "text")
    np.testing.assert_allclose(model.encode(change(x), "text"), model.encode(x, "text"), atol=1e-6)


def test_encoding_accepts_half_precision_from_a_read_only_memory_map(tmp_path):
    model, x = build(), features(6, "text").astype(np.float16)
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert np.array_equal(model.encode(mapped, "text"), model.encode(x.astype(np.float32), "text"))


def test_no_features_have_no_codes():
    assert build().encode(np.zeros((0, 12)), "text").shape == (0, 8)


@pytest.mark.parametrize(
    ("array", "modality", "numbers"),
    [
        (np.zeros((3, 12)), "image", ("(n, 20)", "(3, 12)")),
        (np.zeros((3, 20)), "text", ("(n, 12)", "(3, 20)")),
        (np.zeros(12), "text", ("(n, 12)", "(12,)")),
        (np.full((3, 12), np.nan), "text", ("[0, 0] is nan",)),
        (np.full((3, 12), -np.inf), "text", ("[0, 0] is -inf",)),
    ],
)
def test_features_that_do_not_fit_are_refused(array, modality, numbers):
    with pytest.raises(DataError) as caught:
        build().encode(array, modality)
    assert caught.value.field == f"{modality} features"
    assert all(number in caught.value.problem for number in numbers)


def test_an_unknown_modality_is_refused():
    with pytest.raises(ConfigError) as caught:
        build().encode(np.zeros((1, 20)), "sound")
    assert caught.value.option == "modality" and "'sound'" in caught.value.problem


def test_refused_features_leave_the_mode_as_it_was():
    model = build().train()
    with pytest.raises(DataError):
        model.encode(np.full((1, 20), np.nan), "image")
    assert model.training


@pytest.mark.parametrize(
    ("wrong", "option"),
    [
        ({"image": 0}, "image_dim"),
        ({"text": -1}, "text_dim"),
        ({"hidden": 0}, "hidden"),
        ({"dimension": 0}, "dimension"),
        ({"blocks": (3, 0)}, "blocks"),
    ],
    ids=str,
)
def test_sizes_must_be_positive(wrong, option):
    with pytest.raises(ConfigError) as caught:
        build(**wrong)
    (size,) = wrong.values()
    assert caught.value.option == option and f"got {np.min(size)}" in caught.value.problem


@pytest.mark.parametrize("blocks", [(1,), (5, 2, 1), (200, 56)])
def test_a_loaded_model_has_equal_codes_and_fingerprint(blocks, tmp_path):
    model = build(blocks, dropout=0.25).train()
    model.save(tmp_path / "m.safetensors")
    loaded = HashModel.load(tmp_path / "m.safetensors")
    for modality in SIZES:
        x = features(20, modality)
        assert np.array_equal(loaded.encode(x, modality), model.encode(x, modality))
    assert loaded.fingerprint() == model.fingerprint() and len(loaded.fingerprint()) == 16
    assert loaded.blocks == blocks and loaded.sizes["dropout"] == 0.25 and not loaded.training


def test_the_fingerprint_depends_on_every_weight():
    model = build()
    seen = {model.fingerprint()}
    for parameter in model.parameters():
        with torch.no_grad():
            parameter.view(-1)[-1] += 1e-3
        seen.add(model.fingerprint())
    assert len(seen) == 1 + len(list(model.parameters()))


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.9, 0.999])
def test_a_truncated_model_file_is_refused(share, tmp_path):
    path = tmp_path / "m.safetensors"
    build().save(path)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(FormatError) as caught:
        HashModel.load(path)
    assert str(path) in str(caught.value)


def test_one_changed_bit_in_the_weights_is_detected(tmp_path):
    path = tmp_path / "m.safetensors"
    build().save(path)
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    with pytest.raises(FormatError) as caught:
        HashModel.load(path)
    assert str(path) in str(caught.value) and "checksum" in str(caught.value)


def test_a_missing_model_file_is_refused(tmp_path):
    with pytest.raises(FormatError) as caught:
        HashModel.load(tmp_path / "gone.safetensors")
    assert str(tmp_path / "gone.safetensors") in str(caught.value)


def test_a_file_of_another_kind_is_refused(tmp_path):
    Split.draw(10, query=2, train=4, validation=1).save(tmp_path / "split.safetensors")
    with pytest.raises(FormatError) as caught:
        HashModel.load(tmp_path / "split.safetensors")
    assert all(kind in str(caught.value) for kind in ("multibit hash model", "multibit split"))


def test_a_newer_model_file_is_refused(tmp_path):
    path = tmp_path / "m.safetensors"
    build().save(path)
    write_arrays(path, *read_arrays(path, kind=module.KIND, version=1), kind=module.KIND, version=module.VERSION + 1)
    with pytest.raises(FormatError) as caught:
        HashModel.load(path)
    assert str(path) in str(caught.value) and f"version {module.VERSION + 1}" in str(caught.value)


def test_changed_sizes_in_a_model_file_are_detected(tmp_path):
    path = tmp_path / "m.safetensors"
    build((5, 2, 1)).save(path)
    path.write_bytes(path.read_bytes().replace(b"[5, 2, 1]", b"[5, 2, 9]"))
    with pytest.raises(FormatError) as caught:
        HashModel.load(path)
    assert str(path) in str(caught.value) and "checksum" in str(caught.value)


@pytest.mark.parametrize("failing", ["write", "rename"])
def test_a_failed_save_keeps_the_old_file(failing, tmp_path, monkeypatch):
    path = tmp_path / "m.safetensors"
    old = build(seed=1)
    old.save(path)

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr({"write": "multibit.paths._flush", "rename": "pathlib.Path.replace"}[failing], fail)
    with pytest.raises(OSError) as caught:
        build(seed=2).save(path)
    assert caught.value.errno == 28
    assert HashModel.load(path).fingerprint() == old.fingerprint()
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("p", [0.0, 0.2, 0.5, 1.0])
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (200, 501)])
def test_dropout_drops_its_share_and_keeps_the_mean(p, shape):
    torch.manual_seed(0)
    values = torch.ones(shape, requires_grad=True)
    dropped = Dropout(p)(values)
    dropped.sum().backward()
    factor = 1 / (1 - p) if p < 1 else 0.0
    assert all(value in (0.0, pytest.approx(factor, rel=1e-4)) for value in dropped.detach().unique().tolist())
    assert torch.equal(values.grad, dropped.detach())  # the gradient passes where the value does
    if dropped.numel() > 1000:
        assert float((dropped == 0).float().mean()) == pytest.approx(p, abs=0.01)
        assert float((dropped == 0).float().mean(0).std()) < 0.05  # no column is favoured


def test_dropout_depends_on_the_seed_and_is_off_outside_training():
    layer, values = Dropout(0.4), torch.randn(50, 33)
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(layer(values))
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    assert layer.eval()(values) is values

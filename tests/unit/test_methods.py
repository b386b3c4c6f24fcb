"""The methods: each is a set of settings of the same parts, trained by the same loop."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from multibit import Config, Pairs, RelationTeacher, train
from multibit.cli.options import read_config
from multibit.errors import ConfigError
from multibit.hashing import allocate_bits
from multibit.hashing.bits import plan_blocks
from multibit.hashing.methods import METHODS, find_method, method_of
from multibit.hashing.methods.multibit import MULTIBIT_METHODS, build_model
from multibit.relation import TEACHERS

TINY = Config(lengths=(8, 16), scales=2, hidden=16, dimension=8, epochs=2, batch_size=64)
QUADRATURE = allocate_bits(RelationTeacher.fit([[1, 0], [0, 1]], TINY.alpha, TINY.eta, 2).rho, 16)
PREFIXES, SCALES = ("prefix 8", "prefix 16"), ("scale 1", "scale 2")

EXPECTED = {  # name -> blocks, parts of the loss
    "multibit": (QUADRATURE, (*PREFIXES, *SCALES)),
    "multibit-plus": (QUADRATURE, (*PREFIXES, *SCALES, "binary", "within", "consistency", "item")),
    "baseline": ((16,), ("standard",)),
    "frt": ((16,), ("prefix 16", "standard")),
    "frt-sbo": (QUADRATURE, ("prefix 16", *SCALES)),
    "naive-prefix": ((16,), ("prefix 16",)),
    "separate": (QUADRATURE, (*PREFIXES, *SCALES)),
    "uniform-bits": ((8, 8), (*PREFIXES, *SCALES)),
    "single-scale": (QUADRATURE, (*PREFIXES, *SCALES)),
    "pairwise": (QUADRATURE, (*PREFIXES, *SCALES)),
}
every_method = pytest.mark.parametrize("name", EXPECTED)


@pytest.fixture
def halves(planted_pairs):
    """Training and validation pairs."""

    def part(first, last):
        arrays = (planted_pairs.image[first:last], planted_pairs.text[first:last])
        return Pairs(*arrays, np.arange(last - first + 1), planted_pairs.labels[first:last])

    return part(0, 120), part(120, 160)


def configs(name, base=TINY):
    """The settings of the models that a method trains."""
    config = find_method(name).config(base)
    lengths = [(bits,) for bits in base.lengths] if find_method(name).lengths == "one" else [base.lengths]
    return [config.override({"lengths": each}) for each in lengths]


def weights(model):
    return {key: tensor.numpy() for key, tensor in model.state_dict().items()}


def assert_same_weights(first, second):
    first, second = weights(first), weights(second)
    assert first.keys() == second.keys()
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name], err_msg=name)


def assert_close_weights(first, second):
    """The same but for rounding."""
    first, second = weights(first), weights(second)
    assert first.keys() == second.keys()
    for name, array in first.items():
        np.testing.assert_allclose(array, second[name], atol=1e-6, err_msg=name)


def test_the_expected_methods_are_all_variants_of_multibit_and_come_first():
    assert [method.name for method in MULTIBIT_METHODS] == list(EXPECTED) == list(METHODS)[: len(EXPECTED)]


@every_method
def test_each_method_trains_with_its_blocks_and_losses(name, halves):
    blocks, parts = EXPECTED[name]
    for config in configs(name):
        result = train(*halves, config)
        if name == "separate":
            blocks = allocate_bits(result.teacher.rho, config.code_bits)
            parts = (f"prefix {config.code_bits}", *SCALES)
        assert result.model.blocks == blocks and result.model.bits == config.code_bits
        assert result.teacher.name == ("single-scale" if name == "single-scale" else "frt")
        names = ("epoch", *parts, "prefix", "scale", "total", "learning_rate", "validation_mAP")
        assert [tuple(row) for row in result.state.history] == [names, names]
        assert all(np.isfinite(list(row.values())).all() for row in result.state.history)


@every_method
def test_each_method_moves_the_weights(name, halves):
    config = configs(name)[0]
    result = train(*halves, config)
    untrained = build_model(halves[0], result.teacher, config)
    assert any(not np.array_equal(weights(untrained)[key], array) for key, array in weights(result.model).items())


@pytest.mark.parametrize("teacher", TEACHERS)
def test_every_teacher_trains_under_the_full_method(teacher, halves):
    result = train(*halves, TINY.override({"teacher": teacher, "learning_rate": 0.01, "epochs": 5}))
    assert result.teacher.name == teacher
    assert result.state.history[-1]["total"] < result.state.history[0]["total"]


# ---- identities -----------------------------------------------------------------------------------------------------


def test_full_without_scale_loss_and_with_the_longest_length_only_is_naive_prefix(halves):
    """The four blocks are one matrix, so only the losses tell them apart, which sum products in another order."""
    (naive,) = configs("naive-prefix")
    full = TINY.override({"scale_weight": 0, "aligned": "longest"})
    first, second = train(*halves, naive), train(*halves, full)
    assert_close_weights(first.model, second.model)
    shared = ("prefix 16", "prefix", "total", "validation_mAP")
    for a, b in zip(first.state.history, second.state.history, strict=True):
        assert [a[name] for name in shared] == pytest.approx([b[name] for name in shared], abs=1e-5)


def test_full_without_scale_loss_at_one_length_is_naive_prefix(halves):
    one = TINY.override({"lengths": (16,)})
    (naive,) = configs("naive-prefix", one)
    assert_close_weights(train(*halves, naive).model, train(*halves, one.override({"scale_weight": 0})).model)


def test_frt_without_the_standard_loss_is_naive_prefix():
    (frt,), (naive,) = configs("frt"), configs("naive-prefix")
    assert frt.override({"standard_weight": 0}) == naive


def test_uniform_bits_differs_from_full_only_in_the_blocks(halves):
    (uniform,), (full,) = configs("uniform-bits"), configs("multibit")
    assert uniform == full.override({"allocation": "uniform"})
    teacher = RelationTeacher.fit(halves[0].labels, full.alpha, full.eta, full.scales)
    models = build_model(halves[0], teacher, uniform), build_model(halves[0], teacher, full)
    assert_same_weights(*models)
    assert [model.blocks for model in models] == [(8, 8), QUADRATURE] and QUADRATURE != (8, 8)


@pytest.mark.parametrize(
    ("name", "changed"), [("single-scale", {"teacher"}), ("pairwise", {"alignment"}), ("frt-sbo", {"aligned"})]
)
def test_an_ablation_changes_one_setting(name, changed):
    (config,) = configs(name)
    assert {key for key, value in config.to_dict().items() if value != TINY.to_dict()[key]} == changed


def test_separate_is_full_once_for_each_length(halves):
    joined = train(*halves, TINY, method="separate")
    assert joined.model.layout.part(16) == slice(8, 24) and joined.model.models == 2
    relaxed = joined.model.encode(halves[0].image, "image")
    for bits in TINY.lengths:
        one = train(*halves, TINY.override({"lengths": (bits,)}))
        np.testing.assert_allclose(
            relaxed[:, joined.model.layout.part(bits)], one.model.encode(halves[0].image, "image"), atol=1e-6
        )


@pytest.mark.parametrize("name", [name for name in EXPECTED if name != "separate"])
def test_every_other_variant_is_one_model_for_all_lengths(name, halves):
    assert find_method(name).lengths == "nested" and configs(name)[0].lengths == TINY.lengths


def test_settings_of_multibit_are_for_its_own_methods():
    assert method_of(TINY).name == "multibit" and method_of(TINY, "separate").lengths == "one"


def test_a_method_keeps_the_other_settings():
    base = TINY.override({"alpha": 1.3, "seed": 7, "epochs": 9})
    for name in EXPECTED:
        for config in configs(name, base):
            assert (config.alpha, config.seed, config.epochs, config.hidden) == (1.3, 7, 9, 16)


def test_full_has_the_settings_of_the_paper():
    assert METHODS["multibit"].config(Config()) == Config()


@pytest.mark.parametrize("name", ["multibit-plus", "pairwise", "frt"])
def test_a_method_repeats_bit_for_bit_whatever_the_callers_random_state(name, halves):
    (config,) = configs(name)
    first = train(*halves, config)
    torch.manual_seed(99)
    assert_same_weights(first.model, train(*halves, config).model)


# ---- allocation and what is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("allocation", "scales", "bits", "blocks"),
    [("uniform", 3, 16, (6, 5, 5)), ("uniform", 4, 4, (1, 1, 1, 1)), ("single", 4, 16, (16,)), ("single", 4, 2, (2,))],
)
def test_bits_by_allocation(allocation, scales, bits, blocks):
    scale_weight = 0.0 if allocation == "single" else 0.7
    config = Config(lengths=(bits,), scales=scales, allocation=allocation, scale_weight=scale_weight)
    assert plan_blocks(np.arange(1.0, 1 + scales), config) == blocks


@pytest.mark.parametrize(
    ("settings", "option", "numbers"),
    [
        ({"allocation": "single"}, "scale_weight", ("0.7",)),
        ({"aligned": "none", "scale_weight": 0}, "aligned", ()),
        ({"aligned": "none", "binary_weight": 1}, "aligned", ("binary_weight",)),
        ({"aligned": "none", "within_weight": 1}, "aligned", ("within_weight",)),
        ({"allocation": "even"}, "allocation", ("'even'", "quadrature", "uniform", "single")),
        ({"aligned": "shortest"}, "aligned", ("'shortest'", "all", "longest", "none")),
        ({"alignment": "triplet"}, "alignment", ("'triplet'", "listwise", "pairwise")),
        ({"input_dropout": 1}, "input_dropout", ("[0, 1)", "got 1")),
        ({"binary_weight": -1}, "binary_weight", ("at least 0", "-1")),
        ({"standard_weight": "nan"}, "standard_weight", ("finite", "nan")),
        ({"allocation": "uniform", "lengths": (1,)}, "lengths", ("1", "2 scales")),
    ],
    ids=str,
)
def test_settings_that_contradict_each_other_are_refused(settings, option, numbers):
    with pytest.raises(ConfigError) as caught:
        TINY.override(settings)
    assert option in str(caught.value)
    assert all(number in str(caught.value) for number in numbers)


def test_the_scales_do_not_bound_a_single_block():
    config = dataclasses.replace(TINY, allocation="single", scale_weight=0.0, lengths=(1,), scales=4)
    assert plan_blocks([1, 1, 1, 1], config) == (1,)


def test_an_unknown_method_is_refused_with_the_known_names():
    with pytest.raises(ConfigError) as caught:
        find_method("half")
    assert caught.value.option == "method" and "'half'" in caught.value.problem
    assert all(name in caught.value.problem for name in METHODS)


def test_a_settings_file_overrides_the_method_and_single_settings_override_both(tmp_path):
    (tmp_path / "run.toml").write_text('preset = "mirflickr"\ndropout = 0.4\n')
    config = read_config(METHODS["multibit-plus"], None, tmp_path / "run.toml", ["epochs=3"], 7)
    assert (config.alpha, config.dropout, config.input_dropout, config.epochs, config.seed) == (1.2, 0.4, 0.2, 3, 7)

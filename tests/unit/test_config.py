"""Settings: the paper's values as presets, files that override them, and errors for invalid values."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from multibit import Config
from multibit.config import PRESETS
from multibit.errors import ConfigError

# Table `tab:all-parameters` of the paper, typed from it.
REGISTER = {
    "eta": 0.2,
    "scales": 4,
    "epsilon": 0.1,
    "lengths": (16, 32, 64, 128),
    "dimension": 512,
    "teacher_temperature": 0.2,
    "student_temperature": 0.1,
    "scale_weight": 0.7,
    "epochs": 100,
    "batch_size": 128,
    "learning_rate": 0.001,
    "seed": 42,
}
ALPHA = {"mirflickr": 1.2, "coco": 0.9, "iapr": 0.9, "nuswide": 0.9}


@pytest.mark.parametrize("name", ALPHA)
def test_a_preset_holds_the_papers_register(name):
    settings = dataclasses.asdict(Config.preset(name))
    assert {key: settings[key] for key in REGISTER} == REGISTER
    assert settings["alpha"] == ALPHA[name]


def test_there_is_a_preset_for_every_data_set_of_the_paper_and_a_default():
    assert set(PRESETS) == {*ALPHA, "default"}
    assert Config.preset("default") == Config()


def test_an_unknown_preset_names_the_known_ones():
    with pytest.raises(ConfigError) as caught:
        Config.preset("flickr")
    assert caught.value.option == "preset"
    assert all(name in caught.value.problem for name in ("'flickr'", *PRESETS))


def test_the_length_weights_are_the_papers():
    assert Config().length_weights == pytest.approx((0.138, 0.195, 0.276, 0.391), abs=5e-4)


@pytest.mark.parametrize("lengths", [(8,), (16, 128), (1, 2, 3, 1024)])
def test_the_length_weights_sum_to_one_and_grow_with_the_root_of_the_length(lengths):
    weights = Config(lengths=lengths, scales=1).length_weights
    assert sum(weights) == pytest.approx(1)
    assert [weight / weights[0] for weight in weights] == pytest.approx([math.sqrt(n / lengths[0]) for n in lengths])


def test_lengths_are_sorted_and_the_longest_is_the_code():
    config = Config(lengths=(64, 8, 32))
    assert config.lengths == (8, 32, 64)
    assert config.code_bits == 64


def test_settings_cannot_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().alpha = 2.0


# Files


def test_a_file_overrides_the_defaults(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("alpha = 1\nepochs = 3\nlengths = [24, 8]\nlearning_rate = 5e-4\n# a comment, 日本\n", "utf-8")
    assert Config.load(path) == Config(alpha=1.0, epochs=3, lengths=(8, 24), learning_rate=5e-4)
    assert isinstance(Config.load(path).alpha, float)


def test_a_file_may_start_from_a_preset(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('preset = "mirflickr"\nepochs = 3\n')
    assert Config.load(path) == dataclasses.replace(Config.preset("mirflickr"), epochs=3)


def test_an_empty_file_is_the_default(tmp_path):
    (tmp_path / "run.toml").write_text("")
    assert Config.load(tmp_path / "run.toml") == Config()


@pytest.mark.parametrize(
    ("content", "field", "value"),
    [
        (None, "", "no such file"),
        (b"alpha = ", "", "end of document"),
        (b"alpha = 1\nalpha = 2\n", "", "TOML"),
        (b"# \xff\n", "", "UTF-8"),
        (b"alpa = 1\n", "", "alpa"),
        (b"[train]\nepochs = 1\n", "train", "table"),
        (b"[lengths]\n8 = 1\n", "lengths", "table"),
        (b"epochs = true\n", "epochs", "True"),
        (b"alpha = false\n", "alpha", "False"),
        (b"lengths = [8, true]\n", "lengths", "[8, True]"),
        (b"lengths = [[8]]\n", "lengths", "[[8]]"),
        (b"lengths = 8\n", "lengths", "8"),
        (b"epochs = [1, 2]\n", "epochs", "[1, 2]"),
        (b"alpha = 2026-01-01\n", "alpha", "date"),
        (b"teacher = 3\n", "teacher", "3"),
        (b'alpha = "0.9"\n', "alpha", "'0.9'"),
        (b'lengths = "8,16"\n', "lengths", "'8,16'"),
        (b'lengths = [16, "32"]\n', "lengths", "'32'"),
        (b'preset = ["coco"]\n', "preset", "coco"),
        (b'preset = "flickr"\n', "preset", "'flickr'"),
        (b'epochs = "many"\n', "epochs", "'many'"),
        (b"alpha = -1\n", "alpha", "-1.0"),
    ],
)
def test_an_invalid_file_is_refused_with_the_key_and_the_value(tmp_path, content, field, value):
    path = tmp_path / "run.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        Config.load(path)
    assert (caught.value.file, caught.value.field, caught.value.option) == (path, field, "")
    assert value in caught.value.problem


@pytest.mark.parametrize(
    ("line", "example"), [('alpha = "0.9"', "alpha = 0.9"), ('lengths = "8"', "lengths = [16, 32]")]
)
def test_a_quoted_number_in_a_file_is_answered_with_an_example(tmp_path, line, example):
    (tmp_path / "run.toml").write_text(line)
    with pytest.raises(ConfigError) as caught:
        Config.load(tmp_path / "run.toml")
    assert example in caught.value.hint


# Overrides


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("alpha", "1.5", 1.5),
        ("alpha", 2, 2.0),
        ("epochs", "3", 3),
        ("epochs", 3.0, 3),
        ("epochs", "1e2", 100),
        ("dropout", "0.25", 0.25),
        ("lengths", "8,24", (8, 24)),
        ("lengths", " 8 , 24 ", (8, 24)),
        ("lengths", [24, 8], (8, 24)),
    ],
)
def test_an_override_is_read_as_the_settings_own_type(name, text, value):
    got = getattr(Config().override({name: text}), name)
    assert got == value and type(got) is type(value)


def test_an_override_leaves_the_rest_and_the_original():
    original = Config.preset("mirflickr")
    changed = original.override({"epochs": 3})
    assert original.epochs == 100
    assert dataclasses.replace(changed, epochs=100) == original


def test_an_unknown_override_names_the_known_settings():
    with pytest.raises(ConfigError) as caught:
        Config().override({"beta": 1, "alpa": 1})
    names = ("alpa, beta", *(field.name for field in dataclasses.fields(Config)))
    assert all(name in caught.value.problem for name in names)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("alpha", "wide"),
        ("alpha", None),
        ("alpha", [1]),
        ("epochs", "2.5"),
        ("epochs", 2.5),
        ("epochs", ""),
        ("epochs", "nan"),
        ("epochs", "inf"),
        ("seed", math.inf),
        ("lengths", "8,x"),
        ("lengths", "8,,16"),
        ("lengths", ""),
        ("lengths", "16,inf"),
        ("lengths", [8.5]),
        ("lengths", 8),
    ],
)
def test_an_override_of_another_type_is_refused(name, value):
    with pytest.raises(ConfigError) as caught:
        Config().override({name: value})
    assert caught.value.option == name and repr(value) in caught.value.problem


def test_settings_survive_json():
    config = Config(alpha=1.25, lengths=(3, 9), scales=2, dropout=0.5, scale_weight=0)
    assert Config().override(json.loads(json.dumps(config.to_dict()))) == config


# Values

POSITIVE = ("alpha", "eta", "epsilon", "teacher_temperature", "student_temperature", "learning_rate")
COUNTS = ("scales", "hidden", "dimension", "epochs", "batch_size")


@pytest.mark.parametrize("name", POSITIVE)
@pytest.mark.parametrize("value", [0, -0.1, math.nan, math.inf])
def test_a_value_that_must_be_positive_is_refused(name, value):
    with pytest.raises(ConfigError) as caught:
        Config(**{name: value})
    assert caught.value.option == name and str(value) in caught.value.problem


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("value", [0, -3])
def test_a_count_below_one_is_refused(name, value):
    with pytest.raises(ConfigError) as caught:
        Config(**{name: value})
    assert caught.value.option == name and str(value) in caught.value.problem


@pytest.mark.parametrize(
    ("name", "value"), [("scale_weight", -0.1), ("scale_weight", math.nan), ("scale_weight", math.inf), ("seed", -1)]
)
def test_a_value_below_zero_is_refused(name, value):
    with pytest.raises(ConfigError) as caught:
        Config(**{name: value})
    assert caught.value.option == name and str(value) in caught.value.problem


@pytest.mark.parametrize("value", [-0.1, 1, 1.5, math.nan])
def test_a_dropout_outside_its_range_is_refused(value):
    with pytest.raises(ConfigError) as caught:
        Config(dropout=value)
    assert caught.value.option == "dropout" and str(value) in caught.value.problem


@pytest.mark.parametrize(
    ("name", "value"),
    [("hidden", 10**9), ("dimension", 10**9), ("seed", 2**32), ("allocation", "even"), ("aligned", "")],
)
def test_a_value_that_is_too_large_or_no_choice_is_refused(name, value):
    with pytest.raises(ConfigError) as caught:
        Config(**{name: value})
    assert caught.value.option == name


@pytest.mark.parametrize(
    ("values", "option"),
    [
        ({"allocation": "single"}, "scale_weight"),
        ({"aligned": "none", "scale_weight": 0}, "aligned"),
        ({"aligned": "none", "binary_weight": 0.1}, "binary_weight"),
        ({"aligned": "none", "within_weight": 0.1}, "within_weight"),
        ({"aligned": "none", "consistency_weight": 0.1}, "consistency_weight"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(values, option):
    with pytest.raises(ConfigError) as caught:
        Config(**values)
    assert caught.value.option == option


@pytest.mark.parametrize("lengths", [(), (0, 16), (-8, 16), (16, 16), (32, 16, 32)])
def test_lengths_that_are_none_not_positive_or_equal_are_refused(lengths):
    with pytest.raises(ConfigError) as caught:
        Config(lengths=lengths)
    assert caught.value.option == "lengths"


def test_a_code_shorter_than_its_scales_is_refused():
    assert Config(scales=4, lengths=(2, 4)).code_bits == 4
    with pytest.raises(ConfigError) as caught:
        Config(scales=4, lengths=(2, 3))
    assert caught.value.option == "lengths"
    assert "3 bits" in caught.value.problem and "4 scales" in caught.value.problem


@pytest.mark.parametrize("values", [{"scale_weight": 0}, {"dropout": 0}, {"seed": 0}, {"epochs": 1}, {"alpha": 1e-9}])
def test_values_at_the_limits_are_accepted(values):
    assert dataclasses.asdict(Config(**values)).items() >= values.items()


@pytest.mark.parametrize("values", [{"lengths": (16.5,)}, {"epochs": 1.5}, {"batch_size": 2.5}])
def test_a_fraction_where_a_whole_number_is_needed_is_refused(values):
    with pytest.raises(ConfigError):
        Config(**values)


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("alpha", "1", "'1'"),
        ("alpha", True, "True"),
        ("dropout", None, "None"),
        ("teacher", None, "None"),
        ("epochs", False, "False"),
        ("lengths", 16, "16"),
        ("lengths", "16", "'16'"),
        ("lengths", (16, "32"), "'32'"),
    ],
)
def test_a_value_of_another_type_is_refused(name, value, shown):
    with pytest.raises(ConfigError) as caught:
        Config(**{name: value})
    assert caught.value.option == name and f"got {shown}" in caught.value.problem

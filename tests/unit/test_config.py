"""Settings: the paper's register as presets, a file over them, and a sentence for every bad value."""

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
    with pytest.raises(ConfigError, match="preset: 'flickr' is unknown; there are default, mirflickr, coco, iapr"):
        Config.preset("flickr")


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
    ("content", "sentence"),
    [
        (None, r"run\.toml: not readable as TOML settings .*No such file"),
        (b"alpha = ", r"run\.toml: not readable as TOML settings .*end of document"),
        (b"alpha = 1\nalpha = 2\n", r"run\.toml: not readable as TOML settings"),
        (b"# \xff\n", r"run\.toml: not readable as TOML settings .*utf-8"),
        (b"alpa = 1\n", "unknown setting alpa; there are aligned, alignment, allocation, alpha"),
        (b"[train]\nepochs = 1\n", r"run\.toml: train: is a table; settings stand alone, as in: epochs = 30"),
        (b"[lengths]\n8 = 1\n", r"run\.toml: lengths: is a table"),
        (b"epochs = true\n", r"run\.toml: epochs: cannot read True as int"),
        (b"alpha = false\n", r"run\.toml: alpha: cannot read False as float"),
        (b"lengths = [8, true]\n", r"run\.toml: lengths: cannot read \[8, True\] as several numbers"),
        (b"lengths = [[8]]\n", r"run\.toml: lengths: cannot read \[\[8\]\] as several numbers"),
        (b"lengths = 8\n", r"run\.toml: lengths: cannot read 8 as several numbers"),
        (b"epochs = [1, 2]\n", r"run\.toml: epochs: cannot read \[1, 2\] as int"),
        (b"alpha = 2026-01-01\n", r"run\.toml: alpha: cannot read .*date.* as float"),
        (b"teacher = 3\n", r"run\.toml: teacher: cannot read 3 as str"),
        (b'alpha = "0.9"\n', r"run\.toml: alpha: is the text '0.9'; write it without quotes, as in: alpha = 0.9"),
        (b'lengths = "8,16"\n', r"run\.toml: lengths: is the text '8,16'; .* as in: lengths = \[16, 32\]"),
        (b'preset = ["coco"]\n', r"run\.toml: preset: .*coco.* is unknown"),
        (b'preset = "flickr"\n', "preset: 'flickr' is unknown"),
        (b'epochs = "many"\n', "epochs: is the text 'many'"),
        (b"alpha = -1\n", "alpha: must be a positive number, got -1.0"),
    ],
)
def test_a_bad_file_is_refused_with_a_sentence(tmp_path, content, sentence):
    path = tmp_path / "run.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=sentence):
        Config.load(path)


@pytest.mark.parametrize("line", ["alpa = 1", "alpha = -1", 'preset = "flickr"', 'epochs = "many"'])
def test_a_bad_value_in_a_file_names_the_file(tmp_path, line):
    (tmp_path / "run.toml").write_text(line)
    with pytest.raises(ConfigError) as caught:
        Config.load(tmp_path / "run.toml")
    assert "run.toml" in str(caught.value)


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
    with pytest.raises(ConfigError, match=r"unknown setting alpa, beta; there are aligned, .*temperature"):
        Config().override({"beta": 1, "alpa": 1})


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("alpha", "wide", "float"),
        ("alpha", None, "float"),
        ("alpha", [1], "float"),
        ("epochs", "2.5", "int"),
        ("epochs", 2.5, "int"),
        ("epochs", "", "int"),
        ("epochs", "nan", "int"),
        ("lengths", "8,x", "several numbers"),
        ("lengths", "8,,16", "several numbers"),
        ("lengths", "", "several numbers"),
        ("lengths", [8.5], "several numbers"),
        ("lengths", 8, "several numbers"),
    ],
)
def test_an_override_of_the_wrong_type_is_refused_with_a_sentence(name, value, kind):
    with pytest.raises(ConfigError, match=f"{name}: cannot read .* as {kind}"):
        Config().override({name: value})


@pytest.mark.parametrize(("name", "value"), [("epochs", "inf"), ("seed", math.inf), ("lengths", "16,inf")])
def test_an_infinite_whole_number_is_refused_with_a_sentence(name, value):
    with pytest.raises(ConfigError, match=f"{name}: cannot read"):
        Config().override({name: value})


def test_settings_survive_json():
    config = Config(alpha=1.25, lengths=(3, 9), scales=2, dropout=0.5, scale_weight=0)
    assert Config().override(json.loads(json.dumps(config.to_dict()))) == config


# Values

POSITIVE = ("alpha", "eta", "epsilon", "teacher_temperature", "student_temperature", "learning_rate")
COUNTS = ("scales", "hidden", "dimension", "epochs", "batch_size")


@pytest.mark.parametrize("name", POSITIVE)
@pytest.mark.parametrize("value", [0, -0.1, math.nan, math.inf])
def test_a_value_that_must_be_positive_is_refused(name, value):
    with pytest.raises(ConfigError, match=f"^{name}: must be a positive number, got {value}"):
        Config(**{name: value})


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("value", [0, -3])
def test_a_count_below_one_is_refused(name, value):
    with pytest.raises(ConfigError, match=f"^{name}: must be at least 1, got {value}"):
        Config(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"), [("scale_weight", -0.1), ("scale_weight", math.nan), ("scale_weight", math.inf), ("seed", -1)]
)
def test_a_value_below_zero_is_refused(name, value):
    with pytest.raises(ConfigError, match=f"^{name}: must be at least 0, got {value}"):
        Config(**{name: value})


@pytest.mark.parametrize("value", [-0.1, 1, 1.5, math.nan])
def test_a_dropout_outside_its_range_is_refused(value):
    with pytest.raises(ConfigError, match=rf"^dropout: must be in \[0, 1\), got {value}"):
        Config(dropout=value)


@pytest.mark.parametrize("lengths", [(), (0, 16), (-8, 16), (16, 16), (32, 16, 32)])
def test_lengths_that_are_none_not_positive_or_equal_are_refused(lengths):
    with pytest.raises(ConfigError, match=r"^lengths: need one or more different positive bit counts, got"):
        Config(lengths=lengths)


def test_a_code_shorter_than_its_scales_is_refused():
    assert Config(scales=4, lengths=(2, 4)).code_bits == 4
    with pytest.raises(ConfigError, match="the longest code has 3 bits, but each of the 4 scales needs at least one"):
        Config(scales=4, lengths=(2, 3))


@pytest.mark.parametrize("values", [{"scale_weight": 0}, {"dropout": 0}, {"seed": 0}, {"epochs": 1}, {"alpha": 1e-9}])
def test_values_at_the_edge_are_taken(values):
    assert dataclasses.asdict(Config(**values)).items() >= values.items()


@pytest.mark.parametrize("values", [{"lengths": (16.5,)}, {"epochs": 1.5}, {"batch_size": 2.5}])
def test_a_fraction_where_a_whole_number_is_needed_is_refused(values):
    with pytest.raises(ConfigError):
        Config(**values)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"alpha": "1"}, "alpha: must be a number, got '1'"),
        ({"alpha": True}, "alpha: must be a number, got True"),
        ({"dropout": None}, "dropout: must be a number, got None"),
        ({"teacher": None}, "teacher: must be a text, got None"),
        ({"epochs": False}, "epochs: must be a whole number, got False"),
        ({"lengths": 16}, r"lengths: must be several whole numbers, such as \(16, 32\), got 16"),
        ({"lengths": "16"}, "lengths: must be several whole numbers"),
        ({"lengths": (16, "32")}, "lengths: must be a whole number, got '32'"),
    ],
)
def test_a_value_of_another_type_is_named(values, sentence):
    with pytest.raises(ConfigError, match=sentence):
        Config(**values)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('lengths = [16, "32"]', "lengths: is the text '32'; write it without quotes, as in: lengths = [16, 32]"),
        ("lengths = 16", "lengths: cannot read 16 as several numbers, such as [16, 32]"),
    ],
)
def test_lengths_in_a_file_are_a_list_of_numbers(line, sentence, tmp_path):
    (tmp_path / "a.toml").write_text(line)
    with pytest.raises(ConfigError) as caught:
        Config.load(tmp_path / "a.toml")
    assert f"{tmp_path / 'a.toml'}: {sentence}" in str(caught.value)

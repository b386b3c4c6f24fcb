"""Labels made from texts, or from images by a joint encoder."""

import json

import numpy as np
import pytest
from PIL import Image

from multibit import PairedDataset
from multibit.data.labelling import label_from_texts
from multibit.errors import ConfigError, DataError, MismatchError
from multibit.features.recipe import EncoderRecipe
from multibit.features.zero_shot import label_zero_shot


def of_texts(*texts):
    return PairedDataset.of_items((str(row), None, [each] if isinstance(each, str) else each, []) for row, each in enumerate(texts))  # noqa: E501  # fmt: skip


def labels(data):
    return [data.label_names_of(row) for row in range(len(data))]


# From texts


def test_a_vocabulary_is_found_without_regard_to_case_and_plural():
    data = of_texts("Two DOGS and a bus", "buses near fire hydrants", ["a cat", "the dog"], "dogma", "")
    made = label_from_texts(data, ["dog", "Bus", "fire hydrant", "zebra"], plurals=True)
    assert made.label_names == ("Bus", "dog", "fire hydrant", "zebra")
    assert labels(made) == [["Bus", "dog"], ["Bus", "fire hydrant"], ["dog"], [], []]
    assert (made.ids, made.texts) == (data.ids, data.texts)


@pytest.mark.parametrize(
    ("names", "text", "found"),
    [
        (["dog"], "two dogs", []),
        (["very large blue parrot"], "a VERY  large\nblue parrot", ["very large blue parrot"]),
        (["C", "C++", "C#"], "c++ and c#, not c", ["C", "C#", "C++"]),
        ([".NET", "net"], "asp.net", [".NET", "net"]),
        (["cafe\u0301"], "a caf\u00e9", ["caf\u00e9"]),
        (["नमस्ते"], "वह नमस्ते बोला", ["नमस्ते"]),
        (["नम"], "नमस्ते", []),
        (["猫", "狗"], "一只猫", ["猫"]),
        (["Straße"], "STRASSE", ["Straße"]),
        (["man's hat", "man"], "a man’s hat", ["man", "man's hat"]),
    ],
)
def test_a_name_of_a_vocabulary_is_found_as_a_whole(names, text, found):
    assert labels(label_from_texts(of_texts(text, *names), names))[0] == found


@pytest.mark.parametrize("names", [["cat", "CAT"], ["caf\u00e9", "cafe\u0301"], ["cat", "++"], ["\u0301"]])
def test_names_that_collide_or_can_never_be_found_are_refused(names):
    with pytest.raises(ConfigError) as caught:
        label_from_texts(of_texts("a cat"), names)
    assert caught.value.option == "vocabulary" and repr(names[-1]) in caught.value.problem


def test_a_phrase_does_not_span_a_comma_or_a_function_word():
    data = of_texts("a fire, hydrant", "fire and hydrant", "fire hydrant")
    assert labels(label_from_texts(data, ["fire hydrant"])) == [[], [], ["fire hydrant"]]


def test_frequent_nouns_become_labels_and_other_words_do_not():
    texts = ["a small dog sitting on the grass", "the dog runs", "a red car parked on grass", "the car", "a red house"]
    made = label_from_texts(of_texts(*texts, "x y"), max_share=1)
    assert made.label_names == ("car", "dog", "grass")
    assert labels(made) == [["dog", "grass"], ["dog"], ["car", "grass"], ["car"], [], []]


def test_stop_words_and_verbs_are_no_labels_but_nouns_among_them_are():
    texts = ["it's a dog used to sit", "it's used, they make it", "the dog sits, they sit sitting", "a sitting dog"]
    rooms = ["the room they make", "a room", "dogs sitting in the rooms, sitting"]
    assert label_from_texts(of_texts(*texts, *rooms, *"xyzuvw"), max_share=1).label_names == ("dog", "room")


def test_plurals_and_possessives_count_as_their_singular():
    data = of_texts(
        "the dog's boxes", "a dog", "two cities", "wolves", "a box", "the city", "a wolf", "glass", "grass", "x"
    )
    assert label_from_texts(data, max_share=1).label_names == ("box", "city", "dog", "wolf")


def test_each_tag_of_a_list_may_be_a_label():
    lists = ["blue sky sea nikon sun", "sea blue sun rain nikon", "nikon rain blue sea sky"]
    assert "blue" in label_from_texts(of_texts(*lists, "x"), max_share=1).label_names


def test_words_that_mostly_occur_together_are_one_label():
    made = label_from_texts(of_texts("a fire hydrant", "the fire hydrant", "two fire hydrants", "a dog", "a dog"))
    assert made.label_names == ("dog",)  # fire hydrant: in more than half of the items
    assert label_from_texts(of_texts("a fire hydrant", "a fire hydrant", "a dog", "a dog")).label_names == (
        "dog", "fire hydrant",
    )  # fmt: skip


def test_shares_and_count_bound_the_vocabulary():
    data = of_texts(*["the cat"] * 6, *["the dog"] * 3, *["the cow"] * 1)
    assert label_from_texts(data, max_share=1).label_names == ("cat", "dog")  # one item is never enough
    assert label_from_texts(data, max_share=0.5).label_names == ("dog",)
    assert label_from_texts(data, min_share=0.4, max_share=1).label_names == ("cat",)
    assert label_from_texts(data, max_share=1, count=1).label_names == ("cat",)


def test_other_scripts_are_words_too():
    assert label_from_texts(of_texts("Собака", "собака", "кот", "кот", "café", "café", "x")).label_names == (
        "café", "кот", "собака",
    )  # fmt: skip


def test_texts_without_any_label_are_refused():
    for texts, vocabulary in ((["a cat"], ["dog"]), (["of the", "one"], None)):
        with pytest.raises(DataError) as caught:
            label_from_texts(of_texts(*texts), vocabulary)
        assert caught.value.field == "texts"


def test_data_without_texts_and_an_empty_vocabulary_are_distinguished():
    with pytest.raises(DataError) as caught:
        label_from_texts(of_texts("", " "))
    assert caught.value.field == "texts" and "2 items" in caught.value.problem
    assert "`label_zero_shot`" in caught.value.hint
    with pytest.raises(ConfigError) as caught:
        label_from_texts(of_texts("a dog"), [])
    assert caught.value.option == "vocabulary"


@pytest.mark.parametrize("bounds", [{"min_share": 0.6}, {"min_share": -1}, {"max_share": 1.5}, {"count": 0}])
def test_bounds_out_of_range_are_refused(bounds):
    with pytest.raises(ConfigError) as caught:
        label_from_texts(of_texts("a cat"), **bounds)
    ((option, value),) = bounds.items()
    assert caught.value.option == option and str(value) in caught.value.problem


@pytest.mark.slow
def test_labels_of_real_captions_agree_with_annotations(shared_data):
    """Captions name many of the annotated objects of COCO: a label made from them is mostly right."""
    lines = (shared_data / "coco/coco_val2017_pairs.jsonl").read_text(encoding="utf-8").splitlines()
    pairs = [json.loads(line) for line in lines]
    names = np.load(shared_data / "coco/coco2014_labels_122218.npz")["label_names"].tolist()
    data = PairedDataset.of_items((str(pair["id"]), None, pair["captions"], []) for pair in pairs)
    truth = np.zeros((len(pairs), 80), bool)
    for row, pair in enumerate(pairs):
        truth[row, pair["labels"]] = True
    made = label_from_texts(data, names)
    columns = [made.label_names.index(name) for name in names]
    found = made.labels[:, columns].astype(bool)
    assert (found & truth).sum() / found.sum() > 0.8
    free = label_from_texts(data)
    assert len(free.label_names) == 100 and (free.labels.sum(axis=1) > 0).mean() > 0.98
    assert {"dog", "pizza", "train", "living room"} <= set(free.label_names)


# Zero-shot


SPACE = {"red": (1, 0, 0), "green": (0, 1, 0), "blue": (0, 0, 1), "yellow": (1, 1, 0)}


class Colours:
    """A joint encoder: the mean colour of an image, the colour that a text names."""

    batch_size = 2

    def __init__(self, dimension=3):
        self.recipe = EncoderRecipe("colours", "", dimension, "mean")
        self.asked = []

    def prepare(self, image):
        return np.asarray(image)

    def encode(self, items):
        if isinstance(items[0], str):
            self.asked += items
            return np.array([SPACE[text.split()[-1]] for text in items], np.float32)
        return np.array([item.mean(axis=(0, 1)) for item in items], np.float32)


@pytest.fixture
def painted(tmp_path):
    paths = []
    for name in ("red", "yellow", "black", "blue"):
        Image.new("RGB", (8, 8), name).save(tmp_path / f"{name}.png")
        paths.append(tmp_path / f"{name}.png")
    paths += [tmp_path / "missing.png", None]
    return PairedDataset.of_items((str(row), path, ["x"], []) for row, path in enumerate(paths))


def test_a_joint_encoder_labels_images(painted):
    encoder = Colours()
    made = label_zero_shot(painted, ["red", "green", "yellow", "blue"], encoder, encoder)
    assert made.label_names == ("blue", "green", "red", "yellow")
    assert labels(made) == [["red"], ["yellow"], ["blue", "green", "red", "yellow"], ["blue"], [], []]
    assert encoder.asked == [f"a photo of a {name}" for name in ("red", "green", "yellow", "blue")]


def test_a_higher_temperature_gives_several_labels(painted):
    encoder = Colours()
    made = label_zero_shot(painted, ["red", "green", "blue"], encoder, encoder, temperature=1.0, prompt="{}")
    assert labels(made)[1] == ["green", "red"] and encoder.asked == ["red", "green", "blue"]


def test_invalid_names_template_and_encoders_are_refused(painted):
    encoder = Colours()
    with pytest.raises(ConfigError):
        label_zero_shot(painted, [], encoder, encoder)
    with pytest.raises(ConfigError):
        label_zero_shot(painted, ["red"], encoder, encoder, prompt="a photo")
    with pytest.raises(MismatchError) as caught:
        label_zero_shot(painted, ["red"], encoder, Colours(5))
    assert "3 and 5" in caught.value.problem


@pytest.mark.parametrize(
    ("texts", "bounds", "named"),
    [
        (["a dog", "the dog", "a dog"], {"max_share": 0.5}, {"max_share"}),
        (["a dog", "the dog", "a cat", "a bus", "an owl"], {"min_share": 0.5}, {"min_share"}),
        (["a dog", "a cat", "a bus"], {}, set()),
    ],
)
def test_without_a_label_the_share_that_excludes_the_words_is_named(texts, bounds, named):
    with pytest.raises(DataError) as caught:
        label_from_texts(of_texts(*texts), **bounds)
    hint = caught.value.hint
    assert {name for name in ("max_share", "min_share") if f"`{name}`" in hint} == named and "`vocabulary`" in hint


@pytest.mark.parametrize(("bounds", "named"), [
    ({"max_share": 0.001}, "max_share"), ({"max_share": 1.5}, "max_share"), ({"max_share": -1}, "max_share"),
    ({"min_share": 0.9}, "min_share"), ({"min_share": -0.1}, "min_share"),
    ({"min_share": 0.4, "max_share": 0.2}, "min_share"), ({"min_share": 0.4, "max_share": 2}, "max_share"),
])  # fmt: skip
def test_the_share_that_was_given_is_named(bounds, named):
    with pytest.raises(ConfigError) as caught:
        label_from_texts(of_texts("a dog", "the dog"), **bounds)
    assert caught.value.option == named

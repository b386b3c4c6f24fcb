"""Arguments of another kind are named, with the call that makes the right one."""

from __future__ import annotations

import numpy as np
import pytest

from multibit import (
    CodedItems,
    Codes,
    EncoderRecipe,
    FeatureStore,
    ImageFunction,
    Index,
    Pairs,
    Run,
    Split,
    TextFunction,
    average_precision,
    build_indices,
    compare,
    encode_image,
    encode_store,
    encode_text,
    evaluate,
    evaluate_run,
    export_run,
    extract_features,
    find_duplicates,
    hamming_distances,
    label_from_texts,
    near_duplicates,
    open_features,
    open_run,
    precision_at,
    read_history,
    save_evaluations,
    train,
    write_dataset,
)
from multibit.data.sample import load_sample
from multibit.errors import ConfigError, DataError
from multibit.features.base import Prompted, count_truncated
from multibit.queries import encode_texts

CALLS = {
    "a path for a run, of a text": (lambda run, _: encode_text(str(run.folder), "a"), "run", "open_run"),
    "a path for a run, of an image": (lambda run, _: encode_image(run.folder, "x.png"), "run", "open_run"),
    "a path for a run, to evaluate": (lambda run, store: evaluate_run(run.folder, store), "run", "open_run"),
    "a path for a run, to index": (lambda run, store: build_indices(run.folder, store), "run", "open_run"),
    "a path for features, to evaluate": (lambda run, _: evaluate_run(run, "f.npz"), "store", "open_features"),
    "a path for features, to index": (lambda run, _: build_indices(run, "f.npz"), "store", "open_features"),
    "several texts for one": (lambda run, _: encode_text(run, ["a"]), "text", "encode_texts"),
    "nothing for a text": (lambda run, _: encode_text(run, None), "text", "encode_texts"),
    "one text for several": (lambda run, _: encode_texts(run, "abc"), "texts", "encode_text"),
    "pixels for a path": (lambda run, _: encode_image(run, np.zeros((3, 3))), "path", "encode_images"),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_argument_of_another_kind_is_named_with_the_call_that_makes_it(name, pictured, store):
    call, option, instead = CALLS[name]
    with pytest.raises(DataError) as caught:
        call(pictured, store)
    assert caught.value.option == option and instead in caught.value.hint


class Texts:
    recipe = EncoderRecipe("any", "", 3, "none")
    batch_size = 8


class Images(Texts):
    def prepare(self, image):
        return image


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (("folder", Images(), Texts()), "dataset"),
        ((None, "name", Texts()), "image_encoder"),
        ((None, Images(), "name"), "text_encoder"),
        ((None, Texts(), Images()), "image_encoder"),
    ],
)
def test_names_of_encoders_and_swapped_ones_are_refused(arguments, option, tmp_path):
    dataset, *encoders = arguments
    with pytest.raises(DataError) as caught:
        extract_features(dataset or load_sample().take([0, 1]), *encoders, tmp_path / "features")
    assert caught.value.option == option and not (tmp_path / "features").exists()


ONES = Codes.from_bits(np.ones((3, 20), np.uint8))
LABELS = np.eye(3, dtype=np.uint8)


def filled():
    index = Index()
    index.add(["a", "b", "c"], ONES)
    return index


def searched(query=ONES):
    return filled().search(query, k=1)


def two_widths(**widths):
    return CodedItems.binarize({name: np.ones((3, width)) - 0.5 for name, width in widths.items()}, LABELS)


NUMBERS = {
    "a page before the first item": (lambda: filled().page(-1, 5), DataError, "start"),
    "a page of fewer than no items": (lambda: filled().page(0, -5), DataError, "count"),
    "a page of half an item": (lambda: filled().page(0, 0.5), DataError, "count"),
    "the item before the first": (lambda: load_sample().describe(-1), DataError, "row"),
    "an item after the last": (lambda: load_sample().describe(10**6), DataError, "row"),
    "labels of the item before the first": (lambda: load_sample().label_names_of(-1), DataError, "row"),
    "real values as words": (lambda: Codes(np.ones((2, 3)), 32), DataError, "words"),
    "words of fewer bits": (lambda: Codes(ONES.words, 200), DataError, "words"),
    "words of more bits": (lambda: Codes(ONES.words, 8), DataError, "words"),
    "a list as words": (lambda: Codes([[1, 2]], 16), DataError, "words"),
    "no bits": (lambda: Codes(ONES.words[:0], 0), DataError, "bits"),
    "every second bit": (lambda: ONES.columns(slice(0, 20, 2)), DataError, "part"),
    "bits from the end": (lambda: ONES.columns(slice(20, 0, -1)), DataError, "part"),
    "bits before the first": (lambda: ONES.columns(slice(-30, None)), DataError, "part"),
    "a number for bits": (lambda: ONES.columns(3), DataError, "part"),
    "images alone": (lambda: two_widths(image=20), DataError, "relaxed"),
    "an array for both modalities": (lambda: CodedItems.binarize(np.ones((3, 4)), LABELS), DataError, "relaxed"),
    "a broken cutoff": (lambda: average_precision(ONES, ONES, LABELS, LABELS, at=2.5), ConfigError, "at"),
    "a cutoff of no rank": (lambda: average_precision(ONES, ONES, LABELS, LABELS, at=0), ConfigError, "at"),
    "a text for a cutoff": (lambda: precision_at(ONES, ONES, LABELS, LABELS, k="5"), ConfigError, "k"),
    "several cutoffs": (lambda: precision_at(ONES, ONES, LABELS, LABELS, k=[1, 5]), ConfigError, "k"),
    "hits of the query before the first": (lambda: searched().hits(-1), DataError, "query"),
    "hits of a query after the last": (lambda: searched().hits(99), DataError, "query"),
    "hits of no query": (lambda: searched(ONES.take([])).hits(), DataError, "query"),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_or_shape_that_has_no_meaning_is_refused(name):
    call, error, option = NUMBERS[name]
    with pytest.raises(error) as caught:
        call()
    assert caught.value.option == option


def test_codes_of_two_lengths_are_no_items():
    with pytest.raises(DataError, match=r"image codes of 20 bits, text codes of 10 bits"):
        two_widths(image=20, text=10)


def test_one_text_is_not_a_list_of_ids():
    with pytest.raises(DataError):
        filled().contains("abc")
    assert filled().contains(["abc", "a"]).tolist() == [False, True]


def test_bits_may_be_counted_from_the_end():
    codes = Codes.from_bits([[1, 0, 1, 1, 0]])
    assert codes.columns(slice(-3, None)) == codes.columns(slice(2, 5))
    assert codes.columns(slice(None, -1)) == codes.prefix(4)


@pytest.mark.parametrize("threads", [0, -5, 1.5, "2"])
@pytest.mark.parametrize("queries", [3, 0])
@pytest.mark.parametrize(
    "call",
    [
        lambda query, threads: hamming_distances(query, ONES, threads=threads),
        lambda query, threads: filled().search(query, threads=threads),
        lambda query, threads: average_precision(query, ONES, LABELS[: len(query)], LABELS, threads=threads),
        lambda query, threads: near_duplicates(query, 1, threads=threads),
    ],
    ids=["distances", "search", "metrics", "duplicates"],
)
def test_a_number_of_threads_below_one_is_refused(call, queries, threads):
    with pytest.raises(ConfigError) as caught:
        call(ONES.take(np.arange(queries)), threads)
    assert caught.value.option == "threads"


def evaluation(name="run"):
    return evaluate(coded(), coded(), [8, 16], training_labels=LABELS, name=name)


def coded():
    return two_widths(image=20, text=20)


RECIPE = EncoderRecipe("any", "", 3, "none")
PAIR = [[1.0, 0.0]], [[0.0, 1.0]], [0, 1], [[1]]
NONE = np.zeros((0, 2), np.float32), np.zeros((0, 2), np.float32), np.zeros(1, np.int64), np.zeros((0, 1), np.uint8)

KINDS = {
    "a text for names": (lambda p: compare(evaluation(), evaluation(), names="ab"), DataError, "names"),
    "names for evaluations": (lambda p: compare("a", "b"), DataError, "evaluations"),
    "one evaluation to save": (lambda p: save_evaluations(p / "e.json", evaluation()), DataError, "evaluations"),
    "no evaluation to save": (lambda p: save_evaluations(p / "e.json", []), DataError, "evaluations"),
    "names to save": (lambda p: save_evaluations(p / "e.json", ["a"]), DataError, "evaluations"),
    "one pair": (lambda p: train(Pairs(*PAIR)), DataError, "training"),
    "no pair": (lambda p: train(Pairs(*NONE)), DataError, "training"),
    "one length": (lambda p: evaluate(coded(), coded(), 8, training_labels=LABELS), DataError, "lengths"),
    "a text for lengths": (lambda p: evaluate(coded(), coded(), "8", training_labels=LABELS), DataError, "lengths"),
    "a broken number of items": (lambda p: Split.usual(40.0), ConfigError, "items"),
    "a broken number of queries": (
        lambda p: Split.draw(40, query=2.5, train=4, validation=1),
        ConfigError,
        "query",
    ),
    "a text for a dimension": (lambda p: EncoderRecipe("a", "b", "4", "c"), DataError, "dimension"),
    "no dimension": (lambda p: EncoderRecipe("a", "b", 0, "c"), DataError, "dimension"),
    "no function of images": (lambda p: ImageFunction(None, RECIPE), DataError, "function"),
    "no recipe of images": (lambda p: ImageFunction(len, "x"), DataError, "recipe"),
    "no image in a batch": (lambda p: ImageFunction(len, RECIPE, batch_size=0), DataError, "batch_size"),
    "no text in a batch": (lambda p: TextFunction(len, RECIPE, batch_size=0), DataError, "batch_size"),
    "no worker": (
        lambda p: extract_features(load_sample(), Images(), Texts(), p / "features", workers=0),
        ConfigError,
        "workers",
    ),
    "a class for an encoder": (
        lambda p: extract_features(load_sample(), Images, Texts(), p / "features"),
        DataError,
        "image_encoder",
    ),
    "a path for a run with features": (lambda p: open_features("run"), DataError, "run"),
    "a path for a run with a history": (lambda p: read_history("run"), DataError, "run"),
    "a path for a run to export": (lambda p: export_run("run", p / "portable"), DataError, "run"),
    "a path for an index": (lambda p: find_duplicates("index", 1), DataError, "index"),
    "codes for an index": (lambda p: find_duplicates(ONES, 1), DataError, "index"),
    "a path for codes": (lambda p: near_duplicates("run", 1), DataError, "codes"),
    "a name for a model": (lambda p: encode_store("x", "y"), DataError, "model"),
    "a name for data to label": (lambda p: label_from_texts("x"), DataError, "dataset"),
    "a name for data to write": (lambda p: write_dataset("x", p / "o.csv"), DataError, "dataset"),
    "nothing for a run": (lambda p: open_run(None), DataError, "folder"),
    "nothing for a run to load": (lambda p: Run.load(None), DataError, "folder"),
    "a number for an index": (lambda p: Index.open(3), DataError, "path"),
    "a list for features": (lambda p: FeatureStore.open(["features"]), DataError, "path"),
}


@pytest.mark.parametrize("name", KINDS)
def test_what_is_of_another_kind_is_refused_before_anything_is_written(name, tmp_path):
    call, error, option = KINDS[name]
    with pytest.raises(error) as caught:
        call(tmp_path)
    assert caught.value.option == option and not list(tmp_path.iterdir())


def test_a_seed_is_not_a_split_and_a_path_is_not_a_store(store, tmp_path):
    with pytest.raises(DataError) as caught:
        Run.create(tmp_path / "run", store, split=42)
    assert caught.value.option == "split"
    with pytest.raises(DataError) as caught:
        Run.create(tmp_path / "run", "features", Split.usual(40))
    assert caught.value.option == "store" and not (tmp_path / "run").exists()


def test_lengths_are_read_once():
    measured = evaluate(coded(), coded(), (bits for bits in (8, 16)), training_labels=LABELS)
    assert measured == evaluation() and measured.lengths == (8, 16)


def test_lists_become_pairs():
    pairs = Pairs([[1.0, 0.0], [0.0, 1.0]], [[1.0], [0.5]], [0, 1, 2], [[1, 0], [0, 1]])
    assert pairs.offsets.dtype.kind == "i" and repr(pairs) == "Pairs(2 items, 2-d image, 1-d text, 2 labels)"


def test_an_encoder_of_texts_need_not_count_those_that_are_too_long():
    assert count_truncated(Texts(), ["a cat"]) == 0
    assert count_truncated(Prompted(Texts(), "a photo of {}"), ["a cat"]) == 0

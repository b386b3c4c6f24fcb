"""What every public value shows, takes and refuses: short texts, `str` and `Path`, and arguments of another kind."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import multibit
from multibit import (
    CodedItems,
    Codes,
    Config,
    EncoderRecipe,
    FeatureStore,
    HashModel,
    ImageFunction,
    Index,
    Metric,
    PairedDataset,
    Pairs,
    PortableModel,
    RelationTeacher,
    Run,
    Split,
    TextFunction,
    compare,
    encode,
    evaluate,
    mean_average_precision,
    precision_recall,
    train,
)
from multibit.errors import DataError, MismatchError
from multibit.features import Recipe

ITEMS = 3_000
LIMIT = 200


@pytest.fixture(scope="module")
def values(tmp_path_factory):
    """A big value of every public class, and what public functions return."""
    rng = np.random.default_rng(0)
    labels = np.eye(40, dtype=np.uint8)[np.arange(ITEMS) % 40]
    names = tuple(f"a label with a long name, number {i}" for i in range(40))
    ids = tuple(f"item-{i}" * 5 for i in range(ITEMS))
    data = PairedDataset(ids, (None,) * ITEMS, (("a text " * 50,),) * ITEMS, labels, names)
    image, text = (rng.normal(size=(ITEMS, size)).astype(np.float32) for size in (24, 16))
    recipe = EncoderRecipe("owner/model" * 30, "0" * 16, 24, "resize and crop " * 20, {"torch": "2" * 200})
    store = FeatureStore(data, image, text, np.arange(ITEMS + 1), Recipe(recipe, EncoderRecipe("words", "", 16, "")))
    split = Split.usual(ITEMS)
    small = {"epochs": 1, "hidden": 8, "dimension": 8, "lengths": (8, 16)}
    training = train(store.take(split.train[:200]), None, **small)
    query, database = (encode(training.model, store.take(rows)) for rows in (split.query[:50], split.database))
    labelled = {"training_labels": labels, "name": "run" * 100}
    evaluation = evaluate(query, database, tuple(range(1, 17)), **labelled)
    index = Index()
    index.add(list(ids[: len(database)]), database.image, [{"text": "a text " * 50}] * len(database))
    run = Run.create(str(tmp_path_factory.mktemp("runs") / "run"), store, split, **small)
    return [
        data, split, recipe, store.recipe, store, store.take(split.train), training, training.state, training.model,
        Config(epochs=3), RelationTeacher.fit(labels), query, query.image, evaluation, compare(evaluation, evaluation),
        index, index.search(query.text), run, run.record, multibit.METHODS, multibit.METHODS["dech"], Metric("mAP"),
        precision_recall(query.image, database.text, query.labels, database.labels),
        ImageFunction(len, recipe), TextFunction(len, recipe),
        PortableModel(run.folder, run.record.model, "multibit", run.model.layout, run.lengths, run.recipe, {}),
    ]  # fmt: skip


@pytest.mark.slow
def test_every_value_has_a_short_text(values):
    for value in values:
        assert len(repr(value)) < LIMIT and "\n" not in repr(value), type(value)
    made = {type(value).__name__ for value in values}
    classes = {name for name in multibit.__all__ if inspect.isclass(getattr(multibit, name))}
    errors = {name for name in classes if issubclass(getattr(multibit, name), Exception)}
    assert classes - errors == classes & made


@pytest.mark.slow
def test_notebooks_show_tables(values):
    shown = {type(value).__name__: value._repr_html_() for value in values if hasattr(value, "_repr_html_")}
    assert {"Evaluation", "Comparison", "SearchResult"} <= shown.keys()
    for html in shown.values():
        assert html.startswith("<table>") and html.count("<tr>") == html.count("</tr>") > 1


def test_every_public_path_may_be_a_text():
    paths = []
    for name in multibit.__all__:
        public = getattr(multibit, name)
        members = [public] if not inspect.isclass(public) else [m for _, m in inspect.getmembers(public, callable)]
        for each in members:
            if not (getattr(each, "__module__", "") or "").startswith("multibit"):
                continue
            annotations = getattr(each, "__annotations__", {})
            paths += [
                (name, each.__name__, parameter, given)
                for parameter, given in annotations.items()
                if parameter != "return" and "Path" in str(given) and not each.__name__.startswith("_")
            ]
    assert len(paths) > 10
    assert [each[:3] for each in paths if "str" not in str(each[3])] == []


@pytest.mark.parametrize(
    ("call", "option", "named"),
    [
        (lambda store, split, codes: train(store, split), "training", "store.take"),
        (lambda store, split, codes: train(store.take(split.train), split), "validation", "store.take"),
        (lambda store, split, codes: encode(None, store.take([0])), "model", "run"),
        (lambda store, split, codes: mean_average_precision(np.eye(2), codes, [[1]], [[1]]), "codes", "Codes.binarize"),
        (lambda store, split, codes: evaluate(codes, codes, (2,), training_labels=[[1]]), "query", "CodedItems"),
        (lambda store, split, codes: CodedItems(np.eye(2), codes, [[1]]), "image", "Codes.binarize"),
        (lambda store, split, codes: Index().search(np.eye(2)), "codes", "Codes.binarize"),
        (lambda store, split, codes: Index().add(["a", "b"], np.eye(2)), "codes", "Codes.binarize"),
    ],
)
def test_an_argument_of_another_kind_says_what_is_needed(call, option, named):
    data = PairedDataset(("a", "b"), (None, None), (("x",), ("y",)), [[1], [1]], ("l",))
    store = FeatureStore(data, np.eye(2), np.eye(2), np.arange(3), Recipe.ready_made("mine", 2, 2))
    with pytest.raises(DataError) as caught:
        call(store, Split([0], [], [1], [0], None), Codes.from_bits([[1, 0]]))
    assert caught.value.option == option and named in caught.value.hint
    assert "need" in caught.value.problem and "got" in caught.value.problem


def test_a_text_is_not_encoded_as_pairs():
    model = HashModel(2, 2, blocks=(8,), hidden=4, dimension=4)
    with pytest.raises(DataError) as caught:
        encode(model, "a dog")
    assert caught.value.option == "pairs" and "encode_text" in caught.value.hint


# Codes and their model


def codes_of(model, seed=0):
    return Codes.binarize(np.random.default_rng(seed).normal(size=(5, 40)), model)


def test_codes_keep_the_fingerprint_of_their_model(tmp_path):
    codes = codes_of("a")
    parts = [codes.take([1, 0]), codes.prefix(20), codes.columns(slice(3, 9)), Codes.concatenate([codes, codes])]
    codes.save(tmp_path / "codes")
    assert {part.model for part in (*parts, Codes.load(tmp_path / "codes"))} == {"a"}
    assert Codes.concatenate([codes, codes_of("")]).model == ""
    assert codes == codes_of("b")  # equal bits are equal codes
    with pytest.raises(MismatchError):
        Codes.concatenate([codes, codes_of("b")])


def test_an_index_refuses_codes_of_another_model_and_takes_unknown_ones():
    index = Index()
    index.add(list("abcde"), codes_of("a"))
    assert index.model == "a" and index.search(codes_of("a"), k=1).ids == index.search(codes_of(""), k=1).ids
    for change in (
        index.search,
        lambda codes: index.add(list("fghij"), codes),
        lambda codes: index.upsert(list("fghij"), codes),
    ):
        with pytest.raises(MismatchError) as caught:
            change(codes_of("b"))
        assert "model a" in caught.value.problem and "model b" in caught.value.problem
    assert len(index) == 5
    index.upsert(list("vwxyz"), codes_of(""))
    assert len(index) == 10 and index.model == "a"


def test_encoded_items_know_their_model():
    rng = np.random.default_rng(0)
    model = HashModel(3, 2, blocks=(8,), hidden=4, dimension=4)
    pairs = Pairs(rng.normal(size=(4, 3)), rng.normal(size=(4, 2)), np.arange(5), np.ones((4, 1)))
    items = encode(model, pairs)
    assert items.model == items.take([1]).text.model == model.fingerprint()

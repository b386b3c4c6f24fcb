"""The same letters in two Unicode forms: names, labels, filters and vocabularies are compared, ids are kept."""

import unicodedata

import pytest

from multibit.data.dataset import PairedDataset
from multibit.data.labelling import label_from_texts
from multibit.data.split_files import read_roles
from multibit.search.columns import IdColumn
from multibit.search.filters import passing, read_typed
from multibit.search.metadata import Metadata

FORMS = ("NFC", "NFD")
WORDS = ["café", "Ångström", "ngöö", "が", "한국", "कि", "ế", "شُكْر"]


def in_form(form, text):
    return unicodedata.normalize(form, text)


def occurs_in(data):
    return lambda where: passing(where, data, data.kinds).any()


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("stored", FORMS)
@pytest.mark.parametrize("typed", FORMS)
def test_a_filter_finds_a_value_in_any_form(word, stored, typed):
    items = [{"t": in_form(stored, word), "l": [in_form(stored, word), "x"]}, {"t": "other", "l": ["y"]}]
    data = Metadata.of(items, IdColumn(range(2)))
    for sign, wanted in (("=", [True, False]), ("!=", [False, True])):
        for name in "tl":
            condition = read_typed([f"{name}{sign}{in_form(typed, word)}"], occurs_in(data), data.kinds)
            assert passing(condition, data, data.kinds).tolist() == wanted


def test_a_filter_finds_values_that_are_stored_in_both_forms():
    data = Metadata.of([{"t": in_form(form, "café")} for form in FORMS], IdColumn(range(2)))
    for form in FORMS:
        for text, wanted in ((f"t={in_form(form, 'café')}", True), (f"not t={in_form(form, 'café')}", False)):
            assert passing(read_typed([text], occurs_in(data), data.kinds), data, data.kinds).tolist() == [wanted] * 2


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("form", FORMS)
def test_a_vocabulary_finds_words_of_all_scripts_in_any_form(word, form):
    other = FORMS[FORMS[0] == form]
    data = PairedDataset.of_items([("a", None, [f"1 {in_form(form, word)}, 2"], []), ("b", None, ["none"], [])])
    labelled = label_from_texts(data, [in_form(other, word)])
    assert labelled.label_names == (in_form("NFC", word),) and labelled.labels.tolist() == [[1], [0]]


@pytest.mark.parametrize("word", WORDS)
def test_labels_are_one_in_both_forms_and_ids_are_two(word):
    items = [(in_form(form, f"é{word}"), None, [""], [in_form(form, f"é{word}")]) for form in FORMS]
    data = PairedDataset.of_items(items)
    assert data.label_names == (in_form("NFC", f"é{word}"),)
    assert data.ids == tuple(in_form(form, f"é{word}") for form in FORMS)
    ids = IdColumn.of(list(data.ids))
    assert [int(row) for row in ids.find(list(data.ids))] == [0, 1]
    assert ids.take([0]).find([data.ids[1]]).tolist() == [-1]  # an id is found as it was written


def test_a_split_finds_file_names_in_the_other_form_but_prefers_the_exact_one(tmp_path):
    both = [in_form(form, "é") for form in FORMS]
    (tmp_path / "train.txt").write_text("\n".join(f"{each}.png" for each in both))
    (tmp_path / "query.txt").write_text("x")
    assert read_roles(tmp_path, [*both, "x"])["train"].tolist() == [0, 1]
    assert read_roles(tmp_path, [both[0], "x"])["train"].tolist() == [0, 0]

"""A run is measured on its own split, each item coded once."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest

from commands import Words
from conftest import ITEMS, NAMES, SMALL, plant, save_npz
from multibit import HashModel, Run, Split, measurement
from multibit.errors import MismatchError, MissingExtraError
from multibit.evaluation import cost
from multibit.evaluation.floors import ALL_RELEVANT
from multibit.evaluation.metric import MAP
from multibit.features import packaged
from multibit.features.recipe import EncoderRecipe
from multibit.hashing.encode import encode_store
from multibit.measurement import (
    assess_run,
    evaluate_run,
    label_name_relevance,
    measure,
    references_of,
)
from multibit.report.field import LAST, field_record, write_field_files


@pytest.mark.parametrize("field", ["image", "text", "labels", "ids", "label_names"])
def test_evaluation_refuses_other_data(field, finished, tmp_path):
    names = {"ids": [f"id {i}" for i in range(ITEMS)], "label_names": [f"theme {i}" for i in range(8)]}
    data = plant(ITEMS)
    if field in data:
        data[field][0] = 1 - data[field][0]
    changed = names[field] if field in names else data[field]
    other = save_npz(tmp_path / "other.npz", **{field: changed})
    with pytest.raises(MismatchError) as caught:
        evaluate_run(finished, other)
    assert (caught.value.file, caught.value.field) == (tmp_path / "other.npz", "data")
    assert str(finished.features) in caught.value.hint


def test_evaluation_accepts_the_same_data_at_another_path(finished, tmp_path):
    moved = save_npz(tmp_path / "moved.npz")
    assert [evaluation.queries for evaluation in evaluate_run(finished, moved)] == [16, 16]


def test_labels_that_make_every_item_relevant_are_told(split, tmp_path):
    store = save_npz(tmp_path / "one.npz", labels=np.ones((ITEMS, 1), np.uint8), label_names=["photo"])
    run = Run.create(tmp_path / "run", store, split, dataclasses.replace(SMALL, epochs=1))
    measured = measure(run, store)
    assert [each.mean("mAP", "t2i", 16) for each in measured.evaluations] == [1, 1]
    assert len(measured.notes) == 2 and all(note.startswith(ALL_RELEVANT) for note in measured.notes)


def test_usual_labels_are_no_reason_for_a_warning_about_the_order(finished, store):
    assert not any(ALL_RELEVANT in note for note in measure(finished, store).notes)


def slow_average_precision(query_bits, database_bits, query_labels, database_labels, at=None):
    values = []
    for bits, labels in zip(query_bits, query_labels, strict=True):
        order = np.argsort((bits != database_bits).sum(axis=1), kind="stable")
        relevant = (database_labels[order] & labels).any(axis=1)
        precision = np.cumsum(relevant) / np.arange(1, len(relevant) + 1)
        found = relevant[:at].sum() if at is None else min(at, relevant.sum())
        values.append((precision * relevant)[:at].sum() / found if relevant.any() else np.nan)
    return np.array(values)


def test_evaluation_measures_the_queries_against_both_databases(finished, store, split):
    evaluations = evaluate_run(finished, store, at=5)
    assert [evaluation.database for evaluation in evaluations] == [len(split.database), len(split.unseen)]
    for evaluation, rows in zip(evaluations, (split.database, split.unseen), strict=True):
        assert not np.isin(split.query, rows).any()
        query, database = store.take(split.query), store.take(rows)
        for direction, asked, searched in (("i2t", "image", "text"), ("t2i", "text", "image")):
            signs = [
                finished.model.encode(getattr(pairs, modality), modality) >= 0
                for pairs, modality in ((query, asked), (database, searched))
            ]
            for bits in SMALL.lengths:
                sides = signs[0][:, :bits], signs[1][:, :bits], query.labels, database.labels
                for metric, cut in ((MAP, None), (MAP.at(5), 5)):
                    np.testing.assert_allclose(
                        evaluation.values[metric, direction, bits], slow_average_precision(*sides, cut), atol=1e-12
                    )


def test_training_rows_are_left_out_of_the_second_protocol_only(finished, store):
    first, second = evaluate_run(finished, store)
    assert "training items in the database" in first.protocol and "kept out" in second.protocol


def test_a_database_of_training_rows_only_has_one_protocol(store, tmp_path):
    run = Run.create(tmp_path / "run", store, Split.draw(ITEMS, query=20, train=52, validation=8), SMALL)
    assert len(run.split.unseen) == 0
    assert [evaluation.database for evaluation in evaluate_run(run, store)] == [60]


# Each item is coded once


@pytest.fixture
def coded_rows(monkeypatch):
    """(fingerprint of the model, modality) -> number of rows of each call of `HashModel.encode`."""
    calls, encode = {}, HashModel.encode

    def counting(self, features, modality, tokens=None):
        calls.setdefault((self.fingerprint(), modality), []).append(len(features))
        return encode(self, features, modality, tokens)

    monkeypatch.setattr(HashModel, "encode", counting)
    return calls


def test_measuring_codes_each_query_and_database_item_once(finished, store, coded_rows):
    measured = measure(finished, store, at=5)
    rows = len(finished.split.query) + len(finished.split.database)
    model = finished.record.model
    assert {key: sum(calls) for key, calls in coded_rows.items()} == {(model, "image"): rows, (model, "text"): rows}
    assert (len(measured.query), len(measured.database)) == (16, 64)
    expected = encode_store(finished.model, store, finished.split.database)
    assert measured.database.image == expected.image and measured.database.text == expected.text
    assert measured.rankings[0].database is measured.database


def test_a_report_against_another_run_and_field_files_codes_each_item_once(
    finished, other_run, store, coded_rows, tmp_path, monkeypatch
):
    monkeypatch.setattr(measurement, "load_text_encoder", Words)
    monkeypatch.setattr(cost, "TIMED", 3)
    first, other = measure(finished, store, depth=LAST), measure(other_run, store)
    write_field_files(field_record(first, store), tmp_path)
    assessed = [assess_run(first, store), assess_run(other, store, first)]
    assert [each.evaluations[0].references for each in assessed] == [["IDF", "label names"]] * 2
    rows = len(finished.split.query) + len(finished.split.database)
    for run in (finished, other_run):
        for modality in ("image", "text"):
            calls = Counter(coded_rows[run.record.model, modality])
            assert calls.pop(1) == 4  # one to warm up and three that are timed, of a single item
            assert sum(size * count for size, count in calls.items()) == rows


# References


def test_the_references_of_ready_made_features_use_the_packaged_encoder(finished, store, monkeypatch):
    loaded = []
    monkeypatch.setattr(measurement, "load_text_encoder", lambda name: loaded.append(name) or Words())
    database = measure(finished, store).database
    references, notes = references_of(finished.recipe.text, NAMES, database)
    assert [each.name for each in references] == ["IDF", "label names"] and notes == []
    assert loaded == [measurement.DEFAULT_TEXT_ENCODER]
    assert [each.name for each in references_of(finished.recipe.text, ["label 0", "label 1"], database)[0]] == ["IDF"]


def test_a_missing_text_encoder_leaves_the_idf_reference_and_a_note(finished, store, monkeypatch):
    def missing(name):
        raise MissingExtraError("sentence_transformers", extra="offline", need="The packaged text encoder")

    monkeypatch.setattr(measurement, "load_text_encoder", missing)
    references, notes = references_of(finished.recipe.text, NAMES, measure(finished, store).database)
    assert [each.name for each in references] == ["IDF"]
    assert len(notes) == 1 and "multibit[offline]" in notes[0]


def test_label_names_are_encoded_by_the_source_of_the_recipe(monkeypatch):
    """The base name of a hub model, such as clip-vit-base-patch32, is not enough to load it."""
    loaded = []
    for name in ("owner/tiny", "tiny"):
        monkeypatch.setitem(packaged.TEXT_ENCODERS, name, lambda _, name=name: loaded.append(name) or Words())
    recipe = EncoderRecipe("tiny", "a1b2", 6, "words", source="owner/tiny")
    relevance = label_name_relevance(recipe, NAMES)
    assert loaded == ["owner/tiny"] and relevance.kernel.shape == (8, 8)
    label_name_relevance(dataclasses.replace(recipe, source=""), NAMES)
    assert loaded == ["owner/tiny", "tiny"]

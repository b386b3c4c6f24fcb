"""Errors: fields, rendering with the options of the command line, and pickling between processes."""

from __future__ import annotations

import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from multibit import errors
from multibit.errors import (
    BusyError,
    ConfigError,
    DataError,
    FormatError,
    MismatchError,
    MissingExtraError,
    MultibitError,
)

FLAGS = {"columns": "--map", "k": "-k"}
KINDS = [BusyError, ConfigError, DataError, FormatError, MismatchError, MultibitError]


def full(kind: type[MultibitError] = DataError) -> MultibitError:
    return kind("no column 'x'.", file="a.csv", row=3, field="labels", option="columns", hint="Map it: `columns`.")


def fields(error: MultibitError) -> dict:
    return {name: getattr(error, name) for name in ("problem", "file", "row", "field", "option", "hint")}


def test_an_error_keeps_its_fields():
    assert fields(full()) == {
        "problem": "no column 'x'.",
        "file": Path("a.csv"),
        "row": 3,
        "field": "labels",
        "option": "columns",
        "hint": "Map it: `columns`.",
    }


def test_fields_that_are_not_given_are_empty():
    assert fields(DataError("wrong.")) == {
        "problem": "wrong.",
        "file": None,
        "row": None,
        "field": "",
        "option": "",
        "hint": "",
    }


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({}, "wrong."),
        ({"file": "s3://bucket/items.csv"}, "s3://bucket/items.csv: wrong."),
        ({"file": Path("file:///items.csv")}, "file:///items.csv: wrong."),
        ({"file": "a.csv"}, "a.csv: wrong."),
        ({"row": 0}, "row 0: wrong."),
        ({"file": Path("a.csv"), "row": 2}, "a.csv, row 2: wrong."),
        ({"file": "a.csv", "field": "labels"}, "a.csv, labels: wrong."),
        ({"option": "k"}, "k: wrong."),
        ({"option": "k", "file": "a.csv", "row": 1, "field": "x"}, "k, a.csv, row 1, x: wrong."),
        ({"hint": "Try again."}, "wrong. Try again."),
    ],
)
def test_the_message_names_the_place_the_problem_and_the_hint(given, shown):
    assert str(DataError("wrong.", **given)) == shown


def test_python_shows_arguments_and_the_command_line_its_options():
    error = full()
    assert str(error) == error.render() == "columns, a.csv, row 3, labels: no column 'x'. Map it: `columns`."
    assert error.render(FLAGS.get) == "--map, a.csv, row 3, labels: no column 'x'. Map it: --map."


def test_an_argument_without_an_option_is_shown_unchanged():
    error = ConfigError("too many.", option="threads", hint="Lower `threads` or `k`.")
    assert error.render(FLAGS.get) == "threads: too many. Lower `threads` or -k."


def test_an_error_is_placed_within_a_file():
    error = DataError("wrong.", row=3)
    assert error.within("a.csv") is error
    assert error.file == Path("a.csv") and str(error) == "a.csv, row 3: wrong."


def test_the_file_that_an_error_names_already_is_kept():
    assert DataError("wrong.", file="inner.csv").within("outer.toml").file == Path("inner.csv")


@pytest.mark.parametrize("kind", KINDS)
def test_errors_are_pickled_with_their_fields(kind):
    error = full(kind)
    loaded = pickle.loads(pickle.dumps(error))
    assert type(loaded) is kind and fields(loaded) == fields(error) and str(loaded) == str(error)


def test_an_error_about_a_missing_library_is_pickled_with_its_fields():
    error = MissingExtraError("faiss", extra="faiss", need="The faiss engine")
    loaded = pickle.loads(pickle.dumps(error))
    assert (type(loaded), loaded.module, loaded.extra) == (MissingExtraError, "faiss", "faiss")
    assert str(loaded) == str(error) and fields(loaded) == fields(error)


def fail() -> None:
    raise full(ConfigError)


def test_an_error_of_another_process_arrives_with_its_fields():
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
        error = pool.submit(fail).exception()
    assert type(error) is ConfigError and fields(error) == fields(full(ConfigError))


@pytest.mark.parametrize(
    ("kind", "builtin"), [(DataError, ValueError), (ConfigError, ValueError), (MissingExtraError, ImportError)]
)
def test_errors_are_the_built_in_ones_too(kind, builtin):
    assert issubclass(kind, MultibitError) and issubclass(kind, builtin)


def test_every_error_has_the_common_base():
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert all(issubclass(kind, MultibitError) or issubclass(kind, UserWarning) for kind in kinds)

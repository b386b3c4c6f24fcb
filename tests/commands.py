"""Ways to run the command line in a test, quick settings, and encoders that need no time to load."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np

from multibit.cli import main
from multibit.features.recipe import EncoderRecipe

UPDATE = os.environ.get("MULTIBIT_UPDATE_GOLDEN") == "1"


def settings(**values):
    """Options that change settings; of repeated ones the last counts."""
    return [f"--set={name}={value}" for name, value in values.items()]


TINY = settings(epochs=1, lengths="8,16", scales=2, hidden=16, dimension=8)
"""Options of a training that takes no time."""


class Words:
    """Stands for the packaged text encoder, which is slow to load: a random vector for each text."""

    def __init__(self, name="words"):
        self.name = name

    def encode(self, texts):
        return np.stack([np.random.default_rng(list(text.encode())).normal(size=6) for text in texts])


class Letters:
    """Encodes the first bytes of a text or image; stands for both encoders."""

    batch_size = 4

    def __init__(self, dimension=16):
        self.recipe = EncoderRecipe("letters", "letters", dimension, "counts")

    def prepare(self, image):
        return np.asarray(image)

    def encode(self, items):
        size = self.recipe.dimension
        return np.stack([np.resize(np.frombuffer(bytes(str(item), "utf-8"), np.uint8) / 99.0, size) for item in items])

    def truncated(self, texts):
        return 0


class Distinct(Letters):
    """Passes for `Letters`, with a random vector for each text, so that different texts have different codes."""

    def encode(self, items):
        draws = [np.random.default_rng(list(bytes(str(item), "utf-8"))) for item in items]
        return np.stack([draw.normal(size=self.recipe.dimension) for draw in draws])


def cli(*arguments):
    """The program in this process, as its script runs it: exit code, standard output, standard error.

    A model for each length is trained in this process too: others take seconds to start, which `test_lengths.py` tests.
    """
    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        mock.patch.object(sys, "argv", ["multibit", *_last_settings(list(map(str, arguments)))]),
        mock.patch("multibit.hashing.train.train_in_processes"),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
    return SimpleNamespace(code=code, out=out.getvalue(), err=err.getvalue())


def _last_settings(arguments):
    """The arguments without settings that come again: tests change some of `TINY`, a user may give each only once."""
    joined = []
    for each in arguments:
        if joined and joined[-1] == "--set":
            joined[-1] = f"--set={each}"
        else:
            joined.append(each)
    names = [each.split("=")[1] if each.startswith("--set=") else None for each in joined]
    return [each for i, each in enumerate(joined) if names[i] is None or names[i] not in names[i + 1 :]]


def done(*arguments):
    """What a command that succeeds prints."""
    result = cli(*arguments)
    assert result.code == 0, result.err
    return result.out


def refused(*arguments):
    """The only error line of a command that exits with 1."""
    result = cli(*arguments)
    assert result.code == 1, (result.out, result.err)
    lines = result.err.strip().splitlines()
    assert [line.startswith("Error: ") for line in lines].count(True) == 1 and lines[-1].startswith("Error: "), lines
    return lines[-1]


def assert_names(said, *parts):
    """The error line names these files, options and numbers."""
    missing = [str(part) for part in parts if str(part) not in said]
    assert not missing, f"{said!r} does not name {missing}"


def masked(text, folder):
    """Without what differs from machine to machine."""
    text = text.replace(str(folder), "FOLDER")
    text = re.sub(r"\b[0-9a-f]{16}\b", "FINGERPRINT", text)
    return re.sub(r"(?m)^(versions: +).*$", r"\1VERSIONS", text)


def assert_golden(path: Path, text):
    """Compare with a stored text; MULTIBIT_UPDATE_GOLDEN=1 writes it instead."""
    text = "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
    if UPDATE:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.is_file(), f"{path} is missing; write it with MULTIBIT_UPDATE_GOLDEN=1 and read the result"
    assert text == path.read_text(encoding="utf-8")

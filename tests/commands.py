"""What the suites of the command line share: ways to run it, and a text encoder that needs no time to load."""

from __future__ import annotations

import contextlib
import io
import sys
from types import SimpleNamespace
from unittest import mock

import numpy as np
from typer.testing import CliRunner

from multibit.cli import app, main


class Words:
    """Stands for the packaged text encoder, which is slow to load."""

    def __init__(self, name):
        self.name = name

    def encode(self, texts):
        return np.random.default_rng(0).normal(size=(len(texts), 6))


def whole_program(*arguments):
    """The program in this process, as its script runs it: exit code, standard output, standard error."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        mock.patch.object(sys, "argv", ["multibit", *map(str, arguments)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
    return SimpleNamespace(code=code, out=out.getvalue(), err=err.getvalue())


def cli(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def done(*arguments):
    result = cli(*arguments)
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result.stdout


def refused(*arguments):
    """What is said on the error stream, without a traceback."""
    result = cli(*arguments)
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code == 1
    return result.stderr.splitlines()[-1]

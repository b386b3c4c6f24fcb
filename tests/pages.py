"""Markdown pages as tests: their fenced blocks run in order, as a reader would run them.

Python blocks of a page share their names. Shell blocks hold `multibit` commands, which run in this process, except
`multibit serve`, which stays up in a process of its own until the page ends, and `curl`, which calls it. A block that
cannot run here says so in its title, which readers see too: ```sh title="Not tested: needs Docker".
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

import pytest
import typer.main
from packaging.requirements import Requirement

from commands import done
from multibit.cli import app

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r'^```(?P<language>\w*)(?: title="(?P<title>[^"]*)")?\n(?P<text>.*?)^```$', re.MULTILINE | re.DOTALL)
RUN = ("python", "sh")
SHOWN = ("text", "json", "yaml")  # output and files
ADDRESS = "http://127.0.0.1:8080"  # of `multibit serve`


class Block(NamedTuple):
    """A fenced block: its language, title, text, and the number of its first line."""

    language: str
    title: str
    text: str
    line: int

    @property
    def is_tested(self) -> bool:
        return self.language in RUN and not self.title.startswith("Not tested: ")


def blocks(page: Path, *languages: str) -> list[Block]:
    """The blocks of a page, of some languages."""
    text = page.read_text(encoding="utf-8")
    found = [
        Block(each["language"], each["title"] or "", each["text"], text.count("\n", 0, each.start("text")) + 1)
        for each in FENCE.finditer(text)
    ]
    assert len(found) == len(re.findall(r"^```", text, re.MULTILINE)) / 2, f"{page}: a fence that cannot be read"
    return [each for each in found if not languages or each.language in languages]


def commands(script: str) -> list[list[str]]:
    """The words of each command of a script, without comments."""
    lines = script.replace("\\\n", " ").splitlines()
    return [words for words in (shlex.split(line, comments=True) for line in lines) if words]


def require_known_options(script: str) -> None:
    """Every `multibit` command of a script has a known verb and known options."""
    verbs = typer.main.get_command(app).commands
    for words in commands(script):
        for start in (at for at, word in enumerate(words) if word == "multibit" and words[at - 1 : at] in ([], ["&&"])):
            verb, *rest = words[start + 1 :]
            known = {option for parameter in verbs[verb].params for option in (*parameter.opts, "--help")}
            assert {word.partition("=")[0] for word in rest if word.startswith("-")} <= known, words


def run_block(page: Path, block: Block, names: dict[str, object]) -> None:
    """Run a Python block; a traceback names the line of the page."""
    exec(compile("\n" * (block.line - 1) + block.text, str(page), "exec"), names)


def run_page(page: Path) -> None:
    """Run the tested blocks of a page in the current folder."""
    with contextlib.ExitStack() as stack:
        reader = _Reader(stack)
        for block in blocks(page):
            assert block.language in (*RUN, *SHOWN), f"{page}:{block.line}: {block.language}"
            if block.is_tested and block.language == "python":
                run_block(page, block._replace(text=reader.located(block.text)), reader.names)
            elif block.is_tested:
                for words in commands(block.text):
                    reader.run(words)


class _Reader:
    """Runs commands one after the other."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self.names: dict[str, object] = {"__name__": "__main__"}
        self._stack, self._address = stack, ADDRESS

    def located(self, text: str) -> str:
        """With the address of the server: the port of the pages may be taken here."""
        return text.replace(ADDRESS, self._address)

    def run(self, words: list[str]) -> None:
        program, *rest = map(self.located, words)
        if program == "multibit" and rest[0] == "serve":
            self._address = self._stack.enter_context(serving(rest))
        elif program == "multibit":
            done(*rest)
        elif program == "curl":
            if shutil.which("curl") is None:
                pytest.skip("curl is not installed")
            subprocess.run(["curl", "--fail", *rest], check=True, capture_output=True)
        elif program == "pip":
            _require_extras(rest)
        elif program == "python":
            assert (ROOT / rest[0]).is_file(), rest[0]
        else:
            raise AssertionError(f"neither run nor marked: {shlex.join(words)}")


@contextlib.contextmanager
def serving(arguments: list[str], program: tuple[str, ...] = (), **environment: str) -> Iterator[str]:
    """The address of a server in a process of its own, once it answers queries.

    Args:
        arguments: "serve" and its own. program: that takes them; this `multibit` by default. environment: more of it.
    """
    program = program or (sys.executable, "-m", "multibit")
    variables = {**os.environ, "MULTIBIT_PORT": "0", **environment}
    with subprocess.Popen([*program, *arguments], stdout=subprocess.PIPE, text=True, env=variables) as process:
        try:
            said = process.stdout.readline() if process.stdout else ""
            port = re.search(r"http://\S+:(\d+)/", said)
            assert port, f"the server does not start: {said}"
            address = f"http://127.0.0.1:{port[1]}"
            while not _answers(f"{address}/readyz"):
                assert process.poll() is None
                time.sleep(0.05)
            yield address
        finally:
            process.terminate()


def _answers(address: str) -> bool:
    try:
        with urlopen(address) as answer:
            return bool(answer.status == 200)
    except OSError:  # no connection yet, or 503
        return False


def _require_extras(words: list[str]) -> None:
    """`pip install` names extras that exist."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for word in words[1:]:
        wanted = Requirement(word)
        assert wanted.name == project["name"] and wanted.extras <= set(project["optional-dependencies"]), word

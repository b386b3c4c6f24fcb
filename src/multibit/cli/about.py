"""The verb that describes files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from multibit.cli.options import echo


def info(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A dataset, feature store, run, index or codes file.")],
    deep: Annotated[bool, typer.Option("--deep", help="Of an index: first read and check all of it.")] = False,
) -> None:
    """Describe a file or folder."""
    from multibit.inventory import describe

    for name, value in describe(path, deep=deep).items():
        echo(f"{name + ':':<22}{value}")

"""What a file is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from multibit.cli.options import (
    stdout,
)


def info(path: Annotated[Path, typer.Argument(help="A data set, feature store, run, index or codes file.")]) -> None:
    """Say what a file or folder is and what is in it."""
    from multibit.report.inventory import describe

    console = stdout()
    for name, value in describe(path).items():
        console.print(f"{name + ':':<22}{value}", markup=False, highlight=False, soft_wrap=True)

"""The one progress bar: what is being done, how far, how fast, how long still."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

console = Console(stderr=True, width=None if sys.stderr.isatty() else 120)
"""Where people are spoken to; results go to standard output."""


class _RateColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.1f} {task.fields['unit']}/s", style="cyan")


@contextlib.contextmanager
def progress(doing: str, total: int, unit: str, done: int = 0) -> Iterator[Callable[..., None]]:
    """Show a bar while the block runs.

    Args:
        doing: what is being done, for people.
        total: how many units there are.
        unit: name of one unit, for the rate.
        done: units that were finished before; they count, but not for the rate.

    Yields:
        `advance(count=1, note="")`: report finished units and, if wished, a short note beside the bar.

    Example:
        >>> with progress("Counting", total=3, unit="items") as advance:
        ...     for _ in range(3):
        ...         advance()
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        _RateColumn(),
        TimeElapsedColumn(),
        TextColumn("left", style="dim"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(doing, total=total, completed=done, unit=unit, note="")

        def advance(count: int = 1, note: str = "") -> None:
            bar.update(task, advance=count, note=note)

        yield advance

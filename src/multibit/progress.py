"""The progress bar and notices. Silent unless asked: the command line asks, a Python caller passes `progress=True`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Collection, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar

from multibit.errors import printable

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

T = TypeVar("T")
STEP = 256
"""Items of `tracked` between two updates of the bar, each of which costs as much as some items."""

_SHOWN: ContextVar[bool] = ContextVar("multibit_progress_shown", default=False)
_BARS: ContextVar[Progress | None] = ContextVar("multibit_progress_bars", default=None)


@contextlib.contextmanager
def showing(wanted: bool = True) -> Iterator[None]:
    """Show progress and notices on standard error while the block runs; False leaves it as it is.

    Example:
        >>> with showing():
        ...     is_shown()
        True
        >>> is_shown()
        False
    """
    token = _SHOWN.set(wanted or _SHOWN.get())
    try:
        yield
    finally:
        _SHOWN.reset(token)


def is_shown() -> bool:
    """Whether progress and notices are shown."""
    return _SHOWN.get()


@contextlib.contextmanager
def track(doing: str, total: int, unit: str, done: int = 0) -> Iterator[Callable[..., None]]:
    """Track long work: a bar with count, rate, elapsed and remaining time while the block runs, if it is shown.

    Inside another tracked block the bar is a second line, which is removed at its end.

    Args:
        doing: human-readable name of the work. total: number of units. unit: name of one, for the rate.
        done: units finished earlier; they count for the total, but not for the rate.

    Yields:
        `advance(count=1, note="")`: report finished units and a short note that is shown next to the bar.

    Example:
        >>> with track("Counting", total=3, unit="items") as advance:
        ...     for _ in range(3):
        ...         advance()
    """
    if not is_shown():
        yield lambda count=1, note="": None
        return
    if (outer := _BARS.get()) is not None:
        task = outer.add_task(printable(doing), total=total, completed=done, note="", unit=unit)
        try:
            yield _advancing(outer, task)
        finally:
            outer.remove_task(task)
        return
    with _bars() as bars:
        token = _BARS.set(bars)
        try:
            yield _advancing(bars, bars.add_task(printable(doing), total=total, completed=done, note="", unit=unit))
        finally:
            _BARS.reset(token)


def tracked(items: Collection[T], doing: str, unit: str) -> Iterator[T]:
    """The items, tracked while they are used one by one; the arguments are those of `track`.

    Example:
        >>> list(tracked("abc", "Counting", "letters"))
        ['a', 'b', 'c']
    """
    with track(doing, len(items), unit) as advance:
        for number, item in enumerate(items, start=1):
            yield item
            if number % STEP == 0 or number == len(items):
                advance(number % STEP or STEP)


def _advancing(bars: Progress, task: TaskID) -> Callable[..., None]:
    """The function that reports finished units of a bar."""

    def advance(count: int = 1, note: str = "") -> None:
        bars.update(task, advance=count, note=printable(note))

    return advance


def _bars() -> Progress:
    """Bars on standard error."""
    from rich.console import Console  # slow to import
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

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{speed:,.1f} {task.fields['unit']}/s", style="cyan")

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        Rate(),
        TimeElapsedColumn(),
        TextColumn("left", style="dim"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    console = Console(stderr=True, width=None if sys.stderr.isatty() else 120)
    return Progress(*columns, console=console)


@contextlib.contextmanager
def notice(text: str) -> Iterator[None]:
    """Say why nothing seems to happen while the block runs, if progress is shown."""
    if not is_shown():
        yield
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status(Text(printable(text))):
        yield

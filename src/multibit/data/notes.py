"""Notes: remarks about a source that was read, such as items that were left out."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path


class DataNote(UserWarning):
    """A remark about a source that was read, such as items that were left out."""


def note(message: str) -> None:
    """Issue a `DataNote`."""
    warnings.warn(_encodable(message), DataNote, stacklevel=3)


def note_left_out(source: Path, what: str, names: Sequence[Path | str]) -> None:
    """Issue a `DataNote` that counts what was left out of a source, if anything was."""
    if names:
        message = f"{source}: left out {what} ({len(names):,}), such as {names[0]}."
        warnings.warn(_encodable(message), DataNote, stacklevel=3)


def note_other_kinds(source: Path, counts: Mapping[str, int]) -> None:
    """Count files of other kinds that were left out of a source, by their suffix; nothing if there are none."""
    if counts:
        listed = ", ".join(f"{suffix} ({count:,})" for suffix, count in sorted(counts.items()))
        warnings.warn(_encodable(f"{source}: files of other kinds left out: {listed}."), DataNote, stacklevel=3)


def _encodable(message: str) -> str:
    r"""The message with bytes of file names that are not UTF-8 as \udce9 and the like."""
    return message.encode(errors="backslashreplace").decode()

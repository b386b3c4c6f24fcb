"""The journal of a folder of indices: a change of several indices that was decided, and may not be carried out yet.

Each index has one commit point, the rename of its manifest. A change of several is prepared in all of them; then the
journal, written in one step, decides it; then the manifests are renamed. A writer that is killed before the decision
has changed nothing; after it, the next writer, or server, finishes the renames.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from multibit.files import read_json, typed, write_json
from multibit.paths import flush, remove_left_over

JOURNAL, KIND, VERSION = "changes.json", "index changes", 1
MANIFEST = "manifest.json"


class _Journal(msgspec.Struct):
    """Name of an index -> the file in it that becomes its manifest."""

    manifests: dict[
        Annotated[str, msgspec.Meta(pattern=r"^[^/\\]+$")],
        Annotated[str, msgspec.Meta(pattern=r"^manifest-[0-9a-f]+\.mbs$")],
    ]


def decide(folder: Path, manifests: Mapping[str, str]) -> None:
    """Decide a change: name of an index -> its prepared manifest. The caller is the only writer of all of them."""
    remove_left_over(folder, JOURNAL)
    write_json(folder / JOURNAL, {"manifests": dict(manifests)}, kind=KIND, version=VERSION)


def pending(folder: Path) -> dict[str, str]:
    """The last decision, carried out or not; empty without one.

    Raises:
        FormatError: corrupt or newer.
    """
    path = folder / JOURNAL
    if not path.exists():
        return {}
    return typed(read_json(path, kind=KIND, version=VERSION), _Journal, path).manifests


def carry_out(index: Path) -> None:
    """Do what was decided about an index, unless that is done; the caller is its only writer."""
    prepared = pending(index.parent).get(index.name)
    if prepared is not None and (index / prepared).exists():
        (index / prepared).replace(index / MANIFEST)
        flush(index)


def forget(folder: Path) -> None:
    """Remove a journal that was carried out in all indices."""
    (folder / JOURNAL).unlink(missing_ok=True)

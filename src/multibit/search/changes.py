"""Changes of an index: each makes a new version from a version and some items; an error makes none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multibit.arrays import Rows
from multibit.codes import Codes
from multibit.errors import DataError
from multibit.search.columns import Id, IdColumn, Wanted, require_list, require_same_kind, unknown_id
from multibit.search.kinds import merge_kinds
from multibit.search.metadata import Metadata
from multibit.search.segments import Part, Segment, Version


def added(version: Version, ids: Any, codes: Codes, payloads: Any) -> Version:
    """Append items with new ids; see `Index.add`."""
    column = IdColumn.of(_numbered(version, len(codes)) if ids is None else ids)
    segment = segment_of(version, column, codes, payloads)
    for part in version.parts:
        known = np.flatnonzero(part.find(column) >= 0)
        if len(known):
            raise DataError(f"{column[int(known[0])]!r} is already in the index.", field="ids")
    return _appended(version, version.parts, segment)


def upserted(version: Version, ids: Any, codes: Codes, payloads: Any) -> Version:
    """Append items, and remove those that have their ids; see `Index.upsert`."""
    column = IdColumn.of(ids)
    segment = segment_of(version, column, codes, payloads)
    parts = []
    for part in version.parts:
        rows = part.find(column)
        parts.append(part.without(rows[rows >= 0]))
    return _appended(version, parts, segment)


def removed(version: Version, ids: Any) -> Version:
    """Remove items; see `Index.remove`."""
    parts = [part.without(rows) for part, rows in zip(version.parts, rows_of(version, ids), strict=True)]
    return Version(tuple(parts), version.kinds).settled()


def joined(versions: Sequence[Version], names: Sequence[str]) -> Version:
    """Concatenate versions; see `Index.merge`.

    Args:
        versions: of one model. names: of each, for errors.

    Raises:
        DataError: an id in two of them, codes of different lengths or views, or a field of two kinds.
    """
    whole = Version()
    for number, (version, name) in enumerate(zip(versions, names, strict=True)):
        try:
            if version.parts and whole.parts:
                require_same_codes(whole, version.parts[0].segment.codes)
                _require_other_ids(versions[:number], names, version.ids)
                _require_same_ids(whole, version.ids)
            whole = Version((*whole.parts, *version.parts), merge_kinds(whole.kinds, version.kinds))
        except DataError as error:
            raise DataError(error.problem, field=name) from None
    return whole.settled()


def rows_of(version: Version, ids: Any) -> list[Rows]:
    """Rows of some ids, of each part.

    Raises:
        DataError: an id is unknown.
    """
    found = _found(version, ids)
    return [rows[rows >= 0] for rows in found]


def codes_of(version: Version, ids: Any) -> Codes:
    """The codes of some items, in the order given; see `Index.codes_of`."""
    found = _found(version, ids)
    if not version.parts:
        raise DataError("the index is empty.")
    first = version.parts[0].segment.codes
    words = np.empty((len(first.words), len(ids), first.views), np.uint16)
    for part, rows in zip(version.parts, found, strict=True):
        here = np.flatnonzero(rows >= 0)
        taken = part.segment.codes.take(rows[here])
        words[:, here] = taken.words.reshape(len(words), len(here), first.views)
    return Codes(words.reshape(len(words), -1), first.bits, first.views)


def contained(version: Version, ids: Sequence[Id]) -> NDArray[np.bool_]:
    """(n,) whether each of n ids is in a version; see `Index.contains`."""
    require_list(ids)
    wanted = Wanted.of(ids)
    found = np.zeros(len(wanted), bool)
    for part in version.parts:
        found |= part.find(wanted) >= 0
    return found


def _found(version: Version, ids: Any) -> list[Rows]:
    """(n,) row of each of n ids in each part, -1 where it is in another one."""
    require_list(ids)
    wanted = ids if isinstance(ids, IdColumn) else Wanted.of(ids)
    found = [part.find(wanted) for part in version.parts]
    best = np.max([np.full(len(wanted), -1), *found], axis=0)
    if best.min(initial=0) < 0:
        kind = version.parts[0].segment.ids.kind if version.parts else ""
        raise unknown_id(ids[int(best.argmin())], kind, len(version))
    return found


def require_bits(codes: Codes, bits: int) -> None:
    """Refuse codes of another length than an index has.

    Raises:
        DataError: names both.
    """
    if codes.bits != bits:
        raise DataError(f"have {codes.bits} bits, the index has {bits}.", field="codes")


def require_same_codes(version: Version, codes: Codes) -> None:
    """Refuse codes of another length, or with another number of views.

    Raises:
        DataError: names both.
    """
    first = version.parts[0].segment.codes if version.parts else codes
    require_bits(codes, first.bits)
    if codes.views != first.views:
        raise DataError(f"{codes.views} per item, the index has {first.views}.", field="codes")


def segment_of(version: Version, ids: IdColumn, codes: Codes, payloads: Any) -> Segment:
    """The new items, checked before anything is changed. Arguments and errors are those of `Index.add`."""
    given = len(ids) if payloads is None or isinstance(payloads, str | Path) else len(payloads)
    require_counts(ids, codes, given)
    require_same_codes(version, codes)
    _require_same_ids(version, ids)
    metadata = Metadata.of(payloads, ids, version.kinds)
    require_counts(ids, codes, len(metadata))
    return Segment(codes, ids, metadata)


def require_counts(ids: IdColumn, codes: Codes, payloads: int) -> None:
    """Refuse different numbers of ids, codes and payloads.

    Raises:
        DataError: names all three.
    """
    if not len(ids) == len(codes) == payloads:
        raise DataError(f"{len(ids)} ids, {len(codes)} codes, {payloads} payloads: the counts must be equal.")


def _require_same_ids(version: Version, ids: IdColumn) -> None:
    if version.parts:
        require_same_kind(ids, version.parts[0].segment.ids.kind)


def _require_other_ids(versions: Sequence[Version], names: Sequence[str], ids: IdColumn) -> None:
    """Refuse ids that one of some versions has."""
    for version, name in zip(versions, names, strict=False):
        for part in version.parts:
            known = np.flatnonzero(part.find(ids) >= 0)
            if len(known):
                shared = f"{ids[int(known[0])]!r} is in both"
                raise DataError(f"the ids do not fit those of {name}: {shared}.")


def _appended(version: Version, parts: Sequence[Part], segment: Segment) -> Version:
    more = (Part(segment),) if len(segment) else ()
    kinds = merge_kinds(version.kinds, segment.metadata.kinds)
    return replace(version, parts=(*parts, *more), kinds=kinds).settled()


def _numbered(version: Version, count: int) -> range:
    """The ids that continue the numbering."""
    columns = [part.segment.ids if part.alive is None else part.segment.ids.take(part.rows) for part in version.parts]
    first = max((column.next for column in columns), default=0)
    return range(first, first + count)

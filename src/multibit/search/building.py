"""An index whose items come in a stream: written segment by segment, in memory that does not grow with it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from multibit.codes import Codes
from multibit.codes.packing import require_codes
from multibit.errors import DataError, MismatchError, require_known
from multibit.search.changes import segment_of
from multibit.search.columns import IdColumn, require_distinct
from multibit.search.engines import ENGINES
from multibit.search.index import Index
from multibit.search.kinds import merge_kinds
from multibit.search.metadata import Metadata
from multibit.search.searching import require_views
from multibit.search.segments import LARGEST, Part, Segment, Version, merged
from multibit.search.storage import SegmentWriter, creating

BLOCK = 1 << 18  # items of an index that are read at a time


class IndexBuilder:
    """Takes the items of an index in blocks; `create_index` makes one, and has an example.

    Args:
        writer: of the segments. size: items of a segment, at least. fields: kinds of fields that are known before.
    """

    def __init__(self, writer: SegmentWriter, size: int, fields: Mapping[str, str]) -> None:
        self._writer, self._size = writer, size
        self._like = Version(kinds=dict(fields))  # the kinds of the fields, and one item like all others
        self._waiting: list[Segment] = []
        self._columns: list[IdColumn] = []  # ids of what is written
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, ids: Any, codes: Codes, payloads: Any = None) -> None:
        """Append a block of items. Arguments and errors are those of `Index.add`.

        An id that another block has is found at the end, and the index is refused as a whole.
        """
        require_codes(codes)
        require_views(self._writer.facts["engine"], codes)
        model = self._writer.facts["model"]
        if codes.model and codes.model != model:
            problem = f"codes of model {codes.model} for an index of model {model or 'unknown'}."
            raise MismatchError(problem, field="codes")
        column = IdColumn.of(range(self._count, self._count + len(codes)) if ids is None else ids)
        block = segment_of(self._like, column, codes, payloads)
        if not len(block):
            return
        one = np.zeros(1, np.int64)
        parts = self._like.parts or (Part(Segment(codes.take(one), column.take(one), Metadata(1))),)
        self._like = Version(parts, merge_kinds(self._like.kinds, block.metadata.kinds))
        self._waiting.append(block)
        self._count += len(block)
        if sum(map(len, self._waiting)) >= self._size:
            self._write()

    def _write(self) -> None:
        """Write what waits as one segment."""
        if self._waiting:
            segment = merged([Part(block) for block in self._waiting])
            self._waiting.clear()
            self._columns.append(self._writer.put(segment))

    def finish(self) -> None:
        """Write the rest and check the ids; `create_index` calls it.

        Raises:
            DataError: an id in two blocks, or no item.
        """
        self._write()
        if not self._columns:
            raise DataError("an empty index cannot be saved.")
        require_distinct(self._columns)
        self._writer.finish(self._like.parts[0].segment.codes, self._like.kinds)


@contextlib.contextmanager
def create_index(
    path: Path | str,
    *,
    model: str = "",
    engine: str = "exact",
    modality: str = "",
    fields: Mapping[str, str] | None = None,
    size: int = LARGEST,
) -> Iterator[IndexBuilder]:
    """Write an index of any size from blocks of items; it appears, or replaces the one that was there, at the end.

    Memory holds the items of one segment, whatever the number of items. An error inside changes nothing.

    Args:
        path: of the index. model, engine, modality: as for `Index`. fields: kinds of fields, where they are known
            before; others follow from the first block that has them. size: blocks are joined to segments of at least
            this many items.

    Raises:
        ConfigError: an unknown engine. DataError: no item, an id in two blocks, or another folder is there.
        BusyError: another process is writing this index.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "large.mbx"
        >>> with create_index(path) as builder:
        ...     builder.add(["a", "b"], Codes.from_bits([[1, 1], [1, 0]]), [{"year": 2001}, {}])
        ...     builder.add(["c"], Codes.from_bits([[0, 0]]))
        >>> Index.open(path).search(Codes.from_bits([[0, 0]]), k=2).ids
        [['c', 'b']]
    """
    require_known("engine", engine, ENGINES)
    with creating(Path(path), {"model": model, "engine": engine, "modality": modality}) as writer:
        builder = IndexBuilder(writer, size, fields or {})
        yield builder
        builder.finish()


def copy_index(index: Index, path: Path | str, fields: Sequence[str]) -> None:
    """Write the items of an index as a new one, in a stream as `create_index`.

    Args:
        index: to read. path: of the new index. fields: of the metadata that the new one has.

    Raises:
        ConfigError: no such field. DataError, BusyError: as `create_index`.

    Example:
        >>> import tempfile
        >>> path, index = Path(tempfile.mkdtemp()) / "copy.mbx", Index()
        >>> index.add(["a"], Codes.from_bits([[1, 1]]), [{"year": 2001, "image": "a.jpg"}])
        >>> copy_index(index, path, ["year"])
        >>> Index.open(path).page(0, 1)
        [('a', {'year': 2001})]
    """
    for name in fields:
        require_known("field", name, index.fields, option="fields")
    kinds = {name: index.fields[name] for name in fields}
    with create_index(
        path, model=index.model, engine=index.engine_name, modality=index.modality, fields=kinds
    ) as builder:
        for block in index.version.blocks(BLOCK):
            builder.add(block.ids, block.codes, block.metadata.only(fields))

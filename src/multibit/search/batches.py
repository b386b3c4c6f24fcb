"""Queries by the hundred thousand: read from Parquet in blocks of bounded memory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np
import pyarrow
import pyarrow.compute as pc
import pyarrow.parquet

from multibit.arrays import Rows
from multibit.codes import Codes, Modality
from multibit.config import MAX_BITS
from multibit.errors import DataError
from multibit.files import typed
from multibit.paths import require_regular
from multibit.search.kinds import Kind
from multibit.search.parquet import PARQUET_ERRORS, unreadable

BLOCK = 8192  # queries of a block
HITS = 1 << 20  # of a block
ID, CODE = "id", "code"  # columns of a Parquet file of codes, as `exchange.export_index` writes them
FACTS = b"multibit"  # key of what multibit tells about the codes in such a file
GIVEN = (CODE, "text", "image")  # columns that queries are read from, the first one that a file has


class Facts(msgspec.Struct):
    """What a Parquet file may say about the index that it was exported from."""

    bits: Annotated[int, msgspec.Meta(ge=1, le=MAX_BITS)] | None = None
    views: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 1
    model: str = ""
    modality: Literal["image", "text", ""] = ""
    engine: str = "exact"
    fields: dict[str, Kind] = {}


class Queries(NamedTuple):
    """A block of queries.

    Attributes:
        codes: Q codes. ids: (Q,) of the queries, as an Arrow array of strings or integers.
    """

    codes: Codes
    ids: Any


@dataclass(frozen=True, eq=False)
class QueryFile:
    """A Parquet file of queries.

    A query is a packed code (column `code`), a text (`text`), the path of an image (`image`), or, in a file with none
    of these, the id of a stored item (`id`). `id` names the queries; without it they are numbered from 0.

    Attributes:
        path: of the file. given: column of the queries. count: number of queries.
        facts: of the codes, where multibit wrote them: bits, views, model, modality.

    Example:
        >>> pyarrow.parquet.write_table(pyarrow.table({"id": [7, 9], "text": ["a cat", "a dog"]}), "queries.parquet")
        >>> queries = QueryFile.open("queries.parquet")
        >>> queries.given, queries.count
        ('text', 2)
    """

    path: Path
    given: str
    count: int
    facts: Facts

    @classmethod
    def open(cls, path: Path | str) -> QueryFile:
        """Read what the file holds.

        Raises:
            DataError: unreadable, no column of queries, two of one name, or ids that are neither strings nor integers.
        """
        source = Path(path)
        require_regular(source)
        try:
            with pyarrow.parquet.ParquetFile(source) as file:
                schema, names, count = file.schema_arrow, file.schema_arrow.names, file.metadata.num_rows
        except PARQUET_ERRORS as error:
            raise unreadable(source, error) from None
        columns = [name for name in names if name in (*GIVEN, ID)]
        if twice := next((name for name in columns if columns.count(name) > 1), None):
            raise DataError("two columns of this name; each must be unique.", file=source, field=twice)
        given = next((name for name in (*GIVEN, ID) if name in columns), None)
        if given is None:
            raise DataError(f"no column {', '.join(GIVEN)} or {ID}; found {', '.join(names)}.", file=source)
        if ID in names and not _is_id(schema.field(ID).type):
            problem = f"must be strings or integers, got Arrow {schema.field(ID).type}."
            raise DataError(problem, file=source, field=ID)
        if given in ("text", "image") and not _is_text(schema.field(given).type):
            raise DataError(f"must be strings, got Arrow {schema.field(given).type}.", file=source, field=given)
        return cls(source, given, count, read_facts(schema, source))

    def modality(self, named: Modality | None = None, otherwise: Modality | None = None) -> Modality:
        """Modality of the queries.

        Args:
            named: as the user says. otherwise: where neither the user nor the file says; "text" when None.

        Raises:
            DataError: the file has another one than the user says.
        """
        known: dict[str, Modality | None] = {"text": "text", "image": "image", CODE: self.facts.modality or None}
        of_file = known.get(self.given)
        if named and of_file and named != of_file:
            problem = f"the queries of {self.path} are of modality {of_file}, not {named}."
            raise DataError(problem, option="kind", hint="Leave it out.")
        return named or of_file or otherwise or "text"

    def blocks(self, size: int) -> Iterator[tuple[int, Any, Any]]:
        """Read the queries in blocks; a file without queries is one empty block.

        Args:
            size: largest number of queries of a block.

        Yields:
            First row, and the ids and the queries of a block as Arrow arrays.

        Raises:
            DataError: a null query or id, or corrupt.
        """
        with pyarrow.parquet.ParquetFile(self.path) as file:
            columns = [name for name in dict.fromkeys((ID, self.given)) if name in file.schema_arrow.names]
            first = 0
            nothing = iter([_no_rows(file.schema_arrow, columns)])
            batches = file.iter_batches(size, columns=columns) if self.count else nothing
            while (batch := self._next(batches)) is not None:
                for name in columns:
                    self._require_filled(_plain(batch.column(name)), name, first)
                rows = pyarrow.array(np.arange(first, first + len(batch)))
                yield first, _plain(batch.column(ID)) if ID in columns else rows, _plain(batch.column(self.given))
                first += len(batch)

    def _next(self, batches: Iterator[Any]) -> Any:
        try:
            batch = next(batches, None)
            if batch is not None:
                batch.validate(full=True)
            return batch
        except PARQUET_ERRORS as error:
            raise unreadable(self.path, error) from None

    def _require_filled(self, values: Any, name: str, first: int) -> None:
        if values.null_count:
            row = int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])
            raise DataError("is null, but every row is a query.", file=self.path, row=first + row + 1, field=name)

    def codes(self, values: Any, first: int = 0) -> Codes:
        """Packed codes of a block as codes."""
        try:
            return unpacked(values, self.facts.views, self.facts.bits, first)
        except DataError as error:
            raise error.within(self.path) from None


def read_facts(schema: Any, source: Path) -> Facts:
    """What a Parquet file says about its codes.

    Raises:
        DataError: it says something that is not possible.
    """
    found = (schema.metadata or {}).get(FACTS)
    try:
        return typed(json.loads(found) if found else {}, Facts, source)
    except (ValueError, RecursionError) as error:
        raise DataError(f"its metadata of multibit cannot be read ({error}).", file=source) from None


def unpacked(values: Any, views: int, bits: int | None, first: int = 0) -> Codes:
    """Codes of an Arrow array of packed codes.

    Args:
        values: (N,) binary, of one size; the views of an item one after the other. views: of each item.
        bits: code length; all bits when None. first: row of the first value in its file, for errors.

    Raises:
        DataError: another type, a null, different sizes, or too many bits.
    """
    types = pyarrow.types
    if not (
        types.is_binary(values.type) or types.is_large_binary(values.type) or types.is_fixed_size_binary(values.type)
    ):
        raise DataError(f"need packed codes (binary), got Arrow {values.type}.", field=CODE)
    sizes = np.asarray(pc.binary_length(values).fill_null(-1).to_numpy(zero_copy_only=False))
    size = int(sizes[0]) if len(sizes) else -(-(bits or 8) // 8) * views
    wrong = np.flatnonzero((sizes != size) | (sizes < 1))
    if len(wrong):
        found = "null" if sizes[wrong[0]] < 0 else f"{sizes[wrong[0]]} bytes"
        problem = f"need packed codes of one size, without nulls, got {found} after {size} bytes."
        raise DataError(problem, row=first + int(wrong[0]) + 1, field=CODE)
    whole = pyarrow.concat_arrays([values.cast(pyarrow.binary(size))])
    packed = np.frombuffer(whole.buffers()[1] or b"", np.uint8)[whole.offset * size :][: len(whole) * size]
    if size % views:
        raise DataError(f"{size} bytes are not {views} codes of equal length.", field=CODE)
    return Codes.from_bytes(
        packed.reshape((len(whole), size) if views == 1 else (len(whole), views, size // views)), bits
    )


def block_size(k: int, items: int) -> int:
    """Number of queries of a block: bounded, as is the number of its hits."""
    return max(1, min(BLOCK, HITS // max(1, min(k, items))))


def in_blocks(queries: Codes | Iterable[Queries], size: int) -> Iterator[Queries]:
    """Blocks of at most some size; codes are numbered from 0."""
    for block in [Queries(queries, None)] if isinstance(queries, Codes) else queries:
        for start in range(0, max(1, len(block.codes)), size):
            rows: Rows = np.arange(start, min(start + size, len(block.codes)))
            ids = pyarrow.array(rows) if block.ids is None else block.ids.slice(start, size)
            yield Queries(block.codes.take(rows), ids)


def _no_rows(schema: Any, columns: list[str]) -> Any:
    return pyarrow.record_batch([pyarrow.array([], schema.field(name).type) for name in columns], columns)


def _plain(values: Any) -> Any:
    """The values of a column that may be stored as a dictionary."""
    return values.dictionary_decode() if pyarrow.types.is_dictionary(values.type) else values


def _is_id(kind: Any) -> bool:
    kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
    return _is_text(kind) or pyarrow.types.is_integer(kind)


def _is_text(kind: Any) -> bool:
    kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
    return bool(pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind))

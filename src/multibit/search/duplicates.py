"""Near-duplicates of an index with their ids and metadata, and their Parquet file."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet

from multibit.codes.duplicates import NearDuplicates, near_duplicates_among
from multibit.errors import DataError, require_kind
from multibit.paths import replacing, require_suffix
from multibit.search.columns import IdColumn
from multibit.search.index import Index
from multibit.search.metadata import Metadata

GROUP, ID, DISTANCE = "group", "id", "distance"  # columns of the file, next to those of the metadata
ROWS = 100_000  # of a row group


@dataclass(frozen=True, eq=False)
class Duplicates:
    """Groups of near-duplicates, with ids and metadata.

    Attributes:
        found: the groups of n items. ids, metadata: of these n items, in the same order.
        modality: "image" or "text"; "" when unknown.
    """

    found: NearDuplicates
    ids: IdColumn
    metadata: Metadata
    modality: str = ""

    def __len__(self) -> int:
        return len(self.found)

    def __repr__(self) -> str:
        return repr(self.found)

    @property
    def groups(self) -> list[list[Any]]:
        """Ids of each group, oldest item first."""
        names = self.ids.listed(np.arange(len(self.ids)))
        return [names[first:last] for first, last in itertools.pairwise(self.found.starts.tolist())]

    @property
    def _id_values(self) -> Any:
        return self.ids.to_arrow() if self.ids.kind == "string" else self.ids.integers

    def save(self, path: Path | str) -> None:
        """Write to Parquet: `group`, `id`, `distance` to the first item of the group, and the metadata fields.

        Groups are numbered from 0 in order of their oldest item, which comes first in its group.

        Raises:
            DataError: another ending than .parquet, or a field that is named like one of the three columns.
        """
        target = Path(path)
        require_suffix(target, ".parquet")
        table = self.metadata.to_table()
        for name in (GROUP, ID, DISTANCE):
            if name in table.column_names:
                raise DataError(f"a field is named {name!r}, as a column of the file.", field=name, hint="Rename it.")
        columns = {GROUP: self.found.groups, ID: self._id_values, DISTANCE: self.found.distances}
        columns |= dict(zip(table.column_names, table.columns, strict=True))
        with replacing(target) as temporary:
            pyarrow.parquet.write_table(pyarrow.table(columns), temporary, row_group_size=ROWS)


def find_duplicates(index: Index, radius: int, bits: int | None = None, *, threads: int | None = None) -> Duplicates:
    """Group the items of an index whose codes differ in at most `radius` bits, directly or through others; exact.

    Args:
        index: with N items. radius, bits, threads: as for `near_duplicates`.

    Raises:
        DataError: the index is empty, a radius that is not whole or negative, or `bits` longer than the codes.

    Example:
        >>> from multibit import Codes
        >>> index = Index()
        >>> index.add(["a", "b", "c"], Codes.from_bits([[0, 0, 0], [1, 1, 1], [0, 0, 1]]))
        >>> find_duplicates(index, radius=1).groups
        [['a', 'c']]
    """
    require_kind(index, Index, "index", "Open one with Index.open(path).")
    if not len(index):
        raise DataError("the index is empty, so it has no duplicates.")
    version = index.version
    chosen = np.ones(version.starts[-1], bool)
    chosen[version.removed] = False
    pieces = [part.segment.codes for part in version.parts]
    found = near_duplicates_among(pieces, chosen, radius, bits, threads=threads)
    items = version.take(found.rows)
    return Duplicates(replace(found, rows=version.ordinals(found.rows)), items.ids, items.metadata, index.modality)

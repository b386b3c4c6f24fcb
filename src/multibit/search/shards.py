"""Shards: an index in several parts, each with the items whose id hashes to it.

The shard of an id is xxh3_64 of its text (an integer in decimal) modulo the number of shards, so it depends on nothing
else. Every item of a shard has an age, an integer that grows from item to item over all shards: answers of several
shards, merged by (distance, age), are those of one index. The ages of a set that is made of an index are its row
numbers; an item that is added later gets the time in microseconds, so it is younger than all of them.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow
import xxhash
from numpy.typing import NDArray

from multibit.arrays import IntArray
from multibit.errors import ConfigError, DataError, MismatchError
from multibit.files import read_json, write_json
from multibit.folders import only_writer, renewing
from multibit.paths import located, portable_path
from multibit.progress import track
from multibit.search.building import create_index
from multibit.search.columns import Id, IdColumn
from multibit.search.index import Index
from multibit.search.metadata import Metadata
from multibit.search.names import index_path
from multibit.search.segments import LARGEST, Part, Segment, merged
from multibit.search.storage import writing

AGE = "@age"
"""The field with the age of an item."""

FACTS, KIND, VERSION = "shard.json", "shard of indices", 1
BLOCK = 1 << 20  # items that are moved at a time, of all sources together
MOST = 4_096  # shards
PICTURE = "image"  # the field with the path of an image, relative to the folder of the index
IMAGES = "images"  # the folder of uploaded images, next to the indices
_SHARD = re.compile(r"([1-9][0-9]{0,3})/([1-9][0-9]{0,3})")


@dataclass(frozen=True)
class Shard:
    """One of several shards.

    Attributes:
        number: from 1. count: of all shards.

    Example:
        >>> Shard.parse("2/8"), str(Shard(2, 8)), Shard(2, 8).holds("cat 7"), Shard.of("cat 7", 8)
        (Shard(number=2, count=8), '2/8', False, Shard(number=7, count=8))
    """

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> Shard:
        """A shard as it is typed: 2/8 is the second of eight.

        Raises:
            ConfigError: not such a text.
        """
        found = _SHARD.fullmatch(text)
        if found is None or not int(found[1]) <= int(found[2]) <= MOST:
            problem = f"need NUMBER/COUNT, such as 2/8, with at most {MOST:,} shards, got {text!r}."
            raise ConfigError(problem, option="shard")
        return cls(int(found[1]), int(found[2]))

    @classmethod
    def of(cls, name: Id, count: int) -> Shard:
        """The shard of an id; an integer and its decimal text have the same one."""
        return cls(xxhash.xxh3_64_intdigest(str(name).encode()) % count + 1, count)

    def holds(self, name: Id) -> bool:
        """Whether the id belongs to this shard."""
        return Shard.of(name, self.count) == self

    def folder(self, indices: Path) -> Path:
        """Where the shard is below the folder of the indices of a run."""
        return set_folder(indices, self.count) / str(self.number)


def set_folder(indices: Path, count: int) -> Path:
    """The folder of a set of shards below the folder of the indices of a run.

    Example:
        >>> set_folder(Path("run/index"), 8).as_posix()
        'run/index/8-shards'
    """
    return indices / f"{count}-shards"


def id_hashes(ids: IdColumn) -> NDArray[np.uint64]:
    """(N,) hash of each id; its shard is the hash modulo the number of shards, counted from 0."""
    if ids.kind != "string":
        hashed = (xxhash.xxh3_64_intdigest(str(name).encode()) for name in ids.integers.tolist())
        return np.fromiter(hashed, np.uint64, len(ids))
    if ids.stored is None:
        return ids.keys
    out = np.empty(len(ids), np.uint64)  # a file has them, in ascending order
    out[ids.stored[1]] = ids.stored[0]
    return out


class ShardFacts(msgspec.Struct):
    """What `shard.json` says about a shard.

    Attributes:
        shard: as typed. set: name of the set that it was written with: shards of two sets are not mixed.
    """

    shard: Annotated[str, msgspec.Meta(pattern="^[1-9][0-9]*/[1-9][0-9]*$")]
    set: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]


def read_shard(folder: Path, shard: Shard) -> ShardFacts:
    """The facts of a shard in its folder.

    Raises:
        DataError: no such shard. MismatchError: another shard is there. FormatError: corrupt or newer.
    """
    if not (folder / FACTS).exists():
        raise DataError(f"no shard {shard}.", file=folder, hint="Make the shards with `multibit index`.")
    facts = read_json(folder / FACTS, kind=KIND, version=VERSION, form=ShardFacts)
    if facts.shard != str(shard):
        raise MismatchError(f"holds shard {facts.shard}, not {shard}.", file=folder, hint="Restore the folder's name.")
    return facts


def last_age(index: Index) -> int:
    """The largest age of a shard; -1 while it is empty."""
    if not len(index):
        return -1
    last = index.version.parts[-1]
    return int(last.segment.metadata.rows(last.at(np.array([last.live - 1])), [AGE])[0].get(AGE, -1))


def reshard(
    indices: Path, names: Sequence[str], count: int, source: int | None = None, *, model: str | None = None
) -> Path:
    """Write the indices of a folder as a set of shards, which appears, or replaces an earlier one, in one step.

    Items are read in blocks, so memory does not grow with the indices. Writers of the source are refused meanwhile.

    Args:
        indices: folder of the indices of a run. names: of the indices in it; those that are not there are left out.
        count: number of shards to write. source: number of the shards to read; the indices themselves when None.
        model: fingerprint that all must have; any when None.

    Returns:
        The folder of the set, with a folder for each shard.

    Raises:
        DataError: no such index or set, or a shard would have no item. BusyError: another process is writing there.
        MismatchError: shards of two sets, or of another model. ConfigError: a count out of range.

    Example:
        >>> from multibit.codes import Codes
        >>> index, folder = Index(), Path("index")
        >>> index.add(list("abcdef"), Codes.from_bits(np.eye(6)))
        >>> index.save(folder / "image.mbx")
        >>> shards = reshard(folder, ["image"], 2)
        >>> sum(len(Index.open(Shard(number, 2).folder(folder) / "image.mbx")) for number in (1, 2))
        6
    """
    if not 1 <= count <= MOST:
        raise ConfigError(f"must be 1 to {MOST:,}, got {count}.", option="reshard")
    if source == count:
        raise ConfigError(f"is the number of the shards to read, {count}.", option="reshard", hint="Choose another.")
    homes = [indices]
    if source is not None:
        shards = [Shard(number, source) for number in range(1, source + 1)]
        homes = [shard.folder(indices) for shard in shards]
        _require_one_set([read_shard(home, shard) for home, shard in zip(homes, shards, strict=True)], indices)
    names = [name for name in names if any(index_path(home, name).exists() for home in homes)]
    if not names:
        raise DataError("no index.", file=indices, hint="Build one with: multibit index RUN")
    target = set_folder(indices, count)
    with contextlib.ExitStack() as stack:
        earlier = [target / str(number) for number in range(1, count + 1)]
        for path in (index_path(home, name) for home in (*homes, *earlier) for name in names):
            if path.exists():
                stack.enter_context(writing(path))  # what is read stays as it is, and nobody writes what is replaced
        place = Path(os.path.realpath(indices)) / target.name
        stack.enter_context(only_writer(place, replaced=True))
        fresh = stack.enter_context(renewing(place, own=("**/*",)))
        pictures = _new_shards(fresh, target, count, homes)
        for name in names:
            size = max(1, BLOCK // len(homes))
            streams = [_Stream(Index.open(index_path(home, name)), home, size) for home in homes]
            for stream in streams:
                stream.index.require_model(streams[0].index.model if model is None else model)
            _distribute(name, streams, pictures)
    return target


def _new_shards(fresh: Path, target: Path, count: int, homes: Sequence[Path]) -> list[_Pictures]:
    """Make the folders of the shards of a new set."""
    name, out = secrets.token_hex(8), []
    for number in range(1, count + 1):
        folder = fresh / str(number)
        folder.mkdir()
        facts = {"shard": str(Shard(number, count)), "set": name}
        write_json(folder / FACTS, facts, kind=KIND, version=VERSION)
        out.append(_Pictures(folder, target / str(number), homes))
    return out


def _require_one_set(found: Sequence[ShardFacts], indices: Path) -> None:
    for number, facts in enumerate(found, start=1):
        if facts.set != found[0].set:
            problem = f"shard {number} is of set {facts.set}, but shard 1 of set {found[0].set}."
            raise MismatchError(problem, file=set_folder(indices, len(found)), hint="Restore the shards of one set.")


def _distribute(name: str, sources: Sequence[_Stream], targets: Sequence[_Pictures]) -> None:
    """Write the items of some indices to the indices of their new shards, in order of age."""
    first, count = sources[0].index, len(targets)
    fields = {field: kind for source in sources for field, kind in source.index.fields.items()} | {AGE: "integer"}
    total = sum(len(source.index) for source in sources)
    with contextlib.ExitStack() as stack, track("Moving items", total, "items") as advance:
        builders = [
            stack.enter_context(create_index(
                index_path(target.folder, name), model=first.model, engine=first.engine_name,
                modality=first.modality, fields=fields, size=max(1, LARGEST // count),
            ))
            for target in targets
        ]  # fmt: skip
        for block in _in_order(sources):
            goals = (id_hashes(block.ids) % np.uint64(count)).astype(np.int64)
            for goal, (builder, target) in enumerate(zip(builders, targets, strict=True)):
                rows = np.flatnonzero(goals == goal)
                builder.add(block.ids.take(rows), block.codes.take(rows), target.kept(block.metadata.take(rows)))
            advance(len(block))
        for number, builder in enumerate(builders, start=1):
            if not len(builder):
                problem = f"shard {number} of {count} would be empty: the index {name} has {total:,} items."
                raise DataError(problem, option="reshard", hint="Use fewer shards.")


class _Stream:
    """The items of one index in order of age, read in blocks, with absolute paths of their images.

    Args:
        index: to read. home: its folder. size: largest number of items of a block.
    """

    def __init__(self, index: Index, home: Path, size: int) -> None:
        self.index, self._home, self._size = index, home, size
        self._row = 0
        self._blocks = self._read()
        self.block: Segment | None = next(self._blocks, None)

    @property
    def ages(self) -> IntArray:
        """Of the items of the block."""
        assert self.block is not None
        return np.asarray(self.block.metadata.columns[AGE])

    def take(self, age: int) -> Segment | None:
        """The next items, up to an age; None where there are none."""
        if self.block is None:
            return None
        count = int(np.searchsorted(self.ages, age, side="right"))
        taken, rest = self.block.take(np.arange(count)), np.arange(count, len(self.block))
        self.block = self.block.take(rest) if len(rest) else next(self._blocks, None)
        return taken if count else None

    def _read(self) -> Iterator[Segment]:
        for block in self.index.version.blocks(self._size):
            metadata = self._aged(block.metadata)
            self._row += len(block)
            yield Segment(block.codes, block.ids, metadata)

    def _aged(self, metadata: Metadata) -> Metadata:
        columns, kinds = dict(metadata.columns), dict(metadata.kinds)
        if AGE not in self.index.fields:
            columns[AGE] = pyarrow.array(np.arange(self._row, self._row + len(metadata)))
            kinds[AGE] = "integer"
        elif AGE not in columns or columns[AGE].null_count:
            problem = f"an item has no {AGE}, which only items of shards have."
            raise DataError(problem, file=self.index.path, field=AGE)
        if kinds.get(PICTURE) == "string":
            columns[PICTURE] = _renamed(columns[PICTURE], lambda path: str(located(path, self._home)))
        return Metadata(len(metadata), columns, kinds)


def _in_order(sources: Sequence[_Stream]) -> Iterator[Segment]:
    """The items of several indices in order of age."""
    while any(source.block is not None for source in sources):
        safe = min(int(source.ages[-1]) for source in sources if source.block is not None)
        parts = [Part(taken) for source in sources if (taken := source.take(safe)) is not None]
        whole = merged(parts)
        order = np.argsort(np.asarray(whole.metadata.columns[AGE]), kind="stable")
        yield whole.take(order)


class _Pictures:
    """Images of the items of a new shard: paths become relative to it, and uploaded images come along.

    Args:
        folder: of the shard while it is written. final: its folder afterwards. homes: of the indices that are read.
    """

    def __init__(self, folder: Path, final: Path, homes: Sequence[Path]) -> None:
        self.folder, self._final = folder, final
        self._uploaded = {str(Path(os.path.realpath(home)) / IMAGES) for home in homes}

    def kept(self, metadata: Metadata) -> Metadata:
        """Metadata with the paths as the index of the shard keeps them."""
        if metadata.kinds.get(PICTURE) != "string":
            return metadata
        column = _renamed(metadata.columns[PICTURE], self._moved)
        return Metadata(len(metadata), {**metadata.columns, PICTURE: column}, metadata.kinds)

    def _moved(self, stored: str) -> str:
        path = Path(stored)
        if str(path.parent) not in self._uploaded or not path.exists():
            return portable_path(path, self._final)
        copy = self.folder / IMAGES / path.name
        copy.parent.mkdir(exist_ok=True)
        if not copy.exists():
            try:
                os.link(path, copy)
            except OSError:
                shutil.copy2(path, copy)
        return f"{IMAGES}/{path.name}"


def _renamed(column: Any, rename: Callable[[str], str]) -> Any:
    """A column of paths, each renamed; nulls stay."""
    return pyarrow.array([None if path is None else rename(path) for path in column.to_pylist()], column.type)

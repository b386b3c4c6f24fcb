"""Codes made elsewhere at several lengths: nested in one file, or a file for each length."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from multibit.arrays import Labels
from multibit.codes import DIRECTIONS, CodedItems
from multibit.codes.items import DIRECTION_NAMES
from multibit.data.sources.mat_files import MatFiles
from multibit.errors import DataError, MismatchError, MultibitError, counted
from multibit.evaluation.ranking import Key
from multibit.npz import npz_keys
from multibit.paths import require_suffix
from multibit.search.code_files import MAT_KEYS, CodeFile

ENDINGS = (".mat", ".npz")
SHOWN = 8  # file names in a note


@dataclass(frozen=True, eq=False)
class CodeSets:
    """Codes made elsewhere, of the same queries and the same database at every length.

    Attributes:
        source: the file or folder. lengths: code lengths, shortest first.
        files: (direction, length) -> the file that is measured there. notes: how they were read, one sentence each.
    """

    source: Path
    lengths: tuple[int, ...]
    files: Mapping[Key, CodeFile]
    notes: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name of the file without its ending, or of the folder, for tables."""
        path = self.source.resolve()
        return path.name if path.is_dir() else path.stem

    @property
    def nested(self) -> bool:
        """Whether shorter codes are prefixes of longer ones."""
        return len(self.lengths) > 1 and len({file.bits for file in self.files.values()}) == 1

    @property
    def labelled(self) -> bool:
        """Whether any item has a label."""
        return bool(self.query.labels.any() or self.database.labels.any())

    @property
    def query(self) -> CodedItems:
        """The queries with their longest codes."""
        return self.files["i2t", self.lengths[-1]].query

    @property
    def database(self) -> CodedItems:
        """The database with its longest codes."""
        return self.files["i2t", self.lengths[-1]].database

    @classmethod
    def open(cls, source: Path | str, lengths: Sequence[int] | None = None) -> CodeSets:
        """Read the codes of one file, or of all files in a folder and below it.

        Two files of one length that are named by the directions, `...-i2t.mat` and `...-t2i.mat`, are measured in one
        direction each.

        Args:
            source: as for `CodeFile.read`, or a folder of such files.
            lengths: prefix lengths of codes of one length, which says that they are nested, or some of the lengths of
                the files; the lengths of the files when None.

        Raises:
            DataError: no codes, files that cannot be read or do not fit each other, two files of one length and
                direction, or a length that the codes do not have.
        """
        source = Path(source)
        paths, skipped = _paths(source)
        files = [CodeFile.read(path) for path in paths]
        for other in files[1:]:
            require_same_items(files[0], other.query.labels, other.database.labels, files[0].path, other.path)
        chosen, notes = _assign(source, files)
        measured = _lengths(source, sorted({bits for _, bits in chosen}), lengths)
        by_length = {
            (d, bits): chosen.get((d, bits)) or chosen[d, files[0].bits] for d in DIRECTIONS for bits in measured
        }
        if skipped:
            names = ", ".join(path.name for path in skipped[:SHOWN]) + (", ..." if len(skipped) > SHOWN else "")
            notes.append(f"{source}: not read, because they have none of the six keys: {names}.")
        notes += [note for file in files for note in file.notes]
        return cls(source, measured, by_length, tuple(notes))

    def require_label_names(self, names: Sequence[str]) -> None:
        """Refuse label names that are not one per label column; no name at all is accepted.

        Raises:
            DataError: another number.
        """
        columns = self.database.labels.shape[1]
        if len(names) not in (0, columns):
            sizes = counted(len(names), "name", "names"), counted(columns, "label column", "label columns")
            problem = f"{' for '.join(sizes)} of {self.source}."
            raise DataError(problem, option="label_names", hint="Write one name per column, in their order.")

    def require_same_items(self, query_labels: Labels, database_labels: Labels, other: Path) -> None:
        """Refuse to compare with codes of other queries or another database.

        Args:
            query_labels, database_labels: multi-hot, of the other codes. other: their path.

        Raises:
            MismatchError: another number of rows or label columns, or a row with other labels.
        """
        try:
            require_same_items(self.files["i2t", self.lengths[-1]], query_labels, database_labels, self.source, other)
        except DataError as error:
            raise MismatchError(error.problem, file=other, row=error.row, field=error.field, hint=error.hint) from None


def is_codes(path: Path) -> bool:
    """Whether a path may hold codes made elsewhere: a `.mat` or `.npz`, or a folder with such files or `q_img.npy`."""
    return path.suffix in ENDINGS if not path.is_dir() else any(_candidates(path))


def holds_codes(path: Path) -> bool:
    """Whether a path does hold codes made elsewhere, by the keys of its files; of a folder, those that can be read.

    Raises:
        DataError: a file that cannot be read.
    """
    if not path.is_dir():
        return _has_keys(path)
    for each in _candidates(path):
        with contextlib.suppress(MultibitError, OSError):
            if _has_keys(each):
                return True
    return False


def _has_keys(path: Path) -> bool:
    if path.is_dir():
        return True
    keys = npz_keys(path) if path.suffix == ".npz" else MatFiles.open(path, {}, ()).shapes[path]
    return not set(MAT_KEYS).isdisjoint(keys)


def require_same_items(file: CodeFile, query_labels: Labels, database_labels: Labels, name: Path, other: Path) -> None:
    """Refuse labels that differ from those of a file; where one side has none, only the numbers of rows are compared.

    Args:
        file: whose labels. query_labels, database_labels: of the other codes. name, other: paths for the error.

    Raises:
        DataError: another number of rows or label columns, or a row with other labels.
    """
    sides = {"q_l": (file.query.labels, query_labels), "r_l": (file.database.labels, database_labels)}
    labelled = all(labels.any() for labels in (file.database.labels, database_labels))
    for key, (mine, theirs) in sides.items():
        if not labelled and len(mine) == len(theirs):
            continue
        if mine.shape != theirs.shape:
            sizes = [f"{len(labels):,} rows with {labels.shape[1]} label columns" for labels in (theirs, mine)]
            raise DataError(f"{sizes[0]} here, {sizes[1]} in {name}.", file=other, field=key)
        differs = np.flatnonzero((mine != theirs).any(axis=1))
        if len(differs):
            raise DataError(
                f"the labels of {counted(len(differs), 'row differs', 'rows differ')} from those of {name}, of "
                f"{len(mine):,}.",
                file=other,
                row=int(differs[0]) + 1,
                field=key,
                hint="Rows and label columns must be the same, in the same order.",
            )


# Files


def _candidates(folder: Path) -> Iterator[Path]:
    """Files and folders below a folder that may hold codes."""
    for path in folder.rglob("*"):
        if path.suffix in ENDINGS and path.is_file():
            yield path
        elif path.name == "q_img.npy":
            yield path.parent


def _paths(source: Path) -> tuple[list[Path], list[Path]]:
    """The files with codes at a path, and the other `.mat` and `.npz` files there, which have none of the keys."""
    if not source.exists():
        raise DataError("no such file.", file=source)
    if not source.is_dir():
        require_suffix(source, *ENDINGS)
        return [source], []
    files: list[Path] = []
    skipped: list[Path] = []
    for path in sorted(_candidates(source)):
        (files if _has_keys(path) else skipped).append(path)
    if not files:
        found = f"; found {', '.join(path.name for path in skipped[:SHOWN])}" if skipped else ""
        raise DataError(f"no file with {', '.join(MAT_KEYS)} in this folder{found}.", file=source)
    return files, skipped


def _assign(source: Path, files: Sequence[CodeFile]) -> tuple[dict[Key, CodeFile], list[str]]:
    """The file of each direction and length."""
    chosen: dict[Key, CodeFile] = {}
    for file in files:
        for direction in [file.direction] if file.direction else DIRECTIONS:
            first = chosen.setdefault((direction, file.bits), file)
            if first is not file:
                raise DataError(
                    f"two files with {direction} codes of {file.bits} bits: {first.path.relative_to(source)} and "
                    f"{file.path.relative_to(source)}.",
                    file=source,
                    hint="Evaluate one of them alone.",
                )
    notes = []
    for (direction, bits), file in list(chosen.items()):
        for other in DIRECTIONS:
            if (other, bits) not in chosen:
                chosen[other, bits] = file
                notes.append(
                    f"{file.path.name}: measured in both directions, but by its name it is for "
                    f"{DIRECTION_NAMES[direction]}, and there is no {other} file of {bits} bits."
                )
    return chosen, notes


def _lengths(source: Path, available: Sequence[int], wanted: Sequence[int] | None) -> tuple[int, ...]:
    if wanted is None:
        return tuple(available)
    chosen = sorted(set(wanted))
    nested = len(available) == 1
    missing = [bits for bits in chosen if not (1 <= bits <= available[0] if nested else bits in available)]
    if missing or not chosen:
        have = f"1 to {available[0]}" if nested else ", ".join(map(str, available))
        raise DataError(
            f"the codes have {have} bits, got {', '.join(map(str, missing))}.", file=source, option="lengths"
        )
    return tuple(chosen)

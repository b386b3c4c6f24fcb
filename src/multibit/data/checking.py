"""Checks of a data set before training: unreadable and duplicate images, empty texts, labels, leaks between roles."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.sparse
import scipy.sparse.csgraph
from numpy.typing import NDArray
from PIL import Image

from multibit.arrays import IntArray, Rows
from multibit.cells import write_csv
from multibit.codes import Codes
from multibit.codes.distance import within
from multibit.data.dataset import PairedDataset
from multibit.data.images import open_image
from multibit.errors import DataError
from multibit.files import checksum_file
from multibit.paths import replacing
from multibit.progress import track
from multibit.relation.graph import related_labels
from multibit.table import Cell, Number, Table
from multibit.texts import is_blank

MAX_DISTANCE = 16
"""Images are near-duplicates when at most this many of the 256 bits of their hashes differ. Of 213 photographs that
were scaled to 3/4 or 1/2 and saved again as JPEG, 95 to 99 % differ by no more; two different ones by 66 or more."""

MIN_EDGES = 48
"""Images with fewer edges, such as icons, have hashes that are too similar: they are only compared byte by byte."""


AT_ONCE = 1_024  # images that wait for a thread; the task of one takes more than a kilobyte


class ImageHash(NamedTuple):
    """Identity of an image.

    Attributes:
        checksum: of the bytes of its file. bits: (256,) of `difference_hash`.
    """

    checksum: str
    bits: NDArray[np.bool_]


class Finding(NamedTuple):
    """A kind of problem, with all items or labels that have it.

    Attributes:
        what: human-readable name of the problem. names: ids of items, or names of labels.
        meaning: consequence or remedy.
    """

    what: str
    names: Sequence[str]
    meaning: str


@dataclass(frozen=True)
class Check:
    """The findings about a data set.

    Attributes:
        facts, problems, roles, labels: as tables; `roles` is empty without a split.
        groups: ids of near-duplicate images, two or more in each group.
        unreadable: (id, reason) of each image that cannot be read.
    """

    facts: Table
    problems: Table
    roles: Table
    labels: Table
    groups: tuple[tuple[str, ...], ...]
    unreadable: tuple[tuple[str, str], ...]

    @property
    def tables(self) -> list[Table]:
        """Those that have rows, problems first."""
        return [table for table in (self.problems, self.facts, self.roles, self.labels) if table.rows]

    def write_groups(self, path: Path) -> None:
        """Write the groups of near-duplicates as a CSV manifest (id, group) that `read_groups` reads."""
        rows = ((name, number) for number, group in enumerate(self.groups) for name in group)
        with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
            write_csv(file, [("id", "group"), *rows])


def check_dataset(
    data: PairedDataset, roles: Mapping[str, Rows] | None = None, faults: Iterable[Finding] = ()
) -> Check:
    """Check every image, text and label of a data set.

    Args:
        data: N items.
        roles: rows by role; overlaps between them are counted.
        faults: findings about the features of the same items, from `features.faults.feature_faults`.
    """
    paths = [path for path in data.images if path is not None]
    absent = bool(paths) and not any(map(os.path.exists, paths))  # as with features made elsewhere
    hashes, reasons = ({}, {}) if absent else _hash_images(data)
    identical = _identical(hashes)
    groups = _near_duplicates(hashes, identical)
    counts, related = data.label_rows.per_label(), related_labels(data.label_rows.matrix)
    problems = [
        Finding(
            "missing images",
            [name for name, path in zip(data.ids, data.images, strict=True) if absent and path is not None],
            f"no file exists, not even {paths[0] if paths else ''}; no image was checked",
        ),
        Finding("unreadable images", [data.ids[row] for row in reasons], "`multibit features` skips them"),
        *_item_findings(data, identical, groups),
        *_label_findings(data, counts, related),
        *faults,
    ]
    return Check(
        _facts_table(data, related),
        Table(
            "Problems",
            ("what", "count", "first", "what it means"),
            tuple((what, _count(len(names)), names[0], meaning) for what, names, meaning in problems if names),
        ),
        _roles_table(data, roles or {}, groups),
        _labels_table(data, counts, related),
        tuple(tuple(data.ids[row] for row in group) for group in groups),
        tuple((data.ids[row], reason) for row, reason in reasons.items()),
    )


def difference_hash(image: Image.Image) -> NDArray[np.bool_]:
    """Perceptual hash of 256 bits, of which few flip when the image is scaled or saved again.

    Each bit tells whether one of 16 x 16 cells is brighter than its right neighbour.
    """
    gray = np.asarray(image.convert("L").resize((17, 16), Image.Resampling.BOX), np.int16)
    brighter: NDArray[np.bool_] = (gray[:, :-1] > gray[:, 1:]).ravel()
    return brighter


def are_near_duplicates(first: Path, second: Path) -> bool:
    """Whether two images are near-duplicates, or have the same bytes; no where one cannot be read."""
    one, other = _hash_image(first), _hash_image(second)
    if not isinstance(one, ImageHash) or not isinstance(other, ImageHash):
        return False
    if one.checksum == other.checksum:
        return True
    detailed = all(MIN_EDGES <= each.bits.sum() <= len(each.bits) - MIN_EDGES for each in (one, other))
    return detailed and int((one.bits != other.bits).sum()) <= MAX_DISTANCE


def _hash_images(data: PairedDataset) -> tuple[dict[int, ImageHash], dict[int, str]]:
    """Hashes of the readable images, and reasons why the others are not readable, by row."""
    hashes, reasons = {}, {}
    given = [(row, path) for row, path in enumerate(data.images) if path is not None]
    with (
        track("Checking images", len(given), "images") as advance,
        ThreadPoolExecutor(os.cpu_count()) as pool,
    ):
        for start in range(0, len(given), AT_ONCE):
            block = given[start : start + AT_ONCE]
            for (row, _), found in zip(block, pool.map(_hash_image, (path for _, path in block)), strict=True):
                if isinstance(found, str):
                    reasons[row] = found
                else:
                    hashes[row] = found
                advance()
    return hashes, reasons


def _hash_image(path: Path) -> ImageHash | str:
    """The hash of an image, or the reason why it is not readable."""
    try:
        bits = difference_hash(open_image(path))
        return ImageHash(checksum_file(path), bits)
    except (DataError, OSError) as error:
        return str(error)


def _identical(hashes: Mapping[int, ImageHash]) -> list[list[int]]:
    """Groups of two or more rows whose files have equal bytes."""
    rows = defaultdict(list)
    for row, image in hashes.items():
        rows[image.checksum].append(row)
    return [group for group in rows.values() if len(group) > 1]


def _near_duplicates(hashes: Mapping[int, ImageHash], identical: Sequence[Sequence[int]]) -> list[list[int]]:
    """Groups of two or more rows whose images are near-duplicates, directly or through others."""
    pairs = [(group[0], row) for group in identical for row in group[1:]]
    detailed = [row for row, (_, bits) in hashes.items() if MIN_EDGES <= bits.sum() <= len(bits) - MIN_EDGES]
    if detailed:
        codes = Codes.from_bits(np.stack([hashes[row].bits for row in detailed]))
        near = within(codes, codes, MAX_DISTANCE)
        query = np.repeat(np.arange(len(codes)), np.diff(near.offsets))
        rows = np.array(detailed)
        pairs += zip(rows[query].tolist(), rows[near.rows].tolist(), strict=True)
    if not pairs:
        return []
    first, second = np.array(pairs).T
    size = max(hashes) + 1
    edges = scipy.sparse.coo_array((np.ones(len(pairs)), (first, second)), (size, size))
    _, part = scipy.sparse.csgraph.connected_components(edges, directed=False)
    groups = defaultdict(list)
    for row in hashes:
        groups[part[row]].append(row)
    return [group for group in groups.values() if len(group) > 1]


def _item_findings(
    data: PairedDataset, identical: Sequence[Sequence[int]], groups: Sequence[Sequence[int]]
) -> list[Finding]:
    def of_rows(groups: Sequence[Sequence[int]]) -> list[str]:
        return [data.ids[row] for group in groups for row in group]

    def where(mask: Sequence[bool] | NDArray[np.bool_], unless_all: bool = False) -> list[str]:
        return [] if unless_all and all(mask) else [data.ids[row] for row in np.flatnonzero(mask)]

    # ready-made features come without any image or text, which is not a problem
    no_image = where([image is None for image in data.images], unless_all=True)
    no_text = where([is_blank("".join(texts)) for texts in data.texts], unless_all=True)
    return [
        Finding("items without an image", no_image, "add an image path to each"),
        Finding("items without a text", no_text, "their text features carry no information"),
        Finding(
            "items without a label",
            where(data.label_rows.per_item() == 0),
            "as queries they have no relevant item; `multibit label` can make labels",
        ),
        Finding("identical images", of_rows(identical), "remove the copies, or keep each group in one role"),
        Finding("near-duplicate images", of_rows(groups), "in two roles they inflate scores; split by their groups"),
    ]


def _label_findings(data: PairedDataset, counts: IntArray, related: IntArray) -> list[Finding]:
    """Labels that teach little: `counts` are the items, `related` the neighbours in the label graph of each label."""

    def where(mask: NDArray[np.bool_]) -> list[str]:
        return [data.label_names[column] for column in np.flatnonzero(mask)]

    return [
        Finding("labels of no item", where(counts == 0), "they have no effect"),
        Finding("labels of one item", where(counts == 1), "no query can find another such item"),
        Finding("labels of every item", where(counts == len(data)), "they separate nothing and get no weight"),
        Finding("isolated labels", where((related == 0) & (counts > 0)), "related to no other label in the graph"),
    ]


def _facts_table(data: PairedDataset, related: IntArray) -> Table:
    labels = len(data.label_names)
    facts: dict[str, Cell] = {
        "items": _count(len(data)),
        "images": _count(sum(image is not None for image in data.images)),
        "texts": _count(sum(map(len, data.texts))),
        "labels": _count(labels),
        "labels per item": Number(data.label_rows.per_item().sum() / len(data)),
        "label graph density": Number(related.sum() / max(labels * (labels - 1), 1), ".3f"),
        "fingerprint": data.fingerprint(),
    }
    return Table("Data", ("what", "value"), tuple(facts.items()))


def _labels_table(data: PairedDataset, counts: IntArray, related: IntArray) -> Table:
    """Frequency and number of neighbours of each label, most frequent first."""
    rows = tuple(
        (
            data.label_names[column],
            _count(counts[column]),
            Number(100 * counts[column] / len(data)),
            Number(int(related[column]), "d"),
        )
        for column in np.argsort(-counts, kind="stable")
    )
    return Table("Labels", ("label", "items", "share, %", "related labels"), rows)


def _roles_table(data: PairedDataset, roles: Mapping[str, Rows], groups: Sequence[Sequence[int]]) -> Table:
    """Size of each role, and how many of its items are also queries or near-duplicates of one."""
    first = np.arange(len(data))  # first row of each item's group
    for group in groups:
        first[list(group)] = group[0]
    query = roles.get("query", np.zeros(0, np.int64))
    lines: list[tuple[Cell, ...]] = []
    for role, rows in roles.items():
        shared = np.isin(rows, query)
        copies = np.isin(first[rows], first[query]) & ~shared
        unlabelled = (data.label_rows.per_item()[rows] == 0).sum()
        leaks: tuple[Cell, ...] = ("", "") if role == "query" else (_count(shared.sum()), _count(copies.sum()))
        lines.append((role, _count(len(rows)), _count(unlabelled), *leaks))
    header = ("role", "items", "without a label", "also in query", "near-duplicates of a query")
    note = "Items that equal or resemble a query inflate every score; training items belong to the database."
    return Table("Split", header, tuple(lines), note)


def _count(number: int) -> Number:
    return Number(number, ",")

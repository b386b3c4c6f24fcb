"""What people should know about a data set before they train on it: `multibit check`."""

from __future__ import annotations

import html
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse
import scipy.sparse.csgraph
from numpy.typing import NDArray
from PIL import Image

from multibit import __version__
from multibit.codes import Codes
from multibit.codes.distance import within
from multibit.data import FeatureStore, PairedDataset
from multibit.data.pictures import open_picture
from multibit.errors import DataError
from multibit.files import checksum_file, replacing
from multibit.progress import progress
from multibit.relation import LabelGraph
from multibit.report.tables import Table

STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem;color:#1f2328}"
    "table{border-collapse:collapse;font-size:.88rem}th,td{padding:.25rem .6rem;border-bottom:1px solid #d0d7de;"
    "text-align:left;vertical-align:top}.n{text-align:right;font-variant-numeric:tabular-nums}.note{color:#59636e}"
)


ALIKE = 16
"""Pictures look alike when at most so many of the 256 bits of their hashes differ. Of 213 photographs scaled to 3/4 or
1/2 and stored again as JPEG, 95 to 99 % differ by no more; two different ones by 66 or more."""

DETAIL = 48
"""Pictures with fewer edges, such as icons, have too similar hashes: they are only compared byte by byte."""

Look = tuple[str, NDArray[np.bool_]]
"""Checksum of a file's bytes, and the hash of how the picture looks."""


@dataclass(frozen=True)
class Check:
    """The findings about a data set.

    Attributes:
        facts, problems, roles, labels: as tables; `roles` is empty without a split.
        groups: ids of pictures that look alike, two or more in each group.
        unreadable: (id, reason) of each picture that cannot be read.
    """

    facts: Table
    problems: Table
    roles: Table
    labels: Table
    groups: tuple[tuple[str, ...], ...]
    unreadable: tuple[tuple[str, str], ...]

    @property
    def tables(self) -> list[Table]:
        """Those that have rows, what needs attention first."""
        return [table for table in (self.problems, self.facts, self.roles, self.labels) if table.rows]

    def page(self, name: str) -> str:
        """One HTML page that opens without a network."""
        tables = "".join(_html(table) for table in self.tables)
        listed = _html(Table("Pictures that cannot be read", ("id", "reason"), self.unreadable))
        title = html.escape(name)
        return (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>multibit check: {title}</title>'
            f"<style>{STYLE}</style></head><body><h1>{title}</h1><p class=note>multibit {__version__}</p>"
            f"{tables}{listed if self.unreadable else ''}</body></html>\n"
        )

    def write_page(self, name: str, path: Path) -> None:
        """Write the page in one step."""
        with replacing(path) as temporary:
            temporary.write_text(self.page(name), encoding="utf-8")

    def write_groups(self, path: Path) -> None:
        """Write which pictures look alike as a CSV manifest (id, group), for `multibit train --groups`."""
        import csv

        with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("id", "group"))
            writer.writerows((name, number) for number, group in enumerate(self.groups) for name in group)


def check_dataset(
    data: PairedDataset,
    roles: Mapping[str, NDArray[np.int64]] | None = None,
    features: FeatureStore | None = None,
) -> Check:
    """Look at every picture, text and label, and at every feature if there are any.

    Args:
        data: N items. roles: rows by role, which may overlap: that is looked for. features: of the same items.
    """
    looks, reasons = _look_at_pictures(data)
    unreadable = tuple((data.ids[row], reason) for row, reason in reasons.items())
    same = _same_bytes(looks)
    alike = _alike(looks, same)
    counts = data.labels.sum(axis=0, dtype=np.int64)
    graph = LabelGraph.from_labels(data.labels) if data.labels.any() else None
    neighbours = (graph.weights > 0).sum(axis=1) if graph is not None else np.zeros(len(counts), np.int64)
    facts = {
        "items": f"{len(data):,}",
        "pictures": f"{sum(image is not None for image in data.images):,}",
        "texts": f"{sum(map(len, data.texts)):,}",
        "labels": f"{len(counts):,}",
        "labels per item": f"{data.labels.sum() / len(data):.2f}",
        "label graph density": f"{neighbours.sum() / max(len(counts) * (len(counts) - 1), 1):.3f}",
        "data": data.fingerprint(),
    }
    problems: list[tuple[str, Sequence[str], str]] = [
        ("pictures that cannot be read", [name for name, _ in unreadable], "`multibit features` leaves them out"),
        ("items without a picture", _some(data, [image is None for image in data.images]), "name a picture for each"),
        ("items without a text", _some(data, [not "".join(texts).strip() for texts in data.texts]), "their text "
         "feature says nothing"),
        ("items without a label", _ids(data, data.labels.sum(axis=1) == 0), "as queries they have no relevant item; "
         "`multibit label` can make labels"),
        ("pictures of the same bytes", [data.ids[row] for group in same for row in group], "remove them, or as below"),
        ("pictures that look alike", [data.ids[row] for group in alike for row in group], "`multibit check --groups` "
         "writes them, `multibit train --groups` keeps them together"),
        ("labels of no item", _names(data, counts == 0), "they teach nothing"),
        ("labels of one item", _names(data, counts == 1), "no query can find another such item"),
        ("labels of every item", _names(data, counts == len(data)), "they tell nothing apart and weigh nothing"),
        ("isolated labels", _names(data, (neighbours == 0) & (counts > 0)), "related to no other label in the graph"),
    ]  # fmt: skip
    problems += _faults_of(features) if features is not None else []
    return Check(
        Table("Data", ("what", "value"), tuple(facts.items())),
        Table(
            "What to look at",
            ("what", "count", "first", "what it means"),
            tuple((what, f"{len(found):,}", found[0], remedy) for what, found, remedy in problems if found),
        ),
        _roles_table(data, roles or {}, alike),
        Table(
            "Labels",
            ("label", "items", "share, %", "related labels"),
            tuple(
                (data.label_names[i], f"{counts[i]:,}", f"{100 * counts[i] / len(data):.2f}", str(neighbours[i]))
                for i in np.argsort(-counts, kind="stable")
            ),
        ),
        tuple(tuple(data.ids[row] for row in group) for group in alike),
        unreadable,
    )


def difference_hash(picture: Image.Image) -> NDArray[np.bool_]:
    """How a picture looks, in 256 bits of which few flip when it is scaled or stored again.

    Whether each of 16 x 16 places is brighter than its right neighbour.
    """
    gray = np.asarray(picture.convert("L").resize((17, 16), Image.Resampling.BOX), np.int16)
    brighter: NDArray[np.bool_] = (gray[:, :-1] > gray[:, 1:]).ravel()
    return brighter


def _look_at_pictures(data: PairedDataset) -> tuple[dict[int, Look], dict[int, str]]:
    """Looks of the pictures that can be read, and why the others cannot, by row."""
    looks, reasons = {}, {}
    with (
        progress("Looking at pictures", len(data), "pictures") as advance,
        ThreadPoolExecutor(os.cpu_count()) as pool,
    ):
        for row, found in enumerate(pool.map(_look, data.images)):
            if isinstance(found, str):
                reasons[row] = found
            elif found is not None:
                looks[row] = found
            advance()
    return looks, reasons


def _look(path: Path | None) -> Look | str | None:
    if path is None:
        return None
    try:
        look = difference_hash(open_picture(path))
        return checksum_file(path), look
    except (DataError, OSError) as error:
        return str(error)


def _same_bytes(looks: Mapping[int, Look]) -> list[list[int]]:
    """Rows of equal files, of those that occur more than once."""
    rows = defaultdict(list)
    for row, (checksum, _) in looks.items():
        rows[checksum].append(row)
    return [group for group in rows.values() if len(group) > 1]


def _alike(looks: Mapping[int, Look], same: Sequence[Sequence[int]]) -> list[list[int]]:
    """Rows of pictures that look alike, directly or through others; equal files always do."""
    pairs = [(group[0], row) for group in same for row in group[1:]]
    detailed = [row for row, (_, bits) in looks.items() if DETAIL <= bits.sum() <= len(bits) - DETAIL]
    if detailed:
        codes = Codes.from_bits(np.stack([looks[row][1] for row in detailed]))
        near = within(codes, codes, ALIKE)
        asked = np.repeat(np.arange(len(codes)), np.diff(near.offsets))
        rows = np.array(detailed)
        pairs += zip(rows[asked].tolist(), rows[near.rows].tolist(), strict=True)
    if not pairs:
        return []
    first, second = np.array(pairs).T
    size = max(looks) + 1
    edges = scipy.sparse.coo_array((np.ones(len(pairs)), (first, second)), (size, size))
    _, part = scipy.sparse.csgraph.connected_components(edges, directed=False)
    groups = defaultdict(list)
    for row in looks:
        groups[part[row]].append(row)
    return [group for group in groups.values() if len(group) > 1]


def _faults_of(store: FeatureStore, block: int = 16_384) -> Iterator[tuple[str, Sequence[str], str]]:
    """Items whose features are no numbers, do not fit the network, or say nothing; looked at in blocks of rows."""
    owners = {"image": np.arange(len(store)), "text": np.repeat(np.arange(len(store)), np.diff(store.offsets))}
    for modality, owner in owners.items():
        array = getattr(store, modality)
        broken, lost, empty = set(), set(), set()
        for start in range(0, len(array), block):
            part = np.asarray(array[start : start + block])
            items = owner[start : start + block]
            with np.errstate(over="ignore", under="ignore"):
                single = part.astype(np.float32, copy=False)  # as the network takes them
            finite, zero = np.isfinite(part).all(axis=1), (part == 0).all(axis=1)
            held = np.isfinite(single).all(axis=1) & (zero | (single != 0).any(axis=1))
            broken.update(items[~finite].tolist())
            lost.update(items[finite & ~held].tolist())
            empty.update(items[zero].tolist())
        for what, rows, remedy in (
            ("that are not finite", broken, "`multibit train` and `encode` refuse them"),
            ("that float32 does not hold", lost, "`multibit train` and `encode` refuse them: scale the features"),
            ("of zeros", empty, "they have no direction, so all of them get the same code"),
        ):
            yield f"items with {modality} features {what}", [store.dataset.ids[row] for row in sorted(rows)], remedy


def _roles_table(data: PairedDataset, roles: Mapping[str, NDArray[np.int64]], alike: Sequence[Sequence[int]]) -> Table:
    """How large each role is, and what of it leaks into the queries."""
    group = np.arange(len(data))
    for same in alike:
        group[list(same)] = same[0]
    query = roles.get("query", np.zeros(0, np.int64))
    lines = []
    for role, rows in roles.items():
        shared = np.isin(rows, query)
        copies = np.isin(group[rows], group[query]) & ~shared
        unlabelled = (data.labels[rows].sum(axis=1) == 0).sum()
        cells = ("", "") if role == "query" else (f"{shared.sum():,}", f"{copies.sum():,}")
        lines.append((role, f"{len(rows):,}", f"{unlabelled:,}", *cells))
    header = ("role", "items", "without a label", "also in query", "look like a query")
    note = "Items that are, or look like, a query flatter every number; training items are in the database on purpose."
    return Table("Split", header, tuple(lines), note)


def _ids(data: PairedDataset, mask: Sequence[bool] | NDArray[np.bool_]) -> list[str]:
    return [data.ids[row] for row in np.flatnonzero(mask)]


def _some(data: PairedDataset, mask: Sequence[bool]) -> list[str]:
    """Ids of some items; none if all are meant: ready features have neither pictures nor texts."""
    return [] if all(mask) else _ids(data, mask)


def _names(data: PairedDataset, mask: NDArray[np.bool_]) -> list[str]:
    return [data.label_names[column] for column in np.flatnonzero(mask)]


def _html(table: Table) -> str:
    def row(tag: str, cells: Sequence[str]) -> str:
        marks = ["class=n" if number else "" for number in table.numeric]
        content = zip(cells, marks, strict=True)
        return "<tr>" + "".join(f"<{tag} {mark}>{html.escape(cell)}</{tag}>" for cell, mark in content) + "</tr>"

    lines = "".join(row("td", cells) for cells in table.rows)
    return f"<h2>{table.title}</h2><table>{row('th', table.header)}{lines}</table><p class=note>{table.note}</p>"

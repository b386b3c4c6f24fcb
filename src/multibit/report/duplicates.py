"""The HTML page of near-duplicates: the largest groups, with images and texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from multibit.paths import replacing
from multibit.progress import track
from multibit.report.examples import thumbnail
from multibit.report.page import render_page
from multibit.search.duplicates import Duplicates
from multibit.table import Number, Table

GROUPS, ITEMS = 100, 12  # shown at most: the page has a few megabytes whatever the number of items
LETTERS = 160  # of a text


def write_duplicates_page(duplicates: Duplicates, name: str, path: Path) -> None:
    """Write the largest groups as one HTML page that opens without a network.

    Images are embedded where the metadata has their path in `image`, and texts where it has `text`.

    Args:
        duplicates: the groups. name: of the items, for the title. path: of the page.

    Raises:
        MissingExtraError: jinja2 is not installed.
    """
    largest = np.argsort(-duplicates.found.sizes, kind="stable")[:GROUPS]
    with track("Drawing groups", len(largest), "groups") as advance:
        groups = []
        for number in largest.tolist():
            groups.append(_group(duplicates, number))
            advance()
    title = f"multibit duplicates: {name}"
    tables = [duplicates_table(duplicates)]
    page = render_page("groups", title=title, heading_text=name, tables=tables, groups=groups, about_groups="")
    with replacing(path) as temporary:
        temporary.write_text(page, encoding="utf-8")


def duplicates_table(duplicates: Duplicates) -> Table:
    """What was found, as a table."""
    found = duplicates.found
    facts = {
        "items": Number(found.count, ","),
        "groups of near-duplicates": Number(len(found), ","),
        "items in groups": Number(len(found.rows), ","),
        "largest group": Number(int(found.sizes.max(initial=0)), ","),
        "largest distance to the first of a group": Number(int(found.distances.max(initial=0)), ","),
    }
    what = f"Near-duplicate {duplicates.modality}s" if duplicates.modality else "Near-duplicates"
    title = f"{what} within {found.radius} of {found.bits} bits"
    note = "Each item of a group is within this radius of another one of it, not of all."
    return Table(title, ("what", "count"), tuple(facts.items()), note)


def _group(duplicates: Duplicates, number: int) -> dict[str, Any]:
    first, last = duplicates.found.starts[number : number + 2].tolist()
    shown = np.arange(first, min(last, first + ITEMS))
    names, payloads = duplicates.ids.listed(shown), duplicates.metadata.rows(shown)
    distances = duplicates.found.distances[shown].tolist()
    more = f", the first {len(shown)} are shown" if len(shown) < last - first else ""
    return {
        "title": f"Group {number}: {last - first:,} items{more}",
        "items": [
            _item(str(name), distance, payload)
            for name, distance, payload in zip(names, distances, payloads, strict=True)
        ],
    }


def _item(name: str, distance: int, payload: dict[str, Any]) -> dict[str, Any]:
    image, lines = "", [f"distance {distance}"]
    path, text = payload.get("image"), payload.get("text")
    if isinstance(path, str):
        image = thumbnail(Path(path))
        lines += [] if image else ["The image cannot be read."]
    if isinstance(text, str):
        lines.append(text if len(text) <= LETTERS else text[:LETTERS] + "…")
    return {"id": name, "image": image, "lines": lines}

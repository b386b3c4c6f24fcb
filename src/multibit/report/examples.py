"""Example searches of a measured run: a good, a usual and a poor query of each direction, with images."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from multibit.arrays import FloatArray
from multibit.codes import hamming_distances
from multibit.codes.items import DIRECTION_NAMES, DIRECTIONS, Direction
from multibit.data import PairedDataset
from multibit.data.images import open_image
from multibit.errors import DataError
from multibit.evaluation.metric import MAP, MEDIAN_RANK
from multibit.features.store import FeatureStore

if TYPE_CHECKING:
    from multibit.evaluation.evaluation import Evaluation
    from multibit.measurement import MeasuredRun

CHOSEN = {"good": 0.9, "usual": 0.5, "poor": 0.1}
"""Kind of query -> its place among the queries, sorted from the worst to the best at the longest code."""

HITS, SIDE = 6, 144  # hits of a search; pixels of the longer side of an image
TEXT = 160  # characters of a text that are shown


@dataclass(frozen=True)
class Shown:
    """An item of the page.

    Attributes:
        id: of the item. text: its text, cut; "" for none. image: as a data URI; "" if there is none.
        labels: names. distance: to the query; None for the query. shares: whether it shares a label with the query.
    """

    id: str
    text: str
    image: str
    labels: tuple[str, ...]
    distance: int | None = None
    shares: bool = False


@dataclass(frozen=True)
class Example:
    """A query and its first hits at the shortest and the longest code.

    Attributes:
        title: direction and kind. value: average precision of the query at the longest code, or without labels the
            rank of its own counterpart among the query items. measure: its name. asked: modality of the query.
            query: its item. rows: length -> hits.
    """

    title: str
    value: float
    measure: str
    asked: str
    query: Shown
    rows: dict[int, tuple[Shown, ...]]


def example_searches(measured: MeasuredRun, store: FeatureStore) -> list[Example]:
    """Searches of the whole database; empty where the items have neither images nor texts.

    Args:
        measured: a run. store: its features.
    """
    data = store.dataset
    if not any(data.images) and not any(map(any, data.texts)):
        return []
    return [
        _example(measured, data, direction, kind, place)
        for direction in reversed(DIRECTIONS)  # the images first
        for kind, place in _queries(measured, direction)
    ]


def _queries(measured: MeasuredRun, direction: Direction) -> list[tuple[str, int]]:
    evaluation = measured.evaluations[0]
    values = _values(evaluation, direction)
    order = np.argsort(values if evaluation.labelled else -values, kind="stable")[
        : int((~np.isnan(values)).sum())
    ]  # NaN is last
    places = {kind: int(order[round(share * (len(order) - 1))]) for kind, share in CHOSEN.items()}
    return [
        (kind, place)
        for kind, place in places.items()
        if list(places.values()).index(place) == list(places).index(kind)
    ]


def _values(evaluation: Evaluation, direction: Direction) -> FloatArray:
    """What the queries are chosen by: average precision, or without labels the rank of the own counterpart."""
    return evaluation.values[MAP if evaluation.labelled else MEDIAN_RANK, direction, evaluation.lengths[-1]]


def _example(measured: MeasuredRun, data: PairedDataset, direction: Direction, kind: str, place: int) -> Example:
    split, evaluation = measured.run.split, measured.evaluations[0]
    asked, searched = DIRECTIONS[direction]
    query = int(split.query[place])
    wanted = set(data.label_names_of(query))
    rows = {}
    for bits in dict.fromkeys((evaluation.lengths[0], evaluation.lengths[-1])):
        ranking = measured.rankings[0][direction, bits]
        found = ranking.first.rows[place, :HITS]
        distances = hamming_distances(ranking.query.take([place]), ranking.database.take(found), bits)[0]
        rows[bits] = tuple(
            _shown(data, int(split.database[row]), searched == "image", int(distance), wanted)
            for row, distance in zip(found, distances, strict=True)
        )
    return Example(
        f"{DIRECTION_NAMES[direction]}, a {kind} query",
        float(_values(evaluation, direction)[place]),
        "average precision" if evaluation.labelled else "rank of its own counterpart",
        asked,
        _shown(data, query, asked == "image"),
        rows,
    )


def _shown(
    data: PairedDataset, row: int, with_image: bool, distance: int | None = None, wanted: set[str] | None = None
) -> Shown:
    labels, text = tuple(data.label_names_of(row)), " ".join(next(iter(data.texts[row]), "").split())
    path = data.images[row]
    return Shown(
        str(data.ids[row]),
        text if len(text) <= TEXT else f"{text[: TEXT - 1]}…",
        thumbnail(path) if with_image and path is not None else "",
        labels,
        distance,
        bool((wanted or set()) & set(labels)),
    )


def thumbnail(path: Path) -> str:
    """A small copy of an image as a data URI; "" if it cannot be read."""
    try:
        image = open_image(path)
    except (DataError, OSError, ValueError):  # a path can be too long or have a null character
        return ""
    image.thumbnail((SIDE, SIDE))
    buffer = io.BytesIO()
    image.save(buffer, format="JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def unreadable(examples: Sequence[Example]) -> int:
    """Number of items of the examples whose image should be shown and is not."""
    hits = [hit for each in examples if each.asked == "text" for row in each.rows.values() for hit in row]
    asked = [each.query for each in examples if each.asked == "image"]
    return sum(not each.image for each in (*hits, *asked))

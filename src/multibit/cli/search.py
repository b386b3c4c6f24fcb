"""The verb `search`."""

from __future__ import annotations

import json
from itertools import tee
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from multibit.cli.options import (
    DownloadOption,
    Modality,
    RunArgument,
    echo,
    refuse_unused,
    require_ending,
    show,
)
from multibit.errors import ConfigError, counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from multibit.codes import Codes
    from multibit.search import Hit, Index, SearchResult
    from multibit.search.batches import Queries
    from multibit.search.remote import RemoteIndex
    from multibit.search.remote.approximate import Recall
    from multibit.search.segments import Lost


def search(
    ctx: typer.Context,
    run: RunArgument,
    query: Annotated[
        str | None, typer.Argument(metavar="QUERY", help="A text, or the path of an image. With --queries none.")
    ] = None,
    bits: Annotated[int | None, typer.Option(help="Code length to search at. Default: the full length.")] = None,
    k: Annotated[int, typer.Option("-k", help="Number of hits.")] = 10,
    kind: Annotated[
        Modality | None, typer.Option("--as", help="Modality of the query. Default: image if it is an image path.")
    ] = None,
    modality: Annotated[
        Modality | None, typer.Option("--in", help="Modality to search. Default: the other one.")
    ] = None,
    max_distance: Annotated[int | None, typer.Option(help="Only hits that differ in at most this many bits.")] = None,
    where: Annotated[
        list[str] | None, typer.Option(help="Condition of a hit: labels=dog, year>=2010, not license=nc. Repeatable.")
    ] = None,
    field: Annotated[
        list[str] | None,
        typer.Option(help="Metadata field of the hits. Repeatable. Default: all; with --queries none."),
    ] = None,
    relaxed: Annotated[
        bool, typer.Option("--relaxed", help="Rank by the real values of the query: a score that breaks ties.")
    ] = False,
    index: Annotated[str | None, typer.Option(help="Index folder, or URL of a database. Default: RUN/index")] = None,
    partial: Annotated[
        bool,
        typer.Option("--partial", help="Search without segments or servers that are missing."),
    ] = False,
    sheet: Annotated[Path | None, typer.Option(help="Also draw the hits to this .png.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines instead of a table.")] = False,
    ef_search: Annotated[
        int | None,
        typer.Option(help="Approximate search in PostgreSQL: candidates in its HNSW index, 1 to 1000."),
    ] = None,
    recall: Annotated[
        bool, typer.Option("--recall", help="With --ef-search: also search exactly, and print the recall.")
    ] = False,
    queries: Annotated[
        Path | None,
        typer.Option(help="A .parquet of many queries: code, text, image (paths), or id (of indexed items)."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="With --queries: the .parquet of hits to write.")] = None,
    download: DownloadOption = False,
) -> None:
    """Search by text, image or file of queries at any length."""
    from multibit.search.names import INDEX
    from multibit.search.remote.urls import is_url

    if (query is None) == (queries is None):
        raise ConfigError("need one of QUERY and --queries.", option="query", hint="Give a text, an image or a file.")
    folder = run / INDEX if index is None or is_url(index) else Path(index)
    place = index if index is not None and is_url(index) else folder
    if ef_search is None:
        refuse_unused(ctx, "without --ef-search", "recall")
    elif place == folder:
        hint = "Leave it out, or name a database that has an HNSW index with --index."
        raise ConfigError("a local index is searched exactly only.", option="ef_search", hint=hint)
    measured = _measured() if recall else None
    asked = _Asked(
        place, folder, kind, modality, bits, k, max_distance, where, field, partial, download, ef_search, measured
    )
    if queries is not None:
        refuse_unused(ctx, "with --queries", "relaxed", "sheet", "as_json")
        _search_file(queries, run, asked, out)
    else:
        refuse_unused(ctx, "without --queries", "out")
        _search_one(str(query), run, asked, relaxed, sheet, as_json)


class _Asked(NamedTuple):
    """Options of every search.

    Attributes:
        place: index folder or URL. folder: that image paths are relative to. recall: where it is measured.
    """

    place: Path | str
    folder: Path
    kind: Modality | None
    modality: Modality | None
    bits: int | None
    k: int
    max_distance: int | None
    where: list[str] | None
    fields: list[str] | None
    partial: bool
    download: bool
    ef_search: int | None = None
    recall: Recall | None = None

    @property
    def candidates(self) -> dict[str, Any]:
        """The argument of an approximate search, which only an index in a database takes."""
        return {} if self.ef_search is None else {"ef_search": self.ef_search}


def _search_one(query: str, run: Path, asked: _Asked, relaxed: bool, sheet: Path | None, as_json: bool) -> None:
    """Print the hits of one query."""
    from multibit.report.hits import hits_table
    from multibit.search.names import located_hits

    _require_query(query)
    if relaxed and asked.max_distance is not None:
        raise ConfigError(
            "cannot be combined with --relaxed, which ranks by score.", option="max_distance", hint="Give one of them."
        )
    image = Path(query) if _is_image(query, asked.kind) else None
    if sheet is not None:
        _require_sheet(sheet, image)
    searched: Modality = asked.modality or ("text" if image else "image")
    remote = asked.place != asked.folder
    plain = not (image or relaxed or sheet or asked.where or asked.fields or asked.partial or remote)
    found = _search_portable(query, run, asked, searched) if plain else None
    labels: frozenset[str] = frozenset()
    if found is None:
        result, labels = _search_index(query, image, run, asked, searched, relaxed, with_labels=sheet is not None)
        found = result.bits, result.hits()
    length, hits = found[0], located_hits(found[1], asked.folder)
    measure = "score" if relaxed else "distance"
    if as_json:
        for hit in hits:
            row = {"rank": hit.rank, "id": hit.id, measure: getattr(hit, measure), "bits": hit.bits}
            marked = {} if asked.ef_search is None else {"exact": False}
            echo(json.dumps({**row, **marked, **hit.payload}, ensure_ascii=False, default=str))
    else:
        show(hits_table(hits, searched, length, measure, fields=asked.fields, exact=asked.ef_search is None))
    _show_recall(asked, err=as_json)
    if sheet is not None:
        _draw(sheet, query if image is None else image.name, image, searched, length, hits, labels)
        echo(f"Wrote {sheet}", err=as_json)  # keep standard output free of anything but JSON lines


def _require_query(query: str) -> None:
    """Refuse a query without anything to search for, and one that is not text."""
    from multibit.texts import is_blank

    if is_blank(query):
        raise ConfigError("is empty.", option="query", hint="Give a text or the path of an image.")
    try:
        query.encode()
    except UnicodeEncodeError:
        raise ConfigError("is not text in UTF-8.", option="query", hint="Give it in UTF-8.") from None


def _search_portable(query: str, run: Path, asked: _Asked, searched: Modality) -> tuple[int, list[Hit]] | None:
    """The code length and the hits of a text by a portable model; None where there is none."""
    from multibit.portable.search import search_text

    found = search_text(
        run, query, asked.k, asked.bits, searched=searched, indices=asked.folder, max_distance=asked.max_distance
    )
    if found is not None and not found[1]:
        echo(f"Note: {_too_far(asked.max_distance)}", err=True)
    return found


def _search_index(
    query: str, image: Path | None, run: Path, asked: _Asked, searched: Modality, relaxed: bool, with_labels: bool
) -> tuple[SearchResult, frozenset[str]]:
    """The result of one query, and the labels of its item if asked for; notes what was not searched, or not found."""
    from multibit.codes import Codes
    from multibit.indices import open_index
    from multibit.pipeline import open_run
    from multibit.queries import encode_image

    loaded = open_run(run)
    found = open_index(loaded, asked.place, searched, asked.bits, partial=asked.partial)
    download = asked.download
    values = (
        encode_image(loaded, image, asked.bits, download=download)
        if image
        else _encode_text(loaded, query, asked.bits, download)
    )
    where, fields = found.read_where(asked.where) if asked.where else None, asked.fields
    codes, limit = Codes.binarize(values), asked.max_distance
    if relaxed:
        result = found.search_relaxed(values, asked.k, asked.bits, where=where, fields=fields)
    else:
        result = found.search(
            codes, asked.k, asked.bits, max_distance=limit, where=where, fields=fields, **asked.candidates
        )
    if asked.recall is not None:
        asked.recall.add(result, found.search(codes, asked.k, asked.bits, max_distance=limit, where=where, fields=()))
    _note_lost(result.lost)
    if not result.hits():
        echo(f"Note: {_why_nothing(found, codes, where, limit, exact=result.exact)}", err=True)
    return result, _labels_of_query(found, codes, query, image) if with_labels else frozenset()


def _search_file(queries: Path, run: Path, asked: _Asked, out: Path | None) -> None:
    """Write the hits of all queries of a file."""
    from multibit.indices import open_index
    from multibit.paths import require_writable
    from multibit.pipeline import open_run
    from multibit.queries import read_queries
    from multibit.search.batches import QueryFile
    from multibit.search.results import require_free_names, write_hits

    if out is None:
        raise ConfigError("needed with --queries.", option="out", hint="Name the .parquet of hits to write.")
    require_ending(out, "out", ".parquet")
    require_writable(out, unlike=(queries,))
    fields, file, loaded = asked.fields or [], QueryFile.open(queries), open_run(run)
    require_free_names(fields)
    others: dict[Modality | None, Modality] = {"image": "text", "text": "image"}
    kind = file.modality(asked.kind, others.get(asked.modality))

    def opened(modality: Modality) -> Index | RemoteIndex:
        return open_index(loaded, asked.place, modality, asked.bits, partial=asked.partial)

    found = opened(asked.modality or others[kind])
    blocks = read_queries(loaded, file, asked.bits, stored=lambda: opened(kind), download=asked.download)
    lost: dict[Lost, None] = {}
    hits = write_hits(out, _noting(_results(found, blocks, asked, fields), lost), file.count)
    _note_lost(list(lost))
    echo(f"Wrote {out}: {counted(hits, 'hit', 'hits')} of {counted(file.count, 'query', 'queries')}")
    _show_recall(asked)


def _results(
    found: Index | RemoteIndex, blocks: Iterator[Queries], asked: _Asked, fields: Sequence[str]
) -> Iterator[SearchResult]:
    """The results of blocks of queries; the recall is measured on the way where it is asked for."""
    given: dict[str, Any] = {"k": asked.k, "bits": asked.bits, "max_distance": asked.max_distance}
    given["where"] = found.read_where(asked.where) if asked.where else None
    approximate = {**given, "fields": fields, **asked.candidates}
    if asked.recall is None:
        return found.search_batches(blocks, **approximate)
    blocks, again = tee(blocks)  # each block is encoded once
    results = found.search_batches(blocks, **approximate)
    return asked.recall.measured(results, found.search_batches(again, **given, fields=()))


def _noting(results: Iterator[SearchResult], lost: dict[Lost, None]) -> Iterator[SearchResult]:
    """The results, while what they lack is collected."""
    for result in results:
        lost.update(dict.fromkeys(result.lost))
        yield result


def _note_lost(lost: Sequence[Lost]) -> None:
    """Say what was not searched."""
    for each in lost:
        items = "" if each.items is None else f", {counted(each.items, 'item', 'items')}"
        echo(f"Note: {each.file} was not searched{items}: {each.problem}", err=True)


def _measured() -> Recall:
    from multibit.search.remote.approximate import Recall

    return Recall()


def _show_recall(asked: _Asked, err: bool = False) -> None:
    """Print the recall that was measured, if any."""
    found = asked.recall
    if found is None:
        return
    if not found.nearest:
        echo("Recall: the exact search found nothing either.", err=err)
        return
    echo(
        f"Recall with --ef-search {asked.ef_search}: {found.value:.4f} ({found.found:,} of the {found.nearest:,} "
        f"nearest items of {counted(found.queries, 'query', 'queries')})",
        err=err,
    )


def _is_image(query: str, kind: Modality | None) -> bool:
    """Whether the query is an image: as told, or because it names a file or ends like an image file."""
    if kind is not None:
        return kind == "image"
    try:
        is_file, is_folder = Path(query).is_file(), Path(query).is_dir()
        ending = Path(query).suffix.lower()
    except (OSError, ValueError):  # a text can be too long for a path
        return False
    if is_folder:
        hint = "Give the path of an image; to search for these words: --as text."
        raise ConfigError(f"{query} is a folder.", option="query", hint=hint)
    if is_file:
        return True
    if not ending:
        return False
    from PIL import Image  # slow to import

    return ending in Image.registered_extensions()


def _encode_text(run: Any, text: str, bits: int | None, download: bool) -> NDArray[np.float32]:
    """The relaxed code of a text; what the encoder cannot read is printed."""
    import warnings

    from multibit.errors import QueryNote
    from multibit.queries import encode_text

    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always", QueryNote)
        values = encode_text(run, text, bits, download=download)
    for each in notes:
        echo(f"Note: {each.message}", err=True)
    return values


def _why_nothing(
    index: Index | RemoteIndex,
    codes: Codes,
    conditions: dict[str, Any] | None,
    max_distance: int | None,
    *,
    exact: bool,
) -> str:
    """Why a search has no hit."""
    if not len(index):
        return "the index is empty."
    if not exact:
        return "the approximate search found nothing. Search without --ef-search to know whether there is something."
    if conditions is not None and not index.search(codes, 1, codes.bits, where=conditions).hits():
        return f"none of {counted(len(index), 'item', 'items')} meets the conditions of --where."
    return _too_far(max_distance, " that meets --where" if conditions is not None else "")


def _too_far(max_distance: int | None, meeting: str = "") -> str:
    return f"no item{meeting} lies within --max-distance {max_distance}."


def _labels_of_query(index: Index | RemoteIndex, codes: Codes, query: str, image: Path | None) -> frozenset[str]:
    """The labels of the indexed item whose image or text the query is; none if no item has it."""
    name, values = ("text", [query]) if image is None else ("image", [str(image), str(image.resolve())])
    if name not in index.fields:
        return frozenset()
    found = index.search(codes, 1, codes.bits, where={name: {"$in": values}}).hits()
    return frozenset(str(label) for hit in found for label in hit.payload.get("labels") or ())


def _require_sheet(sheet: Path, image: Path | None) -> None:
    """Refuse a sheet that cannot be drawn, before the search."""
    from multibit.paths import require_writable
    from multibit.report.sheet import require_sheet_target

    require_ending(sheet, "sheet", ".png", ".PNG")
    require_writable(sheet, unlike=(image,))
    require_sheet_target(sheet)


def _draw(
    sheet: Path, title: str, image: Path | None, searched: Modality, bits: int, hits: list[Hit], labels: frozenset[str]
) -> None:
    """Draw the hits; print which images and which characters are missing."""
    from multibit.report.sheet import Search, contact_sheet

    shown = [hit.payload.get("image") for hit in hits] if searched == "image" else []
    gone = [path for path in shown if path and not Path(path).is_file()]
    if gone:
        echo(
            f"Note: images that are not where the index says: {len(gone)} of {len(hits)}, such as {gone[0]}; their "
            "frames are empty. Run `multibit features` and `multibit index` again where the images are now.",
            err=True,
        )
    missing = contact_sheet([Search(title, labels, image, {bits: hits}, show=searched)], sheet)
    if missing:
        few = "".join(sorted(missing)[:8])
        echo(
            f"Note: no installed font has {counted(len(missing), 'character', 'characters')} of the sheet, such as "
            f"{few}. Install a font of their script, such as one of the Noto fonts.",
            err=True,
        )

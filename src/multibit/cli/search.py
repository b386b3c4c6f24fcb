"""The verbs about indices and search."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from multibit.cli.options import (
    DownloadOption,
    EngineName,
    Items,
    Modality,
    OptionalFeatures,
    RunArgument,
    echo,
    refuse_unused,
    require_ending,
    show,
)
from multibit.errors import ConfigError, DataError, MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from multibit.codes import Codes
    from multibit.search import Hit, Index, SearchResult
    from multibit.search.segments import Lost


def index(
    ctx: typer.Context,
    run: RunArgument,
    features: OptionalFeatures = None,
    items: Annotated[Items, typer.Option(help="Index all items, or the database of the run's split.")] = Items.all,
    update: Annotated[
        bool, typer.Option("--update", help="Add items to the existing index; known ids are replaced.")
    ] = False,
    remove: Annotated[list[str] | None, typer.Option(help="Remove this id, and do nothing else. Repeatable.")] = None,
    compact: Annotated[
        bool, typer.Option("--compact", help="Join the segments of the existing index, and do nothing else.")
    ] = False,
    engine: Annotated[
        EngineName, typer.Option(help="Search engine; lists are faster from about a million codes on.")
    ] = EngineName.exact,
    out: Annotated[Path | None, typer.Option(help="Index folder. Default: RUN/index")] = None,
) -> None:
    """Build or update a searchable index.

    One index per modality, and per length where the run has a code for each length. A running search is not disturbed,
    and a crash leaves either the old index or the new one.
    """
    from multibit.files import require_writable
    from multibit.folders import require_inside
    from multibit.pipeline import (
        INDEX,
        build_indices,
        index_names,
        index_path,
        open_features,
        open_run,
        require_own_features,
        update_indices,
        whole_run,
    )
    from multibit.search.storage import require_writable_index

    _require_one_task(ctx, {"remove": bool(remove), "compact": compact}, bool(update or features))
    if update:
        refuse_unused(ctx, "with --update, which keeps the engine of the index", "engine")
    loaded = open_run(run)
    folder = out or require_inside(run, INDEX, "out")
    paths = {name: index_path(folder, name) for name in index_names(loaded)}
    require_writable(folder, folder=True)
    for path in paths.values():
        require_writable_index(path, unlike=(features,))
    if remove or compact:
        built = _edit(paths, remove or [])
    else:
        store = open_features(loaded, features)
        rows = None
        if items is Items.database:
            whole = whole_run(loaded)
            require_own_features(whole, store)
            rows = whole.split.database
        if update:
            built = update_indices(loaded, store, folder, rows)
        else:
            built = build_indices(loaded, store, rows, engine=engine.value, folder=folder)
            for name, path in paths.items():
                built[name].save(path)
    for name, path in paths.items():
        echo(f"Wrote {path}: {len(built[name]):,} items")


def _require_one_task(ctx: typer.Context, tasks: Mapping[str, bool], other: bool) -> None:
    """Refuse options that have no effect next to one that does nothing else."""
    given = [name for name, is_given in tasks.items() if is_given]
    for name in given:
        if other or len(given) > 1:
            problem = "cannot be combined with --update, FEATURES, --remove or --compact."
            raise ConfigError(problem, option=name, hint="Run two commands.")
        refuse_unused(ctx, f"with --{name}, which does nothing else", "items", "engine")


def _edit(paths: Mapping[str, Path], removed: list[str]) -> dict[str, Index]:
    """Remove items, or join the segments where none is given."""
    from multibit.search import Index

    edited: dict[str, Index] = {}
    for name, path in paths.items():
        with Index.editing(path) as index:
            if removed:
                index.remove(removed)
            else:
                index.compact()
        edited[name] = index
    return edited


def merge(
    parts: Annotated[
        list[Path], typer.Argument(metavar="PARTS", help="Indices (.mbx) or Parquet files of one model, in order.")
    ],
    out: Annotated[Path, typer.Option(help="Index (.mbx) to write.")],
) -> None:
    """Merge indices into one."""
    from multibit.search import Index
    from multibit.search.exchange import import_index
    from multibit.search.storage import require_writable_index

    require_ending(out, "out", ".mbx")
    require_writable_index(out, unlike=parts)
    indices = [import_index(part) if part.suffix == ".parquet" else Index.load(part) for part in parts]
    merged = Index.merge(indices, [str(part) for part in parts])
    merged.save(out)
    echo(f"Wrote {out}: {len(merged):,} items")


def export(
    ctx: typer.Context,
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="An index (.mbx), or a run.")],
    out: Annotated[
        Path,
        typer.Option(
            help="File for an index: .parquet (everything), .npy (packed codes) or .faiss. New folder for a run."
        ),
    ],
    bits: Annotated[int | None, typer.Option(help="Code length of an index. Default: the full length.")] = None,
) -> None:
    """Export an index, or a run as a portable model.

    A portable model searches without torch: encoders and hash networks in ONNX, the tokenizer and a model card.
    """
    if (source / "run.json").exists():
        refuse_unused(ctx, "for a run, whose codes have all lengths", "bits")
        if out.suffix in (".parquet", ".npy", ".faiss"):
            raise DataError(
                f"a run is exported to a new folder; {out.suffix} is for an index.",
                file=source,
                hint=f"Name an index of it, such as {source / 'index' / 'image.mbx'}.",
            )
        _export_run(source, out)
        return
    from multibit.files import require_writable
    from multibit.folders import only_writer_of
    from multibit.search import Index
    from multibit.search.exchange import export_codes, export_index

    require_writable(out, unlike=(source,))
    ctx.with_resource(only_writer_of(out))
    found = Index.load(source)
    assert found.codes is not None  # an empty index is never saved
    if out.suffix == ".parquet":
        export_index(found, out, bits)
    else:
        export_codes(found.codes, out, bits)
    echo(f"Wrote {out}: {len(found):,} codes of {bits or found.bits} bits")


def _export_run(run: Path, out: Path) -> None:
    from multibit.files import require_writable
    from multibit.portable.export import export_run
    from multibit.runs import Run

    require_writable(out, folder=True)
    model = export_run(Run.load(run), out)
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    echo(f"Wrote {out}: {model.bits}-bit codes, {size / 1e6:.0f} MB, model {model.weights}")


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
    index: Annotated[Path | None, typer.Option(help="Index folder. Default: RUN/index")] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Search without segments of the index that are missing or corrupt.")
    ] = False,
    sheet: Annotated[Path | None, typer.Option(help="Also draw the hits to this .png.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines instead of a table.")] = False,
    queries: Annotated[
        Path | None,
        typer.Option(help="A .parquet of many queries: code, text, image (paths), or id (of indexed items)."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="With --queries: the .parquet of hits to write.")] = None,
    download: DownloadOption = False,
) -> None:
    """Search by text, image or file of queries at any length."""
    from multibit.search.names import INDEX

    if (query is None) == (queries is None):
        raise ConfigError("need one of QUERY and --queries.", option="query", hint="Give a text, an image or a file.")
    asked = _Asked(index or run / INDEX, kind, modality, bits, k, max_distance, where, field, partial, download)
    if queries is not None:
        refuse_unused(ctx, "with --queries", "relaxed", "sheet", "as_json")
        _search_file(queries, run, asked, out)
    else:
        refuse_unused(ctx, "without --queries", "out")
        _search_one(str(query), run, asked, relaxed, sheet, as_json)


class _Asked(NamedTuple):
    """Options of every search."""

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


def _search_one(query: str, run: Path, asked: _Asked, relaxed: bool, sheet: Path | None, as_json: bool) -> None:
    """Print the hits of one query."""
    from multibit.files import require_writable
    from multibit.report.hits import hits_table
    from multibit.search.names import located_hits

    if not query.strip():
        raise ConfigError("is empty.", option="query", hint="Give a text or the path of an image.")
    if not query.isprintable() and any("\ud800" <= each <= "\udfff" for each in query):
        raise ConfigError("is not text in UTF-8.", option="query", hint="Give a text in the encoding of the terminal.")
    if relaxed and asked.max_distance is not None:
        raise ConfigError(
            "cannot be combined with --relaxed, which ranks by score.", option="max_distance", hint="Give one of them."
        )
    image = Path(query) if _is_image(query, asked.kind) else None
    if sheet is not None:
        require_ending(sheet, "sheet", ".png", ".PNG")
        require_writable(sheet, unlike=(image,))
        _require_sheet(sheet)
    searched: Modality = asked.modality or ("text" if image else "image")
    plain = not (image or relaxed or sheet or asked.where or asked.fields or asked.partial)
    found = _search_portable(query, run, asked, searched) if plain else None
    labels: frozenset[str] = frozenset()
    if found is None:
        result, labels = _search_index(query, image, run, asked, searched, relaxed, with_labels=sheet is not None)
        found = result.bits, result.hits()
    hits, measure = located_hits(found[1], asked.folder), "score" if relaxed else "distance"
    length = found[0]
    if as_json:
        for hit in hits:
            row = {"rank": hit.rank, "id": hit.id, measure: getattr(hit, measure), "bits": hit.bits, **hit.payload}
            echo(json.dumps(row, ensure_ascii=False, default=str))
    else:
        show(hits_table(hits, searched, length, measure))
    if sheet is not None:
        shown = [hit.payload.get("image") for hit in hits] if searched == "image" else []
        gone = [path for path in shown if path and not Path(path).is_file()]
        if gone:
            echo(
                f"Note: {len(gone)} of {len(hits)} images are not where the index says, such as {gone[0]}; their "
                "frames are empty. Run `multibit features` and `multibit index` again where the images are now.",
                err=True,
            )
        _draw(sheet, query if image is None else image.name, image, searched, length, hits, labels)
        echo(f"Wrote {sheet}", err=as_json)  # keep standard output free of anything but JSON lines


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
    from multibit.pipeline import encode_image, open_index, open_run

    loaded = open_run(run)
    found = open_index(loaded, asked.folder, searched, asked.bits, partial=asked.partial)
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
        result = found.search(codes, asked.k, asked.bits, max_distance=limit, where=where, fields=fields)
    _note_lost(result.lost)
    if not result.hits():
        echo(f"Note: {_why_nothing(found, codes, where, limit)}", err=True)
    return result, _labels_of_query(found, codes, query, image) if with_labels else frozenset()


def _search_file(queries: Path, run: Path, asked: _Asked, out: Path | None) -> None:
    """Write the hits of all queries of a file."""
    from multibit.files import require_writable
    from multibit.pipeline import open_index, open_run, read_queries
    from multibit.search.batches import QueryFile, require_free_names, write_hits

    if out is None:
        raise ConfigError("needed with --queries.", option="out", hint="Name the .parquet of hits to write.")
    require_ending(out, "out", ".parquet")
    require_writable(out, unlike=(queries,))
    fields, file, loaded = asked.fields or [], QueryFile.open(queries), open_run(run)
    require_free_names(fields)
    others: dict[Modality | None, Modality] = {"image": "text", "text": "image"}
    kind = file.modality(asked.kind, others.get(asked.modality))

    def opened(modality: Modality) -> Index:
        return open_index(loaded, asked.folder, modality, asked.bits, partial=asked.partial)

    found = opened(asked.modality or others[kind])
    results = found.search_batches(
        read_queries(loaded, file, asked.bits, stored=lambda: opened(kind)),
        asked.k,
        asked.bits,
        max_distance=asked.max_distance,
        where=found.read_where(asked.where) if asked.where else None,
        fields=fields,
    )
    hits = write_hits(out, results, file.count)
    _note_lost(found.lost)
    echo(f"Wrote {out}: {hits:,} hits of {file.count:,} queries")


def _note_lost(lost: Sequence[Lost]) -> None:
    """Say what was not searched."""
    for each in lost:
        echo(f"Note: {each.file} was not searched, {each.items:,} items: {each.problem}", err=True)


def duplicates(
    ctx: typer.Context,
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="A run folder, or an index (.mbx).")],
    radius: Annotated[int, typer.Option(help="Largest number of bits in which two near-duplicates differ.")],
    features: OptionalFeatures = None,
    bits: Annotated[int | None, typer.Option(help="Code length. Default: the full length.")] = None,
    modality: Annotated[
        Modality, typer.Option("--in", help="Modality whose codes are compared. An index has only one.")
    ] = "image",
    out: Annotated[
        Path | None, typer.Option(help="The .parquet to write. Default: RUN/image-duplicates.parquet and the like.")
    ] = None,
) -> None:
    """Find groups of near-duplicates by their codes.

    Exact, among all pairs: two items are in one group if their codes differ in at most RADIUS bits, directly or through
    others. Writes group, id, distance to the first item of the group and metadata, and an HTML page of the largest
    groups with their images and texts next to it.
    """
    from multibit.files import require_writable
    from multibit.pipeline import duplicates_of_run, open_features
    from multibit.report.duplicates import duplicates_table, write_duplicates_page
    from multibit.runs import Run, is_run
    from multibit.search import Index
    from multibit.search.duplicates import find_duplicates

    of_run = is_run(source)
    if not of_run and source.suffix != ".mbx":
        raise DataError("not a run folder or an index (.mbx).", file=source)
    if not of_run:
        refuse_unused(ctx, "with an index, which has the codes of one modality", "features", "modality")
    name = modality if of_run else source.stem
    target = out or (source if of_run else source.parent) / f"{name}-duplicates.parquet"
    page = target.with_suffix(".html")
    require_ending(target, "out", ".parquet")
    for path in (target, page):
        require_writable(path, unlike=(source, features))
    if of_run:
        loaded = Run.load(source)
        found = duplicates_of_run(loaded, open_features(loaded, features), modality, radius, bits)
    else:
        found = find_duplicates(Index.open(source), radius, bits)
    show(duplicates_table(found))
    if radius >= found.found.bits:
        echo(f"Note: no two codes of {found.found.bits} bits differ in more, so all items are one group.", err=True)
    found.save(target)
    echo(f"Wrote {target}: {len(found.ids):,} items in {len(found):,} groups")
    try:
        write_duplicates_page(found, str(source), page)
        echo(f"Wrote {page}: open it in a browser")
    except MissingExtraError as missing:
        echo(f"No page: {missing}")


def _is_image(query: str, kind: Modality | None) -> bool:
    """Whether the query is an image: as told, or because it names a file or ends like an image file."""
    if kind is not None:
        return kind == "image"
    try:
        if Path(query).is_file():
            return True
        ending = Path(query).suffix.lower()
    except (OSError, ValueError):  # a text can be too long for a path
        return False
    if not ending:
        return False
    from PIL import Image  # slow to import

    return ending in Image.registered_extensions()


def _encode_text(run: Any, text: str, bits: int | None, download: bool) -> NDArray[np.float32]:
    """The relaxed code of a text; what the encoder cannot read is printed."""
    import warnings

    from multibit.errors import QueryNote
    from multibit.pipeline import encode_text

    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always", QueryNote)
        values = encode_text(run, text, bits, download=download)
    for each in notes:
        echo(f"Note: {each.message}", err=True)
    return values


def _why_nothing(index: Index, codes: Codes, conditions: dict[str, Any] | None, max_distance: int | None) -> str:
    """Why a search has no hit."""
    if not len(index):
        return "the index is empty."
    if conditions is not None and not index.search(codes, 1, codes.bits, where=conditions).hits():
        return f"none of the {len(index):,} items meets the conditions of --where."
    return _too_far(max_distance, " that meets --where" if conditions is not None else "")


def _too_far(max_distance: int | None, meeting: str = "") -> str:
    return f"no item{meeting} lies within --max-distance {max_distance}."


def _labels_of_query(index: Index, codes: Codes, query: str, image: Path | None) -> frozenset[str]:
    """The labels of the indexed item whose image or text the query is; none if no item has it."""
    name, values = ("text", [query]) if image is None else ("image", [str(image), str(image.resolve())])
    if name not in index.fields:
        return frozenset()
    found = index.search(codes, 1, codes.bits, where={name: {"$in": values}}).hits()
    return frozenset(str(label) for hit in found for label in hit.payload.get("labels") or ())


def _require_sheet(path: Path) -> None:
    from multibit.report.sheet import require_sheet_target

    require_sheet_target(path)


def _draw(
    sheet: Path, title: str, image: Path | None, searched: Modality, bits: int, hits: list[Hit], labels: frozenset[str]
) -> None:
    from multibit.report.sheet import Search, contact_sheet

    missing = contact_sheet([Search(title, labels, image, {bits: hits}, show=searched)], sheet)
    if missing:
        few = "".join(sorted(missing)[:8])
        echo(
            f"Note: no installed font has {len(missing)} characters of the sheet, such as {few}. Install a font of "
            "their script, such as one of the Noto fonts.",
            err=True,
        )

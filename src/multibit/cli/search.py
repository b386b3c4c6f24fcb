"""The verbs about indices and search."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
from multibit.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from multibit.search import Hit, Index


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
        require_own_features,
        update_indices,
    )
    from multibit.runs import Run
    from multibit.search.storage import require_writable_index

    _require_one_task(ctx, {"remove": bool(remove), "compact": compact}, bool(update or features))
    if update:
        refuse_unused(ctx, "with --update, which keeps the engine of the index", "engine")
    loaded = Run.load(run)
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
            require_own_features(loaded, store)
            rows = loaded.split.database
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
    index: Annotated[Path, typer.Argument(metavar="INDEX", help="An index (.mbx).")],
    out: Annotated[Path, typer.Option(help="File to write: .parquet (everything), .npy (packed codes) or .faiss.")],
    bits: Annotated[int | None, typer.Option(help="Code length. Default: the full length.")] = None,
) -> None:
    """Export an index to Parquet, or its codes to numpy or faiss."""
    from multibit.files import require_writable
    from multibit.folders import only_writer_of
    from multibit.search import Index
    from multibit.search.exchange import export_codes, export_index

    require_writable(out, unlike=(index,))
    ctx.with_resource(only_writer_of(out))
    found = Index.load(index)
    assert found.codes is not None  # an empty index is never saved
    if out.suffix == ".parquet":
        export_index(found, out, bits)
    else:
        export_codes(found.codes, out, bits)
    echo(f"Wrote {out}: {len(found):,} codes of {bits or found.bits} bits")


def search(
    run: RunArgument,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="A text, or the path of an image.")],
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
    relaxed: Annotated[
        bool, typer.Option("--relaxed", help="Rank by the real values of the query: a score that breaks ties.")
    ] = False,
    index: Annotated[Path | None, typer.Option(help="Index folder. Default: RUN/index")] = None,
    sheet: Annotated[Path | None, typer.Option(help="Also draw the hits to this .png.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines instead of a table.")] = False,
    download: DownloadOption = False,
) -> None:
    """Search by text or image at any code length."""
    from multibit.codes import Codes
    from multibit.files import require_writable
    from multibit.pipeline import INDEX, encode_image, encode_text, located_hits, open_index
    from multibit.report.tables import hits_table
    from multibit.runs import Run

    if relaxed and max_distance is not None:
        raise ConfigError(
            "cannot be combined with --relaxed, which ranks by score.", option="max_distance", hint="Give one of them."
        )
    image = Path(query) if _is_image(query, kind) else None
    if sheet is not None:
        require_ending(sheet, "sheet", ".png", ".PNG")
        require_writable(sheet, unlike=(image,))
    loaded = Run.load(run)
    searched: Modality = modality or ("text" if image else "image")
    folder = index or run / INDEX
    found = open_index(loaded, folder, searched, bits)
    values = (
        encode_image(loaded, image, bits, download=download)
        if image
        else encode_text(loaded, query, bits, download=download)
    )
    conditions = found.read_where(where) if where else None
    if relaxed:
        result = found.search_relaxed(values, k, bits, where=conditions)
    else:
        result = found.search(Codes.binarize(values), k, bits, max_distance=max_distance, where=conditions)
    hits, measure = located_hits(result.hits(), folder), "score" if relaxed else "distance"
    if as_json:
        for hit in hits:
            row = {"rank": hit.rank, "id": hit.id, measure: getattr(hit, measure), "bits": hit.bits, **hit.payload}
            echo(json.dumps(row, ensure_ascii=False, default=str))
    else:
        show(hits_table(hits, searched, result.bits, measure))
    if sheet is not None:
        shown = [hit.payload.get("image") for hit in hits] if searched == "image" else []
        gone = [path for path in shown if path and not Path(path).is_file()]
        if gone:
            echo(
                f"Note: {len(gone)} of {len(hits)} images are not where the index says, such as {gone[0]}; their "
                "frames are empty. Run `multibit features` and `multibit index` again where the images are now.",
                err=True,
            )
        _draw(sheet, query, image, searched, result.bits, hits)
        echo(f"Wrote {sheet}", err=as_json)  # keep standard output free of anything but JSON lines


def _is_image(query: str, kind: Modality | None) -> bool:
    """Whether the query is an image: as told, or because it names a file or ends like an image file."""
    if kind is not None:
        return kind == "image"
    from PIL import Image

    endings = Image.registered_extensions()
    try:
        return Path(query).suffix.lower() in endings or Path(query).is_file()
    except (OSError, ValueError):  # a text can be too long for a path
        return False


def _draw(sheet: Path, query: str, image: Path | None, searched: Modality, bits: int, hits: list[Hit]) -> None:
    from multibit.report.sheet import Search, contact_sheet

    contact_sheet([Search(query, frozenset(), image, {bits: hits}, show=searched)], sheet)

"""The verbs about indices and search."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from multibit.cli.options import (
    EngineName,
    Items,
    Modality,
    OptionalFeatures,
    RunArgument,
    echo,
    pairs_in_rounds,
    refuse_unused,
    require_ending,
    show,
)
from multibit.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from multibit.search import Hit, Index
    from multibit.search.columns import Id


def index(
    ctx: typer.Context,
    run: RunArgument,
    features: OptionalFeatures = None,
    items: Annotated[Items, typer.Option(help="Index all items, or the database of the run's split.")] = Items.all,
    update: Annotated[
        bool, typer.Option("--update", help="Add items to the existing index; known ids are replaced.")
    ] = False,
    remove: Annotated[list[str] | None, typer.Option(help="Remove this id, and do nothing else. Repeatable.")] = None,
    engine: Annotated[
        EngineName, typer.Option(help="Search engine; lists are faster from about a million codes on.")
    ] = EngineName.exact,
    out: Annotated[Path | None, typer.Option(help="Index folder. Default: RUN/index")] = None,
) -> None:
    """Build or update a searchable index.

    One file per modality, and per length where the run has a code for each length. A running search is not disturbed,
    and a crash leaves either the old index or the new one.
    """
    from multibit.files import require_writable
    from multibit.pipeline import (
        build_indices,
        index_names,
        index_path,
        open_features,
        require_own_features,
        update_indices,
    )
    from multibit.runs import Run

    if remove and (update or features):
        raise ConfigError("cannot be combined with --update or FEATURES.", option="remove", hint="Run two commands.")
    if remove:
        refuse_unused(ctx, "with --remove, which only removes items", "items", "engine")
    if update:
        refuse_unused(ctx, "with --update, which keeps the engine of the index", "engine")
    loaded = Run.load(run)
    folder = out or run / "index"
    paths = {name: index_path(folder, name) for name in index_names(loaded)}
    require_writable(folder, folder=True)
    for path in paths.values():
        require_writable(path, unlike=(features,))
    if remove:
        built = _remove(paths, remove)
    else:
        store = open_features(loaded, features)
        rows = None
        if items is Items.database:
            require_own_features(loaded, store)
            rows = loaded.split.database
        if update:
            built = update_indices(loaded, store, folder, rows)
        else:
            built = build_indices(loaded, store, rows, engine=engine.value)
            for name, path in paths.items():
                built[name].save(path)
    for name, path in paths.items():
        echo(f"Wrote {path}: {len(built[name]):,} items")


def _remove(paths: Mapping[str, Path], ids: list[str]) -> dict[str, Index]:
    from multibit.search import Index

    edited: dict[str, Index] = {}
    for name, path in paths.items():
        with Index.editing(path) as index:
            index.remove(ids)
        edited[name] = index
    return edited


def merge(
    parts: Annotated[list[Path], typer.Argument(metavar="PARTS", help="Index files (.mbx) of one model, in order.")],
    out: Annotated[Path, typer.Option(help="Index file (.mbx) to write.")],
) -> None:
    """Merge index files into one."""
    from multibit.files import require_writable
    from multibit.search import Index

    require_ending(out, "out", ".mbx")
    require_writable(out, unlike=parts)
    merged = Index.merge([Index.load(part) for part in parts], [str(part) for part in parts])
    merged.save(out)
    echo(f"Wrote {out}: {len(merged):,} items")


def export(
    index: Annotated[Path, typer.Argument(metavar="INDEX", help="An index file (.mbx).")],
    out: Annotated[Path, typer.Option(help="File to write: .npy (packed codes) or .faiss (binary flat index).")],
    bits: Annotated[int | None, typer.Option(help="Code length. Default: the full length.")] = None,
) -> None:
    """Export the codes of an index to numpy or faiss."""
    from multibit.files import require_writable
    from multibit.search import Index
    from multibit.search.exchange import export_codes

    require_writable(out, unlike=(index,))
    found = Index.load(index)
    assert found.codes is not None  # an empty index is never saved
    export_codes(found.codes, out, bits)
    echo(f"Wrote {out}: {len(found):,} codes of {bits or found.codes.bits} bits")


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
        list[str] | None, typer.Option(help="FIELD=VALUE that a hit must have, e.g. labels=dog. Repeatable.")
    ] = None,
    relaxed: Annotated[
        bool, typer.Option("--relaxed", help="Rank by the real values of the query: a score that breaks ties.")
    ] = False,
    index: Annotated[Path | None, typer.Option(help="Index folder. Default: RUN/index")] = None,
    sheet: Annotated[Path | None, typer.Option(help="Also draw the hits to this .png.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines instead of a table.")] = False,
) -> None:
    """Search by text or image at any code length."""
    from multibit.codes import Codes
    from multibit.files import require_writable
    from multibit.pipeline import encode_image, encode_text, open_index
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
    found = open_index(loaded, index or run / "index", searched, bits)
    values = encode_image(loaded, image, bits) if image else encode_text(loaded, query, bits)
    first, *more = pairs_in_rounds(where, "where")
    conditions = found.payloads.read_conditions(first) or None
    among = _among(found, more)
    if relaxed:
        result = found.search_relaxed(values, k, bits, among=among, where=conditions)
    else:
        codes = Codes.binarize(values)
        result = found.search(codes, k, bits, max_distance=max_distance, among=among, where=conditions)
    hits, measure = result.hits(), "score" if relaxed else "distance"
    if as_json:
        for hit in hits:
            row = {"rank": hit.rank, "id": hit.id, measure: getattr(hit, measure), "bits": hit.bits, **hit.payload}
            echo(json.dumps(row, ensure_ascii=False))
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


def _among(index: Index, conditions: list[dict[str, str]]) -> list[Id] | None:
    """Ids of the items that meet all of several conditions; None without any."""
    if not conditions:
        return None
    masks = [index.payloads.matching(index.payloads.read_conditions(each)) for each in conditions]
    return [index.ids[row] for row, wanted in enumerate(map(all, zip(*masks, strict=True))) if wanted]


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

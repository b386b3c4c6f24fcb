"""Verbs about indices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from multibit.cli.options import (
    EngineName,
    Items,
    Modality,
    OptionalFeatures,
    QueryKind,
    RunArgument,
    pairs,
    refuse_unused,
    stdout,
)
from multibit.errors import ConfigError, DataError, MismatchError

if TYPE_CHECKING:
    from multibit.runs import Run
    from multibit.search import Hit, Index


def index(
    ctx: typer.Context,
    run: RunArgument,
    features: OptionalFeatures = None,
    items: Annotated[Items, typer.Option(help="All items, or only the database of the run's split.")] = Items.all,
    update: Annotated[
        bool, typer.Option("--update", help="Add to the index that is there; known ids are replaced.")
    ] = False,
    remove: Annotated[
        list[str] | None, typer.Option(help="Only take this id out of the index; may be repeated.")
    ] = None,
    engine: Annotated[EngineName, typer.Option(help="How to search; lists pay from about a million codes on.")] = (
        EngineName.exact
    ),
    out: Annotated[Path | None, typer.Option(help="Index folder; RUN/index when omitted.")] = None,
) -> None:
    """Encode items into a searchable index, or update one.

    One file per modality. Readers are never disturbed, and a crash leaves the old index or the new one.
    """
    from multibit.files import require_writable
    from multibit.runs import Run
    from multibit.search import Index

    if remove and (update or features):
        raise ConfigError("--remove only takes items out: give it without --update and without features.")
    if remove:
        refuse_unused(ctx, "with --remove, which only takes items out", "items", "engine")
    if update:
        refuse_unused(ctx, "with --update: the index keeps its engine", "engine")
    loaded = Run.load(run)
    folder = out or run / "index"
    paths = {modality: folder / f"{modality.value}.mbx" for modality in Modality}
    require_writable(folder, folder=True)
    for path in paths.values():
        require_writable(path, unlike=(features,))
    console = stdout()
    for modality, path in paths.items():
        if remove:
            with Index.editing(path) as built:
                built.remove(remove)
        else:
            store = loaded.open_features(features)
            if items is Items.database:
                loaded.require_own(store)
            rows = loaded.split.database if items is Items.database else None
            if update:
                with Index.editing(path) as built:
                    loaded.index_items(built, store, modality.value, rows)
            else:
                built = Index(loaded.record["model"], engine.value, modality.value)
                loaded.index_items(built, store, modality.value, rows)
                built.save(path)
        console.print(f"Wrote {path}: {len(built):,} items", soft_wrap=True)


def merge(
    parts: Annotated[list[Path], typer.Argument(help="Index files (.mbx) of one model, in order.")],
    out: Annotated[Path, typer.Option(help="The index file to write.")],
) -> None:
    """Join indices that were built in parts."""
    from multibit.files import require_writable
    from multibit.search import Index

    if out.suffix != ".mbx":
        raise ConfigError(f"--out {out}: must end in .mbx.")
    require_writable(out, unlike=parts)
    merged = Index.merge([Index.load(part) for part in parts], [str(part) for part in parts])
    merged.save(out)
    stdout().print(f"Wrote {out}: {len(merged):,} items", soft_wrap=True)


def export(
    index: Annotated[Path, typer.Argument(help="An index file (.mbx).")],
    out: Annotated[Path, typer.Option(help="The .npy (packed codes) or .faiss (binary flat index) file to write.")],
    bits: Annotated[int | None, typer.Option(help="Code length, 1 to the full length (default).")] = None,
) -> None:
    """Write the codes of an index for another tool."""
    from multibit.files import require_writable
    from multibit.search import Index
    from multibit.search.exchange import export_codes

    require_writable(out, unlike=(index,))
    found = Index.load(index)
    assert found.codes is not None  # an empty index is never saved
    export_codes(found.codes, out, bits)
    stdout().print(f"Wrote {out}: {len(found):,} codes of {bits or found.codes.bits} bits", soft_wrap=True)


def search(
    run: RunArgument,
    query: Annotated[str, typer.Argument(help="A text, or the path of a picture.")],
    bits: Annotated[int | None, typer.Option(help="Code length to search at, 1 to the full length (default).")] = None,
    k: Annotated[int, typer.Option("-k", help="Number of hits.")] = 10,
    kind: Annotated[QueryKind | None, typer.Option("--as", help="How to read the query; guessed when omitted.")] = None,
    modality: Annotated[
        Modality | None, typer.Option("--in", help="Search among pictures or texts; the other side when omitted.")
    ] = None,
    max_distance: Annotated[int | None, typer.Option(help="Only items that differ in at most this many bits.")] = None,
    where: Annotated[
        list[str] | None, typer.Option(help="FIELD=VALUE that the item must have, e.g. labels=dog.")
    ] = None,
    relaxed: Annotated[
        bool, typer.Option("--relaxed", help="Keep the query's real values: splits ties, larger score is nearer.")
    ] = False,
    index: Annotated[Path | None, typer.Option(help="Index folder; RUN/index when omitted.")] = None,
    sheet: Annotated[Path | None, typer.Option(help="Also draw the hits into this PNG.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines instead of a table.")] = False,
) -> None:
    """Find the nearest items to a text or a picture, at any code length."""
    from multibit.codes import Codes
    from multibit.files import require_writable
    from multibit.runs import Run

    if relaxed and max_distance is not None:
        raise ConfigError("--relaxed ranks by score, so --max-distance does not apply; give one of them.")
    picture = Path(query) if _is_picture(query, kind) else None
    if sheet is not None:
        if sheet.suffix.lower() != ".png":
            raise ConfigError(f"--sheet {sheet}: must end in .png.")
        require_writable(sheet, unlike=(picture,))
    loaded = Run.load(run)
    searched = modality.value if modality else ("text" if picture else "image")
    found = _open_index(loaded, index or run / "index", searched)
    values = loaded.encode_picture(picture) if picture else loaded.encode_text(query)
    conditions = found.payloads.read_conditions(pairs(where, "--where")) or None
    if relaxed:
        result = found.search_relaxed(values, k, bits, where=conditions)
    else:
        result = found.search(Codes.from_signs(values), k, bits, max_distance=max_distance, where=conditions)
    hits, measure = result.hits(), "score" if relaxed else "distance"
    if as_json:
        for hit in hits:
            row = {"rank": hit.rank, "id": hit.id, measure: hit.distance, "bits": hit.bits, **hit.payload}
            typer.echo(json.dumps(row, ensure_ascii=False))
    else:
        stdout().print(_hits_table(hits, searched, result.bits, measure))
    if sheet is not None:
        _draw(sheet, query, picture, searched, result.bits, hits)
        typer.echo(f"Wrote {sheet}", err=as_json)  # JSON lines stay alone on standard output


def _is_picture(query: str, kind: QueryKind | None) -> bool:
    """A query is a picture when said so, or when it names a file or ends like a picture file."""
    if kind is not None:
        return kind is QueryKind.picture
    from PIL import Image

    endings = Image.registered_extensions()
    try:
        return Path(query).suffix.lower() in endings or Path(query).is_file()
    except (OSError, ValueError):  # a text can be too long for a path
        return False


def _open_index(run: Run, folder: Path, modality: str) -> Index:
    from multibit.search import Index

    path = folder / f"{modality}.mbx"
    if not path.exists():
        raise DataError(f"{path}: no index there. Build one with: multibit index {run.folder}")
    found = Index.load(path)
    found.require_model(run.model.fingerprint())
    if found.modality not in ("", modality):
        raise MismatchError(f"{path}: holds {found.modality}s, not {modality}s. Give the file its own name back.")
    return found


def _hits_table(hits: list[Hit], searched: str, bits: int, measure: str) -> Any:
    from multibit.report import hits_table

    return hits_table(hits, searched, bits, measure).rich()


def _draw(sheet: Path, query: str, picture: Path | None, searched: str, bits: int, hits: list[Hit]) -> None:
    from multibit.report import Search, contact_sheet

    contact_sheet([Search(query, frozenset(), picture, {bits: hits}, show=searched)], sheet)

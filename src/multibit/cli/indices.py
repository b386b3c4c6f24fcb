"""The verbs about indices: build, change, join, and find near-duplicates."""

from __future__ import annotations

import re
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
    refuse_memory,
    refuse_unused,
    require_ending,
    show,
)
from multibit.errors import ConfigError, DataError, MissingExtraError, counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from multibit.features import FeatureStore
    from multibit.pipeline import AnyRun
    from multibit.search import Index


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
    reshard: Annotated[
        int | None, typer.Option(help="Write the indices as this many shards in the index folder, and do nothing else.")
    ] = None,
    from_shards: Annotated[
        int | None, typer.Option(help="Number of the shards to write anew with --reshard. Default: the indices.")
    ] = None,
    codes: Annotated[
        str | None, typer.Option(help="Build the indices from the codes in this URL, as `multibit encode` wrote them.")
    ] = None,
    engine: Annotated[
        EngineName, typer.Option(help="Search engine; lists are faster from about a million codes on.")
    ] = EngineName.exact,
    out: Annotated[Path | None, typer.Option(help="Index folder. Default: RUN/index")] = None,
    to: Annotated[
        str | None, typer.Option(help="Load it into a database instead: clickhouse://... or postgresql://...")
    ] = None,
) -> None:
    """Build or update a searchable index.

    One index per modality, and per length where the run has a code for each length. A running search is not disturbed,
    and a crash leaves either the old index or the new one. A load into a database that was interrupted is resumed.
    """
    if to is not None:
        refuse_unused(
            ctx, "with --to, which loads the features",
            "update", "remove", "compact", "reshard", "from_shards", "codes", "engine", "out",
        )  # fmt: skip
        _load(run, features, items, to)
        return
    from multibit.folders import require_inside
    from multibit.indices import build_indices, index_names, update_indices
    from multibit.paths import require_writable
    from multibit.pipeline import open_run
    from multibit.search.names import INDEX, index_path
    from multibit.search.storage import require_writable_index
    from multibit.search.together import save_together

    refuse_memory(codes=codes)
    tasks = {"remove": bool(remove), "compact": compact, "reshard": reshard is not None}
    _require_one_task(ctx, tasks, {"update": update, "features": features is not None})
    if update:
        refuse_unused(ctx, "with --update, which keeps the engine of the index", "engine")
    loaded = open_run(run)
    folder = out or require_inside(run, INDEX, "out")
    paths = {name: index_path(folder, name) for name in index_names(loaded)}
    if reshard is not None:
        _reshard(folder, list(paths), reshard, from_shards, loaded.record.model)
        return
    refuse_unused(ctx, "without --reshard", "from_shards")
    require_writable(folder, folder=True)
    for path in paths.values():
        require_writable_index(path, unlike=(features,))
    if codes is not None:
        refuse_unused(ctx, "with --codes, which has the items", "features", "items", "update", "remove", "compact")
        _index_codes(loaded, codes, folder, engine.value)
        return
    if remove or compact:
        built = _edit(paths, remove or [])
    else:
        store, rows = _items_of(loaded, features, items)
        if update:
            built = update_indices(loaded, store, folder, rows)
        else:
            built = build_indices(loaded, store, rows, engine=engine.value, folder=folder)
            save_together({path: built[name] for name, path in paths.items()})
    for name, path in paths.items():
        echo(f"Wrote {path}: {counted(len(built[name]), 'item', 'items')}")


def _reshard(folder: Path, names: list[str], count: int, source: int | None, model: str) -> None:
    """Write the indices, or the shards of another number, as shards."""
    from multibit.search.shards import reshard, set_folder

    again = set_folder(folder, count).exists()
    written = reshard(folder, names, count, source, model=model)
    echo(f"{'Replaced' if again else 'Wrote'} {written}: {counted(count, 'shard', 'shards')}")


def _items_of(run: AnyRun, features: Path | None, items: Items) -> tuple[FeatureStore, NDArray[np.int64] | None]:
    """The features of a run, and the rows to index; None for all."""
    from multibit.pipeline import open_features, require_own_features, whole_run

    store = open_features(run, features)
    if items is Items.all:
        return store, None
    whole = whole_run(run)
    require_own_features(whole, store)
    return store, whole.split.database


def _load(run: Path, features: Path | None, items: Items, url: str) -> None:
    """Load the indices of a run into a database."""
    from multibit.indices import load_indices
    from multibit.pipeline import open_run
    from multibit.search.remote.urls import read_url

    read_url(url)  # refuses an invalid one before the features are read
    loaded = open_run(run)
    store, rows = _items_of(loaded, features, items)
    for index in load_indices(loaded, store, url, rows).values():
        echo(f"Loaded {index.store.place}: {counted(len(index), 'item', 'items')}")


def _index_codes(run: AnyRun, source: str, folder: Path, engine: str) -> None:
    from multibit.bulk import index_parts
    from multibit.search.names import index_path

    for name, size in index_parts(run, source, folder, engine=engine).items():
        echo(f"Wrote {index_path(folder, name)}: {counted(size, 'item', 'items')}")


def _require_one_task(ctx: typer.Context, tasks: Mapping[str, bool], additions: Mapping[str, bool]) -> None:
    """Refuse options that have no effect next to one that does nothing else.

    Args:
        ctx: of the verb. tasks: whether each option that does nothing else is given. additions: the same of others.
    """
    given = [name for name, is_given in {**tasks, **additions}.items() if is_given]
    for name in (each for each in given if each in tasks):
        if others := " and ".join(f"`{each}`" for each in given if each != name):
            hint = f"Leave out {others}, or run two commands."
            raise ConfigError("does nothing else, so it cannot be combined.", option=name, hint=hint)
        refuse_unused(ctx, f"with --{name}, which does nothing else", "items", "engine")


def _edit(paths: Mapping[str, Path], removed: list[str]) -> dict[str, Index]:
    """Remove items, or join the segments where none is given."""
    from multibit.search import Index
    from multibit.search.together import writing_together

    indices = {name: Index.open(path) for name, path in paths.items()}
    with writing_together(list(indices.values())) as writers:
        if removed:
            _remove(dict(zip(paths, writers, strict=True)), removed)
        else:
            for index in writers:
                index.compact()
    return indices


def _remove(indices: Mapping[str, Index], typed: Sequence[str]) -> None:
    """Remove items from the indices that have them: an item may have a text only, or an image.

    Raises:
        DataError: an id is in none of them; then nothing is removed.
    """
    from multibit.search.columns import other_kind

    own = {name: _read_ids(index.id_kind, typed) for name, index in indices.items()}
    known = {name: index.contains(own[name]) for name, index in indices.items()}
    for number, each in enumerate(typed):
        if not any(found[number] for found in known.values()):
            sizes = ", ".join(f"{name} ({counted(len(index), 'item', 'items')})" for name, index in indices.items())
            first = next(iter(indices))
            hint = other_kind(own[first][number], indices[first].id_kind)
            raise DataError(f"{each!r} is in none of the indices: {sizes}.", option="ids", hint=hint)
    for name, index in indices.items():
        if known[name].any():
            index.remove([each for each, found in zip(own[name], known[name], strict=True) if found])


def _read_ids(kind: str, typed: Sequence[str]) -> list[str | int]:
    """Ids as typed -> ids of the kind that an index has."""
    is_number = kind != "string"
    return [int(each) if is_number and re.fullmatch(r"-?[0-9]{1,19}", each) else each for each in typed]


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
    echo(f"Wrote {out}: {counted(len(merged), 'item', 'items')}")


def duplicates(
    ctx: typer.Context,
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="A run folder, portable model, or index (.mbx).")],
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
    from multibit.paths import require_writable
    from multibit.pipeline import duplicates_of_run, is_model, open_features, open_run
    from multibit.report.duplicates import duplicates_table, write_duplicates_page
    from multibit.search import Index
    from multibit.search.duplicates import find_duplicates

    of_run = is_model(source)
    if not of_run and source.suffix != ".mbx":
        raise DataError("not a run folder, portable model or index (.mbx).", file=source)
    if not of_run:
        refuse_unused(ctx, "with an index, which has the codes of one modality", "features", "modality")
    name = modality if of_run else source.stem
    target = out or (source if of_run else source.parent) / f"{name}-duplicates.parquet"
    page = target.with_suffix(".html")
    require_ending(target, "out", ".parquet")
    for path in (target, page):
        require_writable(path, unlike=(source, features))
    if of_run:
        loaded = open_run(source)
        found = duplicates_of_run(loaded, open_features(loaded, features), modality, radius, bits)
    else:
        found = find_duplicates(Index.open(source), radius, bits)
    show(duplicates_table(found))
    if radius >= found.found.bits:
        echo(f"Note: no two codes of {found.found.bits} bits differ in more, so all items are one group.", err=True)
    found.save(target)
    echo(f"Wrote {target}: {counted(len(found.ids), 'item', 'items')} in {counted(len(found), 'group', 'groups')}")
    try:
        write_duplicates_page(found, str(source), page)
        echo(f"Wrote {page}: open it in a browser")
    except MissingExtraError as missing:
        echo(f"No page: {missing}")

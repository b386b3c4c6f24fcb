"""The verbs from data to features."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from multibit.cli.options import (
    MAX_ROWS,
    Cluster,
    ClusterOption,
    ColumnOption,
    DataOrUrlArgument,
    DemoMethodOption,
    Device,
    DeviceOption,
    Dtype,
    ImagesOption,
    Kind,
    LabelNamesOption,
    Runtime,
    SeedOption,
    SeparatorOption,
    SetOption,
    SpreadsheetSafeOption,
    UrlDownloadOption,
    describe_method,
    echo,
    lines,
    pairs,
    read_config,
    read_method,
    refuse_memory,
    refuse_unused,
    require_ending,
    show,
    stdout,
)
from multibit.errors import ConfigError, counted

if TYPE_CHECKING:
    from multibit.data import PairedDataset
    from multibit.features import FeatureStore
    from multibit.features.base import ImageEncoder, TextEncoder


COMMON = 0.5
"""The largest mAP of ranking by common labels that `label` accepts without a warning."""


def demo(
    out: Annotated[Path, typer.Option(help="Output folder.")] = Path("multibit-demo"),
    method: DemoMethodOption = "multibit-plus",
    settings: SetOption = None,
    seed: SeedOption = None,
    device: DeviceOption = Device.cpu,
) -> None:
    """Run the full pipeline on the included sample.

    4,769 real pictures with texts and labels; about three minutes on two cores.
    """
    from multibit.demo import run_demo
    from multibit.hashing.code_model import check_device
    from multibit.paths import require_writable

    check_device(device.value)
    require_writable(out, folder=True)
    chosen = read_method(method, None, None)
    config = read_config(chosen, None, None, settings, seed)
    echo(describe_method(chosen))
    run_demo(out, config, stdout(), method=method, device=device.value)


def import_(
    ctx: typer.Context,
    kind: Annotated[Kind, typer.Argument(metavar="KIND", help="Layout of the source, see above.")],
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="File or folder to read.")],
    out: Annotated[
        Path, typer.Option(help="A .csv, .jsonl, .parquet or .npz, or a folder for the .mat trio. Features: .npz.")
    ],
    images: Annotated[
        Path | None,
        typer.Option(help="Folder of the images; for webdataset and huggingface, where to write them (OUT-images)."),
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Option(
            "--map", help="FIELD=NAME of a key or column with another name, e.g. labels=category. Repeatable."
        ),
    ] = None,
    root: Annotated[
        list[str] | None, typer.Option(help="OLD=NEW start of the image paths in .mat files. Repeatable.")
    ] = None,
    label_names: LabelNamesOption = None,
    separator: SeparatorOption = None,
    encoding: Annotated[
        str | None, typer.Option(help="Encoding of text files without a byte order mark. Default: UTF-8.")
    ] = None,
    prefix_ids: Annotated[
        bool, typer.Option("--prefix-ids", help="Put the name of the split or shard in front of every id.")
    ] = False,
    spreadsheet_safe: SpreadsheetSafeOption = False,
) -> None:
    """Convert common dataset layouts into a manifest or .npz.

    Kinds: manifest; npz, as written by this verb; mat: index, caption, label; mat-features: I_tr, T_tr, L_tr, ... or
    XAll, YAll, LAll; mirflickr, coco, nuswide, iapr: the official downloads; folders: one folder per label; pairs:
    a.jpg with a.txt; webdataset: tar shards; huggingface: saved to disk.
    """
    from multibit.data.export import require_dataset_target, write_arrays_npz, write_dataset
    from multibit.data.sources import UNPACKED, read
    from multibit.folders import only_writer_of
    from multibit.paths import remove_left_over, require_writable

    require_dataset_target(out, features=kind is Kind["mat-features"], spreadsheet_safe=spreadsheet_safe)
    require_writable(out, folder=not out.suffix, unlike=(source, label_names))
    if kind.value in UNPACKED:
        images = images or out.with_name(f"{out.stem}-images")
        require_writable(images, folder=True)
    ctx.with_resource(only_writer_of(out))
    if kind.value in UNPACKED and images is not None:
        for folder, *_ in os.walk(images):
            remove_left_over(Path(folder))
    options = {
        "images": images,
        "columns" if kind is Kind.manifest else "names": pairs(names, "names") or None,
        "root": pairs(root, "root") or None,
        "label_names": lines(label_names),
        "separator": separator,
        "encoding": encoding,
        "prefix_ids": prefix_ids or None,
    }
    with _noting():
        data = read(kind.value, source, **options)
    if isinstance(data, dict):
        write_arrays_npz(data, out)
        what = ", ".join(f"{name} {data[name].shape}" for name in ("image", "text", "labels"))
        split = f"; own split: {len(data['train']):,} train, {len(data['query']):,} query" if "train" in data else ""
        echo(f"Wrote {out}: {what}{split}")
    else:
        write_dataset(data, out, spreadsheet_safe=spreadsheet_safe)
        echo(f"Wrote {out}: {_sizes(data)}, data {data.fingerprint()}")


def _sizes(data: PairedDataset) -> str:
    """The numbers of items and labels."""
    return f"{counted(len(data), 'item', 'items')}, {counted(len(data.label_names), 'label', 'labels')}"


@contextlib.contextmanager
def _noting() -> Iterator[None]:
    """Print the notes of the block, also when an error follows: what was left out may explain it."""
    import warnings

    from multibit.data.sources import DataNote

    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always", DataNote)
        try:
            yield
        finally:
            for each in notes:
                echo(f"Note: {each.message}")


def label(
    ctx: typer.Context,
    data: Annotated[Path, typer.Argument(metavar="DATA", help="A manifest or an .npz dataset.")],
    out: Annotated[Path, typer.Option(help="A .csv, .jsonl, .parquet or .npz, or a folder for the .mat trio.")],
    vocabulary: Annotated[
        Path | None, typer.Option(help="File with the labels, one per line. Default: frequent words of the texts.")
    ] = None,
    min_share: Annotated[float, typer.Option(help="Least share of items with a word, to make it a label.")] = 0.002,
    max_share: Annotated[float, typer.Option(help="Largest share of items with a word.")] = 0.5,
    count: Annotated[int, typer.Option(min=1, help="Largest number of labels.")] = 100,
    plurals: Annotated[
        bool, typer.Option("--plurals", help="Take English plurals for the names of --vocabulary, too.")
    ] = False,
    image_encoder: Annotated[
        str | None, typer.Option(help="Label by image content instead: image side of a joint encoder.")
    ] = None,
    text_encoder: Annotated[str | None, typer.Option(help="Text side of the joint encoder.")] = None,
    images: ImagesOption = None,
    column: ColumnOption = None,
    separator: SeparatorOption = None,
    spreadsheet_safe: SpreadsheetSafeOption = False,
    device: DeviceOption = Device.cpu,
) -> None:
    """Create labels for a dataset that has none.

    A label is a word or phrase in the texts of an item or, with encoders, a name that matches its image.
    """
    from multibit.data.export import require_dataset_target, write_dataset
    from multibit.data.labelling import label_from_texts
    from multibit.evaluation.floors import common_labels_floor
    from multibit.features.load import load_image_encoder, load_text_encoder
    from multibit.features.zero_shot import label_zero_shot
    from multibit.folders import only_writer_of
    from multibit.inventory import open_data
    from multibit.paths import require_writable

    if vocabulary is not None:
        refuse_unused(ctx, "with --vocabulary, which names the labels", "min_share", "max_share", "count")
    else:
        refuse_unused(ctx, "without --vocabulary: plurals are ignored then anyway", "plurals")
    if image_encoder:
        refuse_unused(ctx, "with encoders, which see no texts", "plurals")
    require_dataset_target(out, spreadsheet_safe=spreadsheet_safe)
    require_writable(out, folder=not out.suffix, unlike=(data, vocabulary))
    ctx.with_resource(only_writer_of(out))
    with _noting():
        dataset, _ = open_data(data, images=images, columns=pairs(column, "column"), separator=separator)
    names = lines(vocabulary)
    if (image_encoder is None) != (text_encoder is None) or (image_encoder and names is None):
        raise ConfigError(
            "labelling by image content needs both encoders and a vocabulary.",
            hint="Give `image_encoder`, `text_encoder` and `vocabulary` together.",
        )
    if image_encoder and text_encoder and names is not None:
        sides = load_image_encoder(image_encoder, device.value), load_text_encoder(text_encoder, device.value)
        labelled = label_zero_shot(dataset, names, *sides)
    else:
        shares = {"min_share": min_share, "max_share": max_share}
        labelled = label_from_texts(dataset, names, **shares, count=count, plurals=plurals)
    write_dataset(labelled, out, spreadsheet_safe=spreadsheet_safe)
    without = int((labelled.label_rows.per_item() == 0).sum())
    echo(f"Wrote {out}: {_sizes(labelled)}, {counted(without, 'item', 'items')} without one")
    if (floor := common_labels_floor(labelled.label_rows)) > COMMON:
        echo(
            f"Warning: ranking the items with the most common labels first already reaches {100 * floor:.0f} % mAP, so "
            "scores on these labels say little. Decrease --max-share, or name rarer labels in --vocabulary.",
            err=True,
        )


def check(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="A manifest, an .npz dataset, or features.")],
    split: Annotated[
        str | None, typer.Option(help="As for train. Overlaps are reported, not refused. Default: the paper's rule.")
    ] = None,
    images: ImagesOption = None,
    column: ColumnOption = None,
    separator: SeparatorOption = None,
    label_names: LabelNamesOption = None,
    html: Annotated[Path | None, typer.Option(help="Also write all tables to this HTML page.")] = None,
    groups: Annotated[
        Path | None, typer.Option(help="Also write groups of near-duplicate images, for `multibit train --groups`.")
    ] = None,
) -> None:
    """Report problems in a dataset before training on it.

    Unreadable and near-duplicate images, empty texts, label frequencies, isolated labels, items in more than one part
    of the split; features that are not finite, or all zero.
    """
    from dataclasses import replace

    from multibit.data.checking import check_dataset
    from multibit.data.split_files import choose_roles
    from multibit.features.faults import feature_faults
    from multibit.inventory import open_data
    from multibit.paths import require_writable
    from multibit.pipeline import require_split_of
    from multibit.report.page import write_check_page

    inputs = (data, Path(split) if split else None)
    if html is not None:
        require_ending(html, "html", ".html", ".htm")
        require_writable(html, unlike=inputs)
    if groups is not None:
        require_ending(groups, "groups", ".csv")
        require_writable(groups, unlike=inputs)
    options: dict[str, Any] = {"images": images, "columns": pairs(column, "column"), "separator": separator}
    with _noting():
        dataset, store = open_data(data, **options, label_names=lines(label_names))
    if groups is not None and not any(dataset.images):
        raise ConfigError(f"no effect, because {data} has no images.", option="groups", hint="Leave it out.")
    require_split_of(split, dataset)
    faults = () if store is None else feature_faults(store)
    found = check_dataset(dataset, choose_roles(dataset.ids, split, source=data), faults)
    for table in found.tables:
        more = len(table.rows) - MAX_ROWS
        note = f"... and {more} more; --html writes all." if more > 0 else table.note
        show(replace(table, rows=table.rows[:MAX_ROWS], note=note))
    for name, reason in found.unreadable[:MAX_ROWS]:
        echo(f"cannot be read: {name}: {reason}")
    if html is not None:
        write_check_page(found, str(data), html, dataset)
        echo(f"Wrote {html}: open it in a browser")
    if groups is not None:
        found.write_groups(groups)
        echo(f"Wrote {groups}: {counted(len(found.groups), 'group', 'groups')} of near-duplicate images")


def features(
    ctx: typer.Context,
    data: DataOrUrlArgument,
    out: Annotated[
        str, typer.Option(help="Folder of the feature store, or URL of a folder of parts where DATA is a URL.")
    ],
    images: Annotated[
        str | None, typer.Option(help="Folder of the images, or its URL. Default: the folder of the manifest.")
    ] = None,
    column: ColumnOption = None,
    separator: SeparatorOption = None,
    label_names: LabelNamesOption = None,
    image_encoder: Annotated[
        str,
        typer.Option(help="A packaged encoder, the folder of a CLIP-like or portable one, or owner/name on the hub."),
    ] = "efficientnet-lite0",
    text_encoder: Annotated[str, typer.Option(help="As --image-encoder.")] = "all-minilm-l6-v2",
    prompt: Annotated[str, typer.Option(help="Input of the text encoder; {} stands for the text.")] = "{}",
    dtype: Annotated[Dtype, typer.Option(help="Precision of encoders and features; float16 for CLIP-like models.")] = (
        Dtype.float32
    ),
    batch_size: Annotated[int | None, typer.Option(min=1, help="Images or texts per batch.")] = None,
    runtime: Annotated[
        Runtime | None, typer.Option(help="Library that runs the encoders. Default: as begun, else the faster.")
    ] = None,
    ready: Annotated[
        Path | None,
        typer.Option(help="Import vectors computed elsewhere: an .npz, or a folder of image.npy, text.npy, ids.npy."),
    ] = None,
    recipe: Annotated[str | None, typer.Option(help="Name for how the vectors of --ready were computed.")] = None,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Also keep the vectors of patches and words, for methods that read them.")
    ] = False,
    update: Annotated[bool, typer.Option("--update", help="Add new items to the store; retry skipped ones.")] = False,
    relabel: Annotated[
        bool, typer.Option("--relabel", help="Only give the items of the store the labels of DATA; encode nothing.")
    ] = False,
    engine: ClusterOption = Cluster.local,
    workers: Annotated[int, typer.Option(min=1, help="Threads that decode images, or Ray workers.")] = 2,
    device: DeviceOption = Device.cpu,
    download: UrlDownloadOption = False,
) -> None:
    """Encode the images and texts of a dataset, once.

    Unreadable images are skipped and listed. If interrupted, run the same command again: finished shards are kept.
    Parts that were written to a URL become a feature store by a command with that URL as DATA.
    """
    from multibit.data.manifest import read_manifest
    from multibit.data.objects import is_url
    from multibit.features.extract import begun_with, extract_features, replace_labels
    from multibit.features.load import load_image_encoder, load_text_encoder
    from multibit.hashing.code_model import check_device
    from multibit.paths import require_writable

    check_device(device.value)
    refuse_memory(data=data, out=out)
    folder = Path(out)
    reading: dict[str, Any] = {"images": images, "columns": pairs(column, "column"), "separator": separator or "|"}
    runtimes = dict.fromkeys(("image", "text"), runtime and runtime.value)

    def load(runtimes: Mapping[str, str | None] = runtimes) -> tuple[ImageEncoder, TextEncoder]:
        options: dict[str, Any] = {"dtype": dtype.value, "batch_size": batch_size}
        return (
            load_image_encoder(image_encoder, device.value, runtime=runtimes["image"], **options),
            load_text_encoder(text_encoder, device.value, prompt=prompt, runtime=runtimes["text"], **options),
        )

    if is_url(data):
        unused = ("label_names", "ready", "recipe", "tokens", "update", "relabel")
        refuse_unused(ctx, "with a URL, whose parts are encoded one by one", *unused)
        _features_of_url(data, out, reading, load, engine.value, workers, download=download)
        return
    refuse_unused(ctx, "without a URL as DATA", "download")
    if is_url(out):
        raise ConfigError(
            "is a URL, but DATA is not.", option="out", hint="Name the data by a URL, such as file:///data."
        )
    _require_no_ready(ready, update, tokens)
    if relabel:
        encoding = ("image_encoder", "text_encoder", "prompt", "dtype", "batch_size", "ready", "recipe", "tokens")
        refuse_unused(ctx, "with --relabel, which encodes nothing", *encoding, "update", "engine", "workers", "device")
    require_writable(folder, folder=True)
    with _noting():
        dataset = read_manifest(data, label_names=lines(label_names), **reading)
    if relabel:
        store = replace_labels(folder, dataset)
        echo(f"Relabelled {folder}: {_sizes(store.dataset)}")
        return
    if ready or recipe:
        _save_ready(dataset, ready, recipe, folder)
        return
    before = (folder / "store.json").exists()
    sides = load(begun_with(folder) if runtime is None else runtimes)
    with _noting():
        store = extract_features(
            dataset, *sides, folder, workers=workers, update=update, engine=engine.value, tokens=tokens
        )
    done = "Wrote" if not before else "Updated" if update else "Kept"
    echo(f"{done} {folder}: {counted(len(store), 'item', 'items')}, {len(store.skipped):,} skipped")
    _describe_store(store)


def _describe_store(store: FeatureStore) -> None:
    """Print what a store has besides features, and what it lacks."""
    from multibit.features.tokens import describe_tokens

    if store.tokens:
        echo(f"  tokens: {describe_tokens(store.token_shapes)}")
    if store.truncated:
        limit = store.recipe.text.text_limit
        echo(f"  truncated to {limit} tokens: {store.truncated:,} of {counted(len(store.text), 'text', 'texts')}")
    for name, reason in store.skipped:
        echo(f"  skipped {name}: {reason}")


def _require_no_ready(ready: Path | None, update: bool, tokens: bool) -> None:
    """Refuse what has no effect with vectors that were computed elsewhere."""
    if ready and update:
        raise ConfigError(
            "cannot be combined with --ready: vectors computed elsewhere are not added to a store.",
            option="update",
            hint="Put all vectors into one file and write a new store.",
        )
    if ready and tokens:
        raise ConfigError(
            "no effect with --ready: tokens are taken from its arrays.",
            option="tokens",
            hint="Leave it out; arrays image_tokens and text_tokens are kept.",
        )


def _features_of_url(
    data: str,
    out: str,
    reading: Mapping[str, Any],
    load: Callable[[], tuple[ImageEncoder, TextEncoder]],
    engine: str,
    workers: int,
    *,
    download: bool,
) -> None:
    """Encode data in a store part by part, or join parts that were encoded."""
    import shutil
    import tempfile

    from multibit.data.objects import is_url, joined, sizes_of
    from multibit.data.parts import Parts
    from multibit.features.parts import PLAN, extract_parts, join_parts
    from multibit.paths import require_writable

    folder = Path(out)
    if not is_url(out):
        require_writable(folder, folder=True)
    if sizes_of([joined(data, PLAN)]) != [-1]:
        if is_url(out):
            raise ConfigError("must be a folder of this machine, to join parts.", option="out")
        echo(f"Wrote {folder}: {counted(len(join_parts(data, folder)), 'item', 'items')}")
        return
    with tempfile.TemporaryDirectory() as temporary, _noting():
        parts = Parts.of(data, Path(temporary), **reading, download=download)
        parted = folder.absolute().with_name(f"{folder.name}-parts")
        target = out if is_url(out) else f"file://{parted}"
        count = extract_parts(parts, *load(), target, engine=engine, workers=workers)
    sizes = counted(len(parts.parts), "part", "parts"), counted(count, "item", "items")
    echo(f"Wrote {target}: {', '.join(sizes)} encoded now")
    if not is_url(out):
        echo(f"Wrote {folder}: {counted(len(join_parts(target, folder)), 'item', 'items')}")
        shutil.rmtree(parted)


def _save_ready(dataset: PairedDataset, ready: Path | None, recipe: str | None, out: Path) -> None:
    from multibit.features.ready import read_ready

    if not ready or not recipe:
        raise ConfigError(
            "vectors computed elsewhere need a name for how they were computed.",
            option="ready" if ready else "recipe",
            hint="Give `ready` and `recipe` together.",
        )
    store = read_ready(dataset, ready, recipe)
    store.require_finite()
    store.save(out)
    echo(f"Wrote {out}: {counted(len(store), 'item', 'items')}, {len(store.skipped):,} without a row in {ready}")

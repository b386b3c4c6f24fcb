"""Verbs from data to features."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from multibit.cli.options import (
    MAX_ROWS,
    Cluster,
    ClusterOption,
    ColumnOption,
    DataArgument,
    Device,
    DeviceOption,
    Dtype,
    ImagesOption,
    Kind,
    LabelNamesOption,
    SeedOption,
    SeparatorOption,
    SetOption,
    VariantOption,
    lines,
    pairs,
    read_config,
    refuse_unused,
    stdout,
)
from multibit.errors import ConfigError

if TYPE_CHECKING:
    from multibit.data import PairedDataset


def demo(
    out: Annotated[Path, typer.Option(help="Folder for everything that the demo makes.")] = Path("multibit-demo"),
    variant: VariantOption = "multibit-plus",
    settings: SetOption = None,
    seed: SeedOption = None,
    device: DeviceOption = Device.cpu,
) -> None:
    """Run the whole line on the real pictures that come with multibit."""
    from multibit.demo import run_demo
    from multibit.files import require_writable
    from multibit.hashing.variants import find_variant
    from multibit.training import check_device

    check_device(device.value)
    require_writable(out, folder=True)
    config = read_config(None, None, settings, seed, find_variant(variant).settings)
    run_demo(out, config, stdout(), device=device.value)


def import_(
    kind: Annotated[Kind, typer.Argument(help="What the source is, see above.")],
    source: Annotated[Path, typer.Argument(help="File or folder.")],
    out: Annotated[
        Path, typer.Option(help=".csv, .jsonl, .parquet or .npz; a folder for the .mat trio. Features: .npz.")
    ],
    images: Annotated[
        Path | None, typer.Option(help="Folder of the pictures; of tar shards: where they go, OUT-images by default.")
    ] = None,
    names: Annotated[
        list[str] | None, typer.Option("--map", help="OURS=THEIRS key or column, e.g. --map labels=category.")
    ] = None,
    root: Annotated[
        list[str] | None, typer.Option(help="OLD=NEW beginning of the picture paths in .mat files; may be repeated.")
    ] = None,
    label_names: LabelNamesOption = None,
    separator: Annotated[
        str | None, typer.Option(help="Between several labels or texts of one CSV cell; | when omitted.")
    ] = None,
) -> None:
    """Read data as people have it into a manifest, or into any other file of data.

    Kinds: manifest; npz, as this verb writes it; mat: index, caption, label; mat-features: I_tr, T_tr, L_tr, ... or
    XAll, YAll, LAll; mirflickr, coco, nuswide, iapr: as their authors give them; folders: one for each label; pairs:
    a.jpg with a.txt; webdataset: tar shards; huggingface: saved to disk.
    """
    import warnings

    from multibit.data.export import check_target, write_arrays_npz, write_dataset
    from multibit.data.sources import UNPACKED, DataNote, read
    from multibit.files import require_writable

    check_target(out, features=kind is Kind["mat-features"])
    require_writable(out, folder=not out.suffix, unlike=(source, label_names))
    if kind.value in UNPACKED:
        images = images or out.with_name(f"{out.stem}-images")
        require_writable(images, folder=True)
    options = {
        "images": images,
        "columns" if kind is Kind.manifest else "names": pairs(names, "--map") or None,
        "root": pairs(root, "--root") or None,
        "label_names": lines(label_names),
        "separator": separator,
    }
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always", DataNote)
        data = read(kind.value, source, **options)
    console = stdout()
    for each in notes:
        console.print(f"Note: {each.message}", markup=False, soft_wrap=True)
    if isinstance(data, dict):
        write_arrays_npz(data, out)
        what = ", ".join(f"{name} {data[name].shape}" for name in ("image", "text", "labels"))
        split = f"; its split: {len(data['train']):,} train, {len(data['query']):,} query" if "train" in data else ""
        console.print(f"Wrote {out}: {what}{split}", markup=False, soft_wrap=True)
    else:
        write_dataset(data, out)
        console.print(
            f"Wrote {out}: {len(data):,} items, {len(data.label_names)} labels, data {data.fingerprint()}",
            markup=False, soft_wrap=True,
        )  # fmt: skip


def label(
    ctx: typer.Context,
    data: Annotated[Path, typer.Argument(help="A manifest or an .npz data set.")],
    out: Annotated[Path, typer.Option(help="As of import: .csv, .jsonl, .parquet, .npz or a folder.")],
    vocabulary: Annotated[
        Path | None, typer.Option(help="File with the labels, one a line; frequent words of the texts when omitted.")
    ] = None,
    min_share: Annotated[float, typer.Option(help="Share of items that must have a word, to make it a label.")] = 0.002,
    max_share: Annotated[float, typer.Option(help="Share of items that may have a word.")] = 0.5,
    count: Annotated[int, typer.Option(min=1, help="Labels at most.")] = 100,
    image_encoder: Annotated[
        str | None, typer.Option(help="Look at the pictures instead: the picture side of a joint encoder.")
    ] = None,
    text_encoder: Annotated[str | None, typer.Option(help="Its text side.")] = None,
    images: ImagesOption = None,
    column: ColumnOption = None,
    device: DeviceOption = Device.cpu,
) -> None:
    """Make labels for data that has none, so that it can be trained on.

    A label is a word or two-word phrase that an item's texts hold; with encoders, what they see in its picture.
    """
    from multibit.data.encoders import load_picture_encoder, load_text_encoder
    from multibit.data.export import check_target, write_dataset
    from multibit.data.labelling import label_from_texts, label_zero_shot
    from multibit.files import require_writable
    from multibit.report.inventory import open_data

    if vocabulary is not None:
        refuse_unused(ctx, "with --vocabulary, which names the labels", "min_share", "max_share", "count")
    check_target(out)
    require_writable(out, folder=not out.suffix, unlike=(data, vocabulary))
    dataset, _ = open_data(data, images=images, columns=pairs(column, "--column"))
    names = lines(vocabulary)
    if (image_encoder is None) != (text_encoder is None) or (image_encoder and names is None):
        raise ConfigError("to look at pictures, give --image-encoder, --text-encoder and --vocabulary together.")
    if image_encoder and text_encoder and names is not None:
        sides = load_picture_encoder(image_encoder, device.value), load_text_encoder(text_encoder, device.value)
        labelled = label_zero_shot(dataset, names, *sides)
    else:
        labelled = label_from_texts(dataset, names, min_share=min_share, max_share=max_share, count=count)
    write_dataset(labelled, out)
    without = int((labelled.labels.sum(axis=1) == 0).sum())
    stdout().print(
        f"Wrote {out}: {len(labelled):,} items, {len(labelled.label_names)} labels, {without:,} items without one",
        markup=False, soft_wrap=True,
    )  # fmt: skip


def check(
    data: Annotated[Path, typer.Argument(help="A manifest, an .npz data set, or features.")],
    split: Annotated[
        str | None, typer.Option(help="As of train; that of the paper when omitted. Overlaps are shown, not refused.")
    ] = None,
    images: ImagesOption = None,
    column: ColumnOption = None,
    html: Annotated[Path | None, typer.Option(help="Also write all tables into this HTML page.")] = None,
    groups: Annotated[
        Path | None, typer.Option(help="Also write which pictures look alike: a .csv for train --groups.")
    ] = None,
) -> None:
    """Look for what spoils training or flatters its numbers.

    Unreadable and duplicate pictures, empty texts, label frequencies, isolated labels, leaks between the roles;
    features that are not finite, or zeros.
    """
    from dataclasses import replace

    from multibit.data.split_files import choose_roles
    from multibit.files import require_writable
    from multibit.report.check import check_dataset
    from multibit.report.inventory import open_data
    from multibit.runs import require_split_of

    inputs = (data, Path(split) if split else None)
    if html is not None:
        require_writable(html, unlike=inputs)
    if groups is not None:
        require_writable(groups, unlike=inputs)
        if html is not None and html.resolve() == groups.resolve():
            raise ConfigError(f"--html and --groups: both name {groups}. Choose another name for one of them.")
    dataset, store = open_data(data, images=images, columns=pairs(column, "--column"))
    if groups is not None and not any(dataset.images):
        raise ConfigError(f"--groups: {data} names no picture, so there are none that could look alike. Leave it out.")
    require_split_of(split, dataset)
    found = check_dataset(dataset, choose_roles(dataset.ids, split, source=data), store)
    console = stdout()
    for table in found.tables:
        more = len(table.rows) - MAX_ROWS
        note = f"... and {more} more; --html shows all." if more > 0 else table.note
        console.print(replace(table, rows=table.rows[:MAX_ROWS], note=note).rich())
    for name, reason in found.unreadable[:MAX_ROWS]:
        console.print(f"cannot be read: {name}: {reason}", markup=False)
    if html is not None:
        found.write_page(str(data), html)
        console.print(f"Wrote {html}: open it in a browser", markup=False)
    if groups is not None:
        found.write_groups(groups)
        console.print(f"Wrote {groups}: {len(found.groups):,} groups of pictures that look alike", markup=False)


def features(
    data: DataArgument,
    out: Annotated[Path, typer.Option(help="Folder of the new feature store.")],
    images: ImagesOption = None,
    column: ColumnOption = None,
    separator: SeparatorOption = "|",
    label_names: LabelNamesOption = None,
    image_encoder: Annotated[
        str, typer.Option(help="A packaged encoder, or a CLIP-like model: its folder, or owner/name on the hub.")
    ] = "efficientnet-lite0",
    text_encoder: Annotated[str, typer.Option(help="Likewise.")] = "all-minilm-l6-v2",
    prompt: Annotated[str, typer.Option(help="What the text encoder reads, {} being the text.")] = "{}",
    dtype: Annotated[Dtype, typer.Option(help="Of networks and features; float16 for CLIP-like models.")] = (
        Dtype.float32
    ),
    batch_size: Annotated[int | None, typer.Option(min=1, help="Pictures and texts at a time.")] = None,
    ready: Annotated[
        Path | None, typer.Option(help="Take vectors made elsewhere: an .npz or a folder with image, text, ids (.npy).")
    ] = None,
    recipe: Annotated[str | None, typer.Option(help="With --ready: a name for how they were made.")] = None,
    update: Annotated[
        bool, typer.Option("--update", help="Add the items that the store does not have yet; retry skipped ones.")
    ] = False,
    engine: ClusterOption = Cluster.local,
    workers: Annotated[int, typer.Option(min=1, help="Threads that decode pictures; workers of Ray.")] = 2,
    device: DeviceOption = Device.cpu,
) -> None:
    """Encode the pictures and texts of a data set, once.

    Unreadable pictures are skipped and listed. Interrupted? Run the same command again: finished shards are kept.
    """
    from multibit.data.encoders import load_picture_encoder, load_text_encoder
    from multibit.data.extract import extract_features
    from multibit.data.manifest import read_manifest
    from multibit.files import require_writable
    from multibit.training import check_device

    check_device(device.value)
    if ready and update:
        raise ConfigError(
            "--update adds items that are encoded here, not vectors made elsewhere (--ready). Put all those into one "
            "file and make a new store."
        )
    require_writable(out, folder=True)
    dataset = read_manifest(
        data, images=images, columns=pairs(column, "--column"), separator=separator, label_names=lines(label_names)
    )
    before = (out / "store.json").exists()
    if ready or recipe:
        _save_ready(dataset, ready, recipe, out)
        return
    options: dict[str, Any] = {"dtype": dtype.value, "batch_size": batch_size}
    pictures = load_picture_encoder(image_encoder, device.value, **options)
    texts = load_text_encoder(text_encoder, device.value, prompt=prompt, **options)
    store = extract_features(dataset, pictures, texts, out, workers=workers, update=update, engine=engine.value)
    console = stdout()
    done = "Wrote" if not before else "Updated" if update else "Kept"
    console.print(f"{done} {out}: {len(store):,} items, {len(store.skipped):,} skipped")
    if store.truncated:
        limit = store.recipe.text.text_limit
        console.print(f"  {store.truncated:,} of {len(store.text):,} texts are longer than the {limit} tokens read")
    for name, reason in store.skipped:
        console.print(f"  skipped {name}: {reason}", markup=False)


def _save_ready(dataset: PairedDataset, ready: Path | None, recipe: str | None, out: Path) -> None:
    from multibit.data.ready import read_ready

    if not ready or not recipe:
        raise ConfigError("give --ready and --recipe together: vectors made elsewhere need a name for how.")
    store = read_ready(dataset, ready, recipe)
    store.require_finite()
    store.save(out)
    stdout().print(f"Wrote {out}: {len(store):,} items, {len(store.skipped):,} without a row in {ready}")

"""The verbs about data: import, label, check; and the demo."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from multibit.cli.options import (
    MAX_ROWS,
    ColumnOption,
    DemoMethodOption,
    Device,
    DeviceOption,
    ImagesOption,
    Kind,
    LabelNamesOption,
    SeedOption,
    SeparatorOption,
    SetOption,
    SpreadsheetSafeOption,
    describe_method,
    echo,
    lines,
    pairs,
    read_config,
    read_method,
    refuse_unused,
    require_ending,
    show,
    stdout,
)
from multibit.errors import ConfigError, counted

if TYPE_CHECKING:
    from multibit.data import PairedDataset


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
    with noting():
        data = read(kind.value, source, **options)
    if isinstance(data, dict):
        write_arrays_npz(data, out)
        what = ", ".join(f"{name} {data[name].shape}" for name in ("image", "text", "labels"))
        split = f"; own split: {len(data['train']):,} train, {len(data['query']):,} query" if "train" in data else ""
        echo(f"Wrote {out}: {what}{split}")
    else:
        write_dataset(data, out, spreadsheet_safe=spreadsheet_safe)
        echo(f"Wrote {out}: {sizes(data)}, data {data.fingerprint()}")


def sizes(data: PairedDataset) -> str:
    """The numbers of items and labels."""
    return f"{counted(len(data), 'item', 'items')}, {counted(len(data.label_names), 'label', 'labels')}"


@contextlib.contextmanager
def noting() -> Iterator[None]:
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
    with noting():
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
    echo(f"Wrote {out}: {sizes(labelled)}, {counted(without, 'item', 'items')} without one")
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
    with noting():
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

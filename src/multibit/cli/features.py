"""The verb `features`: encode the images and texts of a dataset, once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from multibit.cli.data import noting, sizes
from multibit.cli.options import (
    Cluster,
    ClusterOption,
    ColumnOption,
    DataOrUrlArgument,
    Device,
    DeviceOption,
    Dtype,
    LabelNamesOption,
    Runtime,
    SeparatorOption,
    UrlDownloadOption,
    echo,
    lines,
    pairs,
    refuse_memory,
    refuse_unused,
)
from multibit.errors import ConfigError, counted

if TYPE_CHECKING:
    from multibit.data import PairedDataset
    from multibit.features import FeatureStore
    from multibit.features.base import ImageEncoder, TextEncoder


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
    from multibit.features.extract import extract_features, replace_labels
    from multibit.features.extraction import begun_with
    from multibit.hashing.code_model import check_device
    from multibit.paths import require_writable

    check_device(device.value)
    refuse_memory(data=data, out=out)
    folder = Path(out)
    reading: dict[str, Any] = {"images": images, "columns": pairs(column, "column"), "separator": separator or "|"}
    runtimes = dict.fromkeys(("image", "text"), runtime and runtime.value)

    load = partial(
        _load_encoders, image_encoder, text_encoder, device.value, prompt, dtype=dtype.value, batch_size=batch_size
    )
    if is_url(data):
        unused = ("label_names", "ready", "recipe", "tokens", "update", "relabel")
        refuse_unused(ctx, "with a URL, whose parts are encoded one by one", *unused)
        _features_of_url(data, out, reading, partial(load, runtimes), engine.value, workers, download=download)
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
    with noting():
        dataset = read_manifest(data, label_names=lines(label_names), **reading)
    if relabel:
        store = replace_labels(folder, dataset)
        echo(f"Relabelled {folder}: {sizes(store.dataset)}")
        return
    if ready or recipe:
        _save_ready(dataset, ready, recipe, folder)
        return
    before = (folder / "store.json").exists()
    sides = load(begun_with(folder) if runtime is None else runtimes)
    with noting():
        store = extract_features(
            dataset, *sides, folder, workers=workers, update=update, engine=engine.value, tokens=tokens
        )
    done = "Wrote" if not before else "Updated" if update else "Kept"
    echo(f"{done} {folder}: {counted(len(store), 'item', 'items')}, {len(store.skipped):,} skipped")
    _describe_store(store)


def _load_encoders(
    image_encoder: str, text_encoder: str, device: str, prompt: str, runtimes: Mapping[str, str | None], **options: Any
) -> tuple[ImageEncoder, TextEncoder]:
    """Both encoders, on the library of each that `runtimes` names by modality."""
    from multibit.features.load import load_image_encoder, load_text_encoder

    return (
        load_image_encoder(image_encoder, device, runtime=runtimes["image"], **options),
        load_text_encoder(text_encoder, device, prompt=prompt, runtime=runtimes["text"], **options),
    )


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
    with tempfile.TemporaryDirectory() as temporary, noting():
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

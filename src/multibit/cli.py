"""The command line: one verb per stage, no logic of its own."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from multibit import __version__
from multibit.errors import ConfigError, DataError, MultibitError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from multibit.config import Config
    from multibit.data import FeatureStore, PairedDataset
    from multibit.evaluation import Evaluation
    from multibit.runs import Run
    from multibit.search import Hit, Index


class Verbs(TyperGroup):
    """The verbs; errors that people can mend are sentences, not tracebacks."""

    def invoke(self, ctx: Any) -> Any:
        """Run the verb."""
        try:
            return super().invoke(ctx)
        except MultibitError as error:
            _fail(str(error), 1)
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            _fail(f"{where}{error.strerror or error}. Nothing that was there before is lost.", 1)
        except MemoryError:
            _fail("out of memory. Use fewer items at a time.", 1)
        except KeyboardInterrupt:
            _fail("interrupted. Run the same command again to go on from what was last saved.", 130)


app = typer.Typer(
    name="multibit",
    cls=Verbs,
    help=(
        "One nested binary code for image-text search.\n\n"
        "The usual order: features (encode pictures and texts), train, evaluate, index, search. "
        "Start with: multibit demo"
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Device(StrEnum):
    """Where networks run."""

    cpu = "cpu"
    cuda = "cuda"


Kind = StrEnum(
    "Kind",
    "manifest npz mat mat-features mirflickr coco nuswide iapr folders pairs webdataset huggingface",
)
"""Kinds of sources of data, as `multibit.data.sources.READERS` has them."""


class Dtype(StrEnum):
    """Precision of networks and features."""

    float32 = "float32"
    float16 = "float16"


class Extractor(StrEnum):
    """What runs an extraction."""

    local = "local"
    ray = "ray"


class Modality(StrEnum):
    """The two sides of a pair."""

    image = "image"
    text = "text"


class QueryKind(StrEnum):
    """How to read a query."""

    picture = "picture"
    text = "text"


class Items(StrEnum):
    """Which items to take."""

    all = "all"
    database = "database"


class EngineName(StrEnum):
    """Engines that an index file can ask for."""

    exact = "exact"
    lists = "lists"
    faiss = "faiss"
    reference = "reference"


MAX_ROWS = 20  # of a table on the terminal

DataArgument = Annotated[Path, typer.Argument(help="A .csv, .jsonl or .parquet: id, image, text or texts, labels.")]
FeaturesArgument = Annotated[Path, typer.Argument(help="A feature store folder, or an .npz with image, text, labels.")]
OptionalFeatures = Annotated[
    Path | None,
    typer.Argument(help="A feature store folder or .npz; the one trained on when omitted."),
]
RunArgument = Annotated[Path, typer.Argument(help="A run folder made by `multibit train`.")]
ImagesOption = Annotated[Path | None, typer.Option(help="Folder of the pictures; the manifest's own when omitted.")]
ColumnOption = Annotated[
    list[str] | None, typer.Option(help="FIELD=NAME when the manifest calls a field otherwise, e.g. image=file_name.")
]
SeparatorOption = Annotated[str, typer.Option(help="Between several labels or texts of one CSV cell.")]
LabelNamesOption = Annotated[
    Path | None, typer.Option(help="File with the allowed label names, one a line; all that occur when omitted.")
]
DeviceOption = Annotated[Device, typer.Option(help="Where networks run.")]
PresetOption = Annotated[
    str | None, typer.Option(help="Settings of the paper: default, mirflickr, coco, iapr, nuswide.")
]
ConfigOption = Annotated[Path | None, typer.Option(help="TOML file of settings, instead of a preset.")]
SetOption = Annotated[list[str] | None, typer.Option("--set", help="NAME=VALUE of any setting, e.g. --set epochs=30.")]
VariantOption = Annotated[str, typer.Option(help="The method or one of its ablations; `multibit variants` lists them.")]
SeedOption = Annotated[int | None, typer.Option(help="Seed of split, initial weights and batches.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"multibit {__version__}")
        raise typer.Exit


@app.callback()
def _multibit(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for everything that the demo makes.")] = Path("multibit-demo"),
    settings: SetOption = None,
    seed: SeedOption = None,
    device: DeviceOption = Device.cpu,
) -> None:
    """Run the whole line on the real pictures that come with multibit."""
    from multibit.demo import run_demo
    from multibit.runs import check_device

    check_device(device.value)
    run_demo(out, _config(None, None, settings, seed), _stdout(), device=device.value)


@app.command("import")
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
) -> None:
    """Read data as people have it into a manifest, or into any other file of data.

    Kinds: manifest; npz, as this verb writes it; mat: index, caption, label; mat-features: I_tr, T_tr, L_tr, ... or
    XAll, YAll, LAll; mirflickr, coco, nuswide, iapr: as their authors give them; folders: one for each label; pairs:
    a.jpg with a.txt; webdataset: tar shards; huggingface: saved to disk.
    """
    import warnings

    from multibit.data.export import check_target, write_arrays_npz, write_dataset
    from multibit.data.sources import UNPACKED, DataNote, read

    check_target(out, features=kind is Kind["mat-features"])
    if kind.value in UNPACKED:
        images = images or out.with_name(f"{out.stem}-images")
    options = {
        "images": images,
        "columns" if kind is Kind.manifest else "names": _pairs(names, "--map") or None,
        "root": _pairs(root, "--root") or None,
        "label_names": _lines(label_names),
    }
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always", DataNote)
        data = read(kind.value, source, **options)
    console = _stdout()
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


@app.command()
def label(
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
    from multibit.report.inventory import open_dataset

    check_target(out)
    dataset = open_dataset(data, images=images, columns=_pairs(column, "--column"))
    names = _lines(vocabulary)
    if (image_encoder is None) != (text_encoder is None) or (image_encoder and names is None):
        raise ConfigError("to look at pictures, give --image-encoder, --text-encoder and --vocabulary together.")
    if image_encoder and text_encoder and names is not None:
        sides = load_picture_encoder(image_encoder, device.value), load_text_encoder(text_encoder, device.value)
        labelled = label_zero_shot(dataset, names, *sides)
    else:
        labelled = label_from_texts(dataset, names, min_share=min_share, max_share=max_share, count=count)
    write_dataset(labelled, out)
    without = int((labelled.labels.sum(axis=1) == 0).sum())
    _stdout().print(
        f"Wrote {out}: {len(labelled):,} items, {len(labelled.label_names)} labels, {without:,} items without one",
        markup=False, soft_wrap=True,
    )  # fmt: skip


@app.command()
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

    Unreadable and duplicate pictures, empty texts, label frequencies, isolated labels, leaks between the roles.
    """
    from dataclasses import replace

    from multibit.data.split_files import choose_roles
    from multibit.report.check import check_dataset
    from multibit.report.inventory import open_dataset

    dataset = open_dataset(data, images=images, columns=_pairs(column, "--column"))
    found = check_dataset(dataset, choose_roles(dataset.ids, split, source=data))
    console = _stdout()
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


@app.command()
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
    engine: Annotated[
        Extractor, typer.Option(help="Where to encode: here, or on the machines of a Ray cluster (RAY_ADDRESS).")
    ] = Extractor.local,
    workers: Annotated[int, typer.Option(min=1, help="Threads that decode pictures; workers of Ray.")] = 2,
    device: DeviceOption = Device.cpu,
) -> None:
    """Encode the pictures and texts of a data set, once.

    Unreadable pictures are skipped and listed. Interrupted? Run the same command again: finished shards are kept.
    """
    from multibit.data.encoders import load_picture_encoder, load_text_encoder
    from multibit.data.extract import extract_features
    from multibit.data.manifest import read_manifest
    from multibit.runs import check_device

    check_device(device.value)
    dataset = read_manifest(
        data, images=images, columns=_pairs(column, "--column"), separator=separator, label_names=_lines(label_names)
    )
    before = (out / "store.json").exists()
    if ready or recipe:
        _save_ready(dataset, ready, recipe, out)
        return
    options: dict[str, Any] = {"dtype": dtype.value, "batch_size": batch_size}
    pictures = load_picture_encoder(image_encoder, device.value, **options)
    texts = load_text_encoder(text_encoder, device.value, prompt=prompt, **options)
    store = extract_features(dataset, pictures, texts, out, workers=workers, update=update, engine=engine.value)
    console = _stdout()
    done = "Wrote" if not before else "Updated" if update else "Kept"
    console.print(f"{done} {out}: {len(store):,} items, {len(store.skipped):,} skipped")
    if store.truncated:
        limit = store.recipe.text.text_limit
        console.print(f"  {store.truncated:,} of {len(store.text):,} texts are longer than the {limit} tokens read")
    for name, reason in store.skipped:
        console.print(f"  skipped {name}: {reason}", markup=False)


@app.command()
def train(
    features: FeaturesArgument,
    out: Annotated[Path, typer.Option(help="Run folder to make; an unfinished run in it goes on.")],
    variant: VariantOption = "full",
    preset: PresetOption = None,
    config: ConfigOption = None,
    settings: SetOption = None,
    seed: SeedOption = None,
    query: Annotated[int | None, typer.Option(help="Items that ask; 25 % up to 5,000 when omitted.")] = None,
    training: Annotated[int | None, typer.Option(help="Items to train on; 45 % up to 9,000 when omitted.")] = None,
    validation: Annotated[int | None, typer.Option(help="Items that select the epoch; 5 % up to 1,000.")] = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="A seed (the field: 1814, 3407, 1), or rows or ids of each role: .npz, .mat, .json, .txt folder, run. "
            "The features' own split or the paper's rule when omitted."
        ),
    ] = None,
    groups: Annotated[
        Path | None, typer.Option(help="Manifest with id and group: no group is on both sides of the split.")
    ] = None,
    device: DeviceOption = Device.cpu,
) -> None:
    """Train one model whose code is good at every length.

    It sees the training rows of a split; query and database items take no part. Interrupted?
    Run the same command again: it goes on where it was.
    """
    from multibit.data import FeatureStore
    from multibit.data.split_files import choose_split
    from multibit.hashing.variants import find_variant
    from multibit.runs import Run

    chosen = find_variant(variant)
    resolved = _config(preset, config, settings, seed, chosen.settings)
    store = FeatureStore.open(features)
    store.require_finite()  # also where training does not look: the run could not be evaluated
    rows = choose_split(
        store.dataset.ids,
        split,
        source=store.source,
        sizes={"query": query, "training": training, "validation": validation},
        groups=groups,
        seed=resolved.seed,
    )
    console = _stdout()
    console.print(f"Split {rows.describe()}")
    for name, each in chosen.models(resolved).items():
        finished = chosen.separate and (out / name / "run.json").exists()  # of an interrupted series
        run = Run.load(out / name) if finished else Run.create(out / name, store, rows, each, device=device.value)
        if run.config != each or run.split.fingerprint() != rows.fingerprint():
            raise DataError(f"{out / name}: holds a run of other settings. Choose another folder or delete it first.")
        epoch, rule = run.record["selection"]["epoch"], run.record["selection"]["rule"]
        console.print(f"Wrote {out / name}: {run.model.bits}-bit code, best epoch {epoch} ({rule})")


@app.command()
def encode(
    run: RunArgument,
    features: OptionalFeatures = None,
    out: Annotated[Path, typer.Option(help="The .npz or .mat file to write.")] = Path("codes.npz"),
    bits: Annotated[int | None, typer.Option(help="Code length, 1 to the full length (default).")] = None,
) -> None:
    """Write the codes of all items for other tools.

    .npz: ids, image and text (items, bytes) uint8, bits; np.unpackbits(image, axis=1)[:, :B] are the first B bits.
    .mat: q_img q_txt r_img r_txt (-1, +1), q_l r_l; queries and database of the run's split.
    """
    from multibit.runs import Run

    loaded = Run.load(run)
    store = loaded.open_features(features)
    out = out if out.suffix else out.with_suffix(".npz")
    if out.suffix == ".mat":
        loaded.save_mat(out, store, bits)
    elif out.suffix == ".npz":
        loaded.save_codes(out, store, bits)
    else:
        raise ConfigError(f"--out {out}: must end in .npz or .mat.")
    _stdout().print(f"Wrote {out}: {len(store):,} items, {bits or loaded.model.bits} bits per modality", soft_wrap=True)


@app.command()
def evaluate(
    run: RunArgument,
    features: OptionalFeatures = None,
    at: Annotated[int | None, typer.Option(min=1, help="Also measure mAP and precision at this rank.")] = None,
    against: Annotated[
        list[Path] | None, typer.Option(help="Another run on the same split to compare with; may be repeated.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Folder of the report; RUN/report when omitted.")] = None,
    no_report: Annotated[bool, typer.Option("--no-report", help="Only mAP, which is quick.")] = False,
    save_dir: Annotated[
        Path | None,
        typer.Option(help="Also write what the field's repositories write there: .mat, top-N and PR points, log."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="JSON file, a .parquet beside it; RUN/evaluation.json when omitted.")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print markdown tables.")] = False,
) -> None:
    """Measure search at every length, both directions, and write a report.

    Two protocols: training items in the searched database, as the field does, and kept out of it. mAP comes first; the
    report adds resolution, agreement of the lengths, what the sign costs, time and memory.
    """
    from multibit.report import accuracy_table, compare, save_evaluations
    from multibit.runs import Run

    if report is not None and no_report:
        raise ConfigError("give --report or --no-report, not both.")
    folder, target = report or run / "report", out or run / "evaluation.json"
    _check_places(target, folder, save_dir)
    loaded = Run.load(run)
    runs = [loaded, *(Run.load(path) for path in against or ())]
    for other in runs[1:]:
        loaded.require_same_split(other)
    store = loaded.open_features(features)
    measured = [each.evaluate(store, at=at) for each in runs]  # run -> protocol -> evaluation
    tables = [accuracy_table(evaluation) for evaluation in measured[0]]
    if len(runs) > 1:
        tables += [compare(*evaluations).table() for evaluations in zip(*measured, strict=True)]
    console = _stdout()
    for table in tables:
        if markdown:
            typer.echo(table.markdown() + "\n")
        else:
            console.print(table.rich())
    save_evaluations(target, measured[0])
    console.print(f"Wrote {target}: means, precision-recall points; per-query values beside it", markup=False)
    if save_dir is not None:
        from multibit.report.field import write_field_files

        count = len(write_field_files(loaded, store, measured[0][0], save_dir))
        console.print(f"Wrote {save_dir}: {count} files as the field's repositories write them", markup=False)
    if not no_report:
        _report(runs, store, measured, folder, console)


@app.command()
def index(
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
    from multibit.runs import Run
    from multibit.search import Index

    if remove and (update or features):
        raise ConfigError("--remove only takes items out: give it without --update and without features.")
    loaded = Run.load(run)
    console = _stdout()
    for modality in Modality:
        path = (out or run / "index") / f"{modality.value}.mbx"
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
                built = Index(loaded.record["model"], engine.value)
                loaded.index_items(built, store, modality.value, rows)
                built.save(path)
        console.print(f"Wrote {path}: {len(built):,} items", soft_wrap=True)


@app.command()
def merge(
    parts: Annotated[list[Path], typer.Argument(help="Index files (.mbx) of one model, in order.")],
    out: Annotated[Path, typer.Option(help="The index file to write.")],
) -> None:
    """Join indices that were built in parts."""
    from multibit.search import Index

    merged = Index.merge([Index.load(part) for part in parts])
    merged.save(out)
    _stdout().print(f"Wrote {out}: {len(merged):,} items", soft_wrap=True)


@app.command()
def export(
    index: Annotated[Path, typer.Argument(help="An index file (.mbx).")],
    out: Annotated[Path, typer.Option(help="The .npy (packed codes) or .faiss (binary flat index) file to write.")],
    bits: Annotated[int | None, typer.Option(help="Code length, 1 to the full length (default).")] = None,
) -> None:
    """Write the codes of an index for another tool."""
    from multibit.search import Index
    from multibit.search.exchange import export_codes

    found = Index.load(index)
    assert found.codes is not None  # an empty index is never saved
    export_codes(found.codes, out, bits)
    _stdout().print(f"Wrote {out}: {len(found):,} codes of {bits or found.codes.bits} bits", soft_wrap=True)


@app.command()
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
    from multibit.runs import Run

    if relaxed and max_distance is not None:
        raise ConfigError("--relaxed ranks by score, so --max-distance does not apply; give one of them.")
    loaded = Run.load(run)
    picture = Path(query) if _is_picture(query, kind) else None
    searched = modality.value if modality else ("text" if picture else "image")
    found = _open_index(loaded, (index or run / "index") / f"{searched}.mbx")
    values = loaded.encode_picture(picture) if picture else loaded.encode_text(query)
    conditions = {field: _number_or_text(value) for field, value in _pairs(where, "--where").items()} or None
    if relaxed:
        result = found.search_relaxed(values, k, bits, where=conditions)
    else:
        result = found.search(Codes.from_signs(values), k, bits, max_distance=max_distance, where=conditions)
    hits = result.hits()
    if as_json:
        for hit in hits:
            row = {"rank": hit.rank, "id": hit.id, "distance": hit.distance, "bits": hit.bits, **hit.payload}
            typer.echo(json.dumps(row, ensure_ascii=False))
    else:
        _stdout().print(_hits_table(hits, searched, result.bits))
    if sheet is not None:
        _draw(sheet, query, picture, searched, result.bits, hits)


@app.command()
def variants() -> None:
    """List the methods that `train --variant` knows, and the relation teachers of `--set teacher=NAME`."""
    from multibit.report.tables import variants_tables

    console = _stdout()
    for table in variants_tables():
        console.print(table.rich())


@app.command()
def reproduce(
    data: Annotated[
        Path | None,
        typer.Argument(help="A feature store, or an .npz with features or labels only; the shipped sample if omitted."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of runs, tables and figures; finished runs in it are kept.")] = Path(
        "multibit-reproduction"
    ),
    table: Annotated[
        list[str] | None, typer.Option(help="Only this table or figure; may be repeated. `--table list` lists them.")
    ] = None,
    seeds: Annotated[str, typer.Option(help="Seeds of the trainings, with commas; mean ± standard deviation.")] = "42",
    quick: Annotated[bool, typer.Option("--quick", help="Few epochs and no grid: to see it work.")] = False,
    preset: PresetOption = None,
    settings: SetOption = None,
    labels_key: Annotated[str | None, typer.Option(help="Key of the labels in an .npz without features.")] = None,
    device: DeviceOption = Device.cpu,
) -> None:
    """Make the tables and figures of the paper, each number beside the paper's.

    --preset says which data set of the paper this is; without it there is no column of the paper. Interrupted? Run the
    same command again: trained runs are kept.
    """
    from functools import partial

    from multibit.report.reproduce import QUICK, choose, entries_table, open_subject, reproduce_all
    from multibit.report.reproduction import Reproduction
    from multibit.runs import check_device

    console = _stdout()
    if table == ["list"]:
        console.print(entries_table().rich())
        return
    names = choose(table or [], quick=quick)
    check_device(device.value)
    if "seed" in _pairs(settings, "--set"):
        raise ConfigError("--set seed: give seeds with --seeds.")
    config = _config(preset, None, settings, None, QUICK if quick else None)
    subject = open_subject(data or _sample_features(out), labels_key, None if preset == "default" else preset)
    made = Reproduction(subject, out, config, device.value, say=partial(console.print, markup=False))
    reproduce_all(made, names, _seeds(seeds), out, console)
    written = f"Wrote {out / 'reproduction.md'}: all tables; tables/ in markdown, CSV and LaTeX, figures/"
    console.print(written, markup=False, soft_wrap=True)


@app.command()
def info(path: Annotated[Path, typer.Argument(help="A data set, feature store, run, index or codes file.")]) -> None:
    """Say what a file or folder is and what is in it."""
    from multibit.report.inventory import describe

    console = _stdout()
    for name, value in describe(path).items():
        console.print(f"{name + ':':<22}{value}", markup=False, highlight=False, soft_wrap=True)


def main() -> None:
    """Run the command line."""
    app()


def _check_places(out: Path, *folders: Path | None) -> None:
    """Refuse what could not be written, before the work."""
    if out.suffix != ".json":
        raise ConfigError(f"--out {out}: must end in .json.")
    for folder in folders:
        if folder is not None and folder.is_file():
            raise ConfigError(f"{folder}: is a file, but a folder is to be written there.")


def _report(
    runs: list[Run], store: FeatureStore, measured: list[list[Evaluation]], folder: Path, console: Console
) -> None:
    from multibit.report.assessment import assess
    from multibit.report.page import undrawn, write_report

    anchors = [None, *(runs[0] for _ in runs[1:])]
    each = zip(runs, anchors, measured, strict=True)
    assessed = [assess(run, store, anchor, evaluations) for run, anchor, evaluations in each]
    written = write_report(assessed, folder)
    lacking = undrawn()
    if lacking:
        console.print(f"Wrote {folder}: values and tables, no figures and no page: {lacking}", markup=False)
    else:
        console.print(f"Wrote {written[0]}: open it in a browser", markup=False)


def _fail(message: str, code: int) -> NoReturn:
    typer.echo(f"Error: {message}", err=True)
    sys.exit(code)


def _stdout() -> Console:
    from rich.console import Console

    return Console(highlight=False, soft_wrap=not sys.stdout.isatty(), width=None if sys.stdout.isatty() else 120)


def _save_ready(dataset: PairedDataset, ready: Path | None, recipe: str | None, out: Path) -> None:
    from multibit.data.ready import read_ready

    if not ready or not recipe:
        raise ConfigError("give --ready and --recipe together: vectors made elsewhere need a name for how.")
    store = read_ready(dataset, ready, recipe)
    store.require_finite()
    store.save(out)
    _stdout().print(f"Wrote {out}: {len(store):,} items, {len(store.skipped):,} without a row in {ready}")


def _config(
    preset: str | None,
    file: Path | None,
    settings: list[str] | None,
    seed: int | None,
    variant: Mapping[str, Any] | None = None,
) -> Config:
    """The preset or file, changed by the variant, changed by single settings."""
    from multibit.config import Config

    if preset and file:
        raise ConfigError("give --preset or --config, not both; a config file can name its preset.")
    base = Config.load(file) if file else Config.preset(preset or "default")
    seeded = {} if seed is None else {"seed": seed}
    return base.override({**(variant or {}), **_pairs(settings, "--set"), **seeded})


def _seeds(text: str) -> list[int]:
    try:
        return [int(seed) for seed in text.split(",") if seed.strip()]
    except ValueError:
        raise ConfigError(f"--seeds {text}: need whole numbers with commas between them.") from None


def _sample_features(out: Path) -> Path:
    """Features of the shipped sample, made once in the folder."""
    from multibit.demo import sample_features

    sample_features(out / "features", _stdout())
    return out / "features"


def _pairs(values: list[str] | None, option: str) -> dict[str, str]:
    pairs = {}
    for value in values or ():
        name, equals, content = value.partition("=")
        if not equals or not name:
            raise ConfigError(f"{option} {value}: need NAME=VALUE.")
        pairs[name.strip()] = content.strip()
    return pairs


def _number_or_text(value: str) -> Any:
    """A value as JSON has it where it is a number, true, false, null or a quoted text; else the text itself."""
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        return value


def _lines(path: Path | None) -> list[str] | None:
    if path is None:
        return None
    try:
        return [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 ({error}).") from None


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


def _open_index(run: Run, path: Path) -> Index:
    from multibit.search import Index

    if not path.exists():
        raise DataError(f"{path}: no index there. Build one with: multibit index {run.folder}")
    found = Index.load(path)
    found.require_model(run.model.fingerprint())
    return found


def _hits_table(hits: list[Hit], searched: str, bits: int) -> Any:
    from multibit.report import hits_table

    return hits_table(hits, searched, bits).rich()


def _draw(sheet: Path, query: str, picture: Path | None, searched: str, bits: int, hits: list[Hit]) -> None:
    from multibit.report import Search, contact_sheet

    contact_sheet([Search(query, frozenset(), picture, {bits: hits}, show=searched)], sheet)
    _stdout().print(f"Wrote {sheet}")

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
    from rich.console import Console

    from multibit.config import Config
    from multibit.data import PairedDataset, Split
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
    preset: PresetOption = None,
    config: ConfigOption = None,
    settings: SetOption = None,
    seed: SeedOption = None,
    query: Annotated[int | None, typer.Option(help="Items that ask; 25 % up to 5,000 when omitted.")] = None,
    training: Annotated[int | None, typer.Option(help="Items to train on; 45 % up to 9,000 when omitted.")] = None,
    validation: Annotated[int | None, typer.Option(help="Items that select the epoch; 5 % up to 1,000.")] = None,
    device: DeviceOption = Device.cpu,
) -> None:
    """Train one model whose code is good at every length.

    It sees the training rows of a split; query and database items take no part. Interrupted?
    Run the same command again: it goes on where it was.
    """
    from multibit.data import FeatureStore
    from multibit.runs import Run

    resolved = _config(preset, config, settings, seed)
    store = FeatureStore.open(features)
    store.require_finite()  # also where training does not look: the run could not be evaluated
    sizes = {"query": query, "train": training, "validation": validation}
    run = Run.create(out, store, _split(len(store), sizes, resolved.seed), resolved, device=device.value)
    selection = run.record["selection"]
    console = _stdout()
    console.print(f"Wrote {out}: {run.model.bits}-bit code, best epoch {selection['epoch']} ({selection['rule']})")


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
    report: Annotated[
        Path | None, typer.Option(help="Also measure resolution, agreement and cost; write a report into this folder.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="JSON file; RUN/evaluation.json when omitted.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print markdown tables.")] = False,
) -> None:
    """Measure search at every length, both directions.

    Two protocols: training items in the searched database, as the field does, and kept out of it.
    """
    from multibit.files import write_json
    from multibit.report import accuracy_table, comparison_table
    from multibit.report.page import require_drawing
    from multibit.report.study import distinct
    from multibit.runs import Run

    loaded = Run.load(run)
    others = [Run.load(path) for path in against or ()]
    for other in others:
        loaded.require_same_split(other)
    if report is not None:
        require_drawing()
    store = loaded.open_features(features)
    evaluations = loaded.evaluate(store, at=at)
    tables = [accuracy_table(evaluation) for evaluation in evaluations]
    beside = [other.evaluate(store) for other in others]
    names = distinct([each.folder.resolve().name for each in (loaded, *others)])
    for i, evaluation in enumerate(evaluations if others else ()):
        tables.append(comparison_table(dict(zip(names, [evaluation, *(each[i] for each in beside)], strict=True))))
    console = _stdout()
    for table in tables:
        if markdown:
            typer.echo(table.markdown() + "\n")
        else:
            console.print(table.rich())
    target = out or run / "evaluation.json"
    content = {"run": loaded.record["model"], "evaluations": [evaluation.to_dict() for evaluation in evaluations]}
    write_json(target, content, kind="evaluation", version=1)
    console.print(f"Wrote {target}: per-query values, precision-recall points")
    if report is not None:
        from multibit.report.assessment import assess
        from multibit.report.page import write_report

        assessed = [assess(loaded, store), *(assess(other, store, anchor=loaded) for other in others)]
        console.print(f"Wrote {write_report(assessed, report)[0]}: open it in a browser")


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
def info(path: Annotated[Path, typer.Argument(help="A data set, feature store, run, index or codes file.")]) -> None:
    """Say what a file or folder is and what is in it."""
    from multibit.report.inventory import describe

    console = _stdout()
    for name, value in describe(path).items():
        console.print(f"{name + ':':<22}{value}", markup=False, highlight=False, soft_wrap=True)


def main() -> None:
    """Run the command line."""
    app()


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


def _config(preset: str | None, file: Path | None, settings: list[str] | None, seed: int | None) -> Config:
    from multibit.config import Config

    if preset and file:
        raise ConfigError("give --preset or --config, not both; a config file can name its preset.")
    base = Config.load(file) if file else Config.preset(preset or "default")
    seeded = {} if seed is None else {"seed": seed}
    return base.override({**_pairs(settings, "--set"), **seeded})


def _split(items: int, sizes: dict[str, int | None], seed: int) -> Split:
    from multibit.data import Split

    given = {role: size for role, size in sizes.items() if size is not None}
    if not given:
        return Split.usual(items, seed)
    if len(given) < len(sizes):
        missing = ", ".join(f"--{role}" for role in sizes if role not in given).replace("--train", "--training")
        raise ConfigError(f"give all of --query, --training, --validation or none; missing {missing}.")
    return Split.draw(items, **given, seed=seed)


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

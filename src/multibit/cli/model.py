"""The verbs that train a model and code with it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from multibit.cli.options import (
    Cluster,
    ClusterOption,
    ColumnOption,
    ConfigOption,
    Device,
    DeviceOption,
    FeaturesArgument,
    GroupsOption,
    MethodOption,
    PresetOption,
    QueriesOption,
    RunArgument,
    SeedOption,
    SeparatorOption,
    SetOption,
    SplitOption,
    TrainingOption,
    UrlDownloadOption,
    ValidationOption,
    describe_method,
    echo,
    numbers,
    pairs,
    read_config,
    read_method,
    refuse_memory,
    refuse_unused,
    repeated,
    require_ending,
    show,
)
from multibit.errors import ConfigError, counted

if TYPE_CHECKING:
    from multibit.data import Split
    from multibit.features.store import FeatureStore


def train(
    features: FeaturesArgument,
    out: Annotated[Path, typer.Option(help="Run folder to write; an unfinished run there is resumed.")],
    method: MethodOption = None,
    preset: PresetOption = None,
    config: ConfigOption = None,
    settings: SetOption = None,
    seed: SeedOption = None,
    queries: QueriesOption = None,
    training: TrainingOption = None,
    validation: ValidationOption = None,
    split: SplitOption = None,
    groups: GroupsOption = None,
    device: DeviceOption = Device.cpu,
    threads: Annotated[
        int, typer.Option(help="Threads of each training. Results differ between numbers of threads.")
    ] = 1,
) -> None:
    """Train a method: by default one model for all code lengths.

    It is trained on the training rows of a split; query and database rows take no part. A preset of one of the paper's
    datasets trains the paper's method, multibit, unless --method names another; items without any labels train
    multibit-free, which needs none. A method of one length trains a model
    for each length, as many at once as there are processors. If interrupted, run the same command again to resume.
    """
    from multibit.evaluation.floors import ALL_RELEVANT, ALWAYS, common_labels_floor
    from multibit.features.leaks import crossing_duplicates
    from multibit.machine import processors
    from multibit.paths import require_writable
    from multibit.portable.export import make_portable
    from multibit.runs import Run, describe_code, finished_before

    read_method(method, preset, config)  # an unknown name is refused before the features are read
    require_writable(out, folder=True)
    store, rows = _open_split(features, split, groups, queries, training, validation)
    labelled = bool(store.dataset.label_rows[rows.train].any())
    chosen = read_method(method, preset, config, labels=labelled)
    resolved = read_config(chosen, preset, config, settings, seed)
    echo(describe_method(chosen, labels=labelled))
    echo(f"Split {rows.describe()}")
    if finished_before(out, store, rows, resolved, chosen.name):
        echo(f"Kept {out}: a finished run of this method with these settings, features and split")
        return
    if problem := crossing_duplicates(store, rows).problem:
        kept = "" if groups else " Keep them together: `multibit check --groups FILE`, then --groups FILE."
        echo(f"Warning: {problem}{kept}", err=True)
    workers = processors() if device is Device.cpu else 1
    run = Run.create(
        out, store, rows, resolved, method=chosen.name, device=device.value, workers=workers, threads=threads
    )
    code = f"{run.model.bits}-bit code" if run.model.layout.nested else describe_code(run)
    echo(f"Wrote {out}: {code}, best epoch {run.record.selection}")
    make_portable(run)
    labels = store.dataset.label_rows
    score, floor = run.record.selection.validation_mean_mAP, common_labels_floor(labels)
    if score is not None and score < floor:
        echo(
            f"Warning: {100 * score:.2f} % mAP on the validation rows is below the {100 * floor:.2f} % of ranking the "
            "most common labels first: nothing was learned, or the labels say little about the items.",
            err=True,
        )
    if floor > ALWAYS and labels.per_item().all():  # items without a label are relevant to none
        echo(f"Warning: {ALL_RELEVANT}.", err=True)


def select(
    ctx: typer.Context,
    features: FeaturesArgument,
    out: Annotated[Path, typer.Option(help="Selection folder to write; an unfinished selection there is resumed.")],
    alpha: Annotated[str | None, typer.Option(help="Values of alpha, comma-separated. Default: the paper's.")] = None,
    eta: Annotated[str | None, typer.Option(help="Values of eta, comma-separated. Default: the paper's.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Stop no setting early: the whole response surface.")] = False,
    method: Annotated[
        str | None,
        typer.Option(
            help="A method with a relation teacher. Default: multibit-plus, with a preset of the paper's datasets "
            "multibit."
        ),
    ] = None,
    preset: PresetOption = None,
    config: ConfigOption = None,
    settings: SetOption = None,
    seed: SeedOption = None,
    queries: QueriesOption = None,
    training: TrainingOption = None,
    validation: ValidationOption = None,
    split: SplitOption = None,
    groups: GroupsOption = None,
    device: DeviceOption = Device.cpu,
) -> None:
    """Choose alpha and eta on validation data.

    Both belong to the label graph, which the relation teacher of the method reads: the items need labels.
    A model is trained for each pair of values and scored by the validation mean mAP at the length nearest to 64 bits.
    After 1/8, 1/4 and 1/2 of the epochs the worse half is stopped, but nothing within 0.1 points of the better half.
    Query and database rows take no part. If interrupted, run the same command again to resume.
    """
    from multibit.codes.items import length_near
    from multibit.config import GRID_ALPHA, GRID_ETA
    from multibit.hashing.select import require_selectable
    from multibit.paths import require_writable
    from multibit.report.page import missing_for_figures
    from multibit.report.selection import surface_table, write_selection
    from multibit.selection import RECORD, select_in

    chosen = read_method(method, preset, config)
    given = pairs(settings, "settings")
    for name in ("alpha", "eta"):
        if name in given:
            hint = f"Leave it out; `{name}` sets the values to choose from."
            raise ConfigError(f"{name} is what is chosen here.", option="settings", hint=hint)
    resolved = read_config(chosen, preset, config, settings, seed)
    require_selectable(resolved, chosen.name)
    if chosen.lengths == "one":  # the model of the length that is compared
        resolved = resolved.override({"lengths": (length_near(resolved.lengths),)})
    alphas = GRID_ALPHA if alpha is None else numbers(alpha, "alpha", float)
    etas = GRID_ETA if eta is None else numbers(eta, "eta", float)
    require_writable(out, folder=True)
    store, rows = _open_split(features, split, groups, queries, training, validation)
    echo(describe_method(chosen))
    echo(f"Split {rows.describe()}")
    record = select_in(
        out, store, rows, resolved, method=chosen.name, alpha=alphas, eta=etas, full=full, device=device.value
    )
    choice = record.choice
    show(surface_table(choice))
    written = write_selection(choice, out)
    echo(f"Wrote {out}: {', '.join(path.name for path in (out / RECORD, *written))}")
    if missing := missing_for_figures():
        echo(f"No figure: {missing}")
    best = choice.best
    echo(f"Best: {best}, validation mean mAP {100 * choice.best_score:.2f} % at {choice.bits} bits")
    again = repeated(ctx, "alpha", "eta", "full", "out")
    values = [f"--set={name}={value}" for name, value in best._asdict().items()]
    echo(f"Train with: {shlex.join(['multibit', 'train', *again, *values, '--out', 'run'])}")


def _open_split(
    features: Path,
    split: str | None,
    groups: Path | None,
    queries: int | None,
    training: int | None,
    validation: int | None,
) -> tuple[FeatureStore, Split]:
    """The features, and the split that the options of a verb ask for."""
    from multibit.data.split_files import choose_split
    from multibit.features.store import FeatureStore
    from multibit.pipeline import require_split_of

    store = FeatureStore.open(features)
    require_split_of(split, store.dataset)
    store.require_finite()  # all rows, not only those of the training: the run will be evaluated on the others
    sizes = {"query": queries, "train": training, "validation": validation}
    return store, choose_split(store.dataset.ids, split, source=store.source, sizes=sizes, groups=groups)


def encode(
    ctx: typer.Context,
    run: RunArgument,
    features: Annotated[
        str | None,
        typer.Argument(
            metavar="FEATURES",
            help="A feature store folder or .npz, or a URL of manifests or WebDataset shards. Default: the features of "
            "the training.",
        ),
    ] = None,
    out: Annotated[
        str, typer.Option(help="The .npz or .mat file to write, or URL of a folder where FEATURES is a URL.")
    ] = "codes.npz",
    bits: Annotated[int | None, typer.Option(help="Code length. Default: the full length.")] = None,
    engine: ClusterOption = Cluster.local,
    workers: Annotated[int, typer.Option(min=1, help="Number of Ray workers.")] = 2,
    images: Annotated[
        str | None, typer.Option(help="Of a URL: URL of the folder of the images. Default: that of the manifest.")
    ] = None,
    column: ColumnOption = None,
    separator: SeparatorOption = None,
    download: UrlDownloadOption = False,
) -> None:
    """Write the codes of all items for other tools.

    .npz: ids, image and text (items, bytes) uint8, bits; np.unpackbits(image, axis=1)[:, :B] are the first B bits.
    .mat: q_img q_txt r_img r_txt (-1, +1), q_l r_l; query and database items of the run's split. Of a URL: Parquet
    files, one per shard or block of items; the same command resumes what was stopped, `index --codes` indexes them.
    """
    from multibit.data.objects import is_url
    from multibit.folders import only_writer_of
    from multibit.paths import require_writable
    from multibit.pipeline import open_features, open_run, write_codes

    refuse_memory(features=features, out=out)
    if engine is Cluster.local:
        refuse_unused(ctx, "without --engine ray", "workers")
    if features is not None and is_url(features):
        refuse_unused(ctx, "with a URL: the codes have all lengths", "bits")
        reading = {"images": images, "columns": pairs(column, "column"), "separator": separator or "|"}
        _encode_url(run, features, out, reading, engine.value, workers, download=download)
        return
    refuse_unused(ctx, "without a URL as FEATURES", "images", "column", "separator", "download")
    given, target = None if features is None else Path(features), Path(out)
    require_ending(target, "out", ".npz", ".mat")
    require_writable(target, unlike=(given,))
    loaded = open_run(run)
    require_writable(target, unlike=(loaded.features,))
    ctx.with_resource(only_writer_of(target))
    store = open_features(loaded, given)
    write_codes(loaded, store, target, bits, engine=engine.value, workers=workers)
    echo(f"Wrote {out}: {counted(len(store), 'item', 'items')}, {bits or loaded.model.bits} bits per modality")


def _encode_url(
    run: Path, data: str, out: str, reading: dict[str, Any], engine: str, workers: int, *, download: bool
) -> None:
    """Code data in a store part by part."""
    import tempfile

    from multibit.bulk import code_parts
    from multibit.data.objects import is_url
    from multibit.data.parts import Parts
    from multibit.runs import Run

    if not is_url(out):
        raise ConfigError(
            f"must be a URL, as that of the data, got {out}.", option="out", hint="Such as file:///codes."
        )
    loaded = Run.load(run)
    with tempfile.TemporaryDirectory() as temporary:
        parts = Parts.of(data, Path(temporary), **reading, download=download)
        count = code_parts(loaded, parts, out, engine=engine, workers=workers)
    sizes = counted(len(parts.parts), "part", "parts"), counted(count, "item", "items")
    echo(f"Wrote {out}: {', '.join(sizes)} coded now")

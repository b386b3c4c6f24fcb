"""The verbs that train and evaluate."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from multibit.cli.options import (
    Cluster,
    ClusterOption,
    ConfigOption,
    Device,
    DeviceOption,
    DownloadOption,
    FeaturesArgument,
    GroupsOption,
    MethodOption,
    OptionalFeatures,
    PresetOption,
    QueriesOption,
    RunArgument,
    SeedOption,
    SetOption,
    SplitOption,
    TrainingOption,
    UrlDownloadOption,
    ValidationOption,
    counted,
    describe_method,
    echo,
    lines,
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
from multibit.errors import ConfigError, DataError

if TYPE_CHECKING:
    from multibit.data import Split
    from multibit.evaluation.assessment import Assessment
    from multibit.evaluation.comparison import Comparison
    from multibit.features.store import FeatureStore
    from multibit.measurement import Measurement
    from multibit.report.examples import Example


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
        int, typer.Option(min=1, help="Threads of each training. Results differ between numbers of threads.")
    ] = 1,
) -> None:
    """Train a method: by default one model for all code lengths.

    It is trained on the training rows of a split; query and database rows take no part. A preset of one of the paper's
    datasets trains the paper's method, multibit, unless --method names another; items without any labels train
    multibit-free, which needs none. A method of one length trains a model
    for each length, as many at once as there are processors. If interrupted, run the same command again to resume.
    """
    from multibit.evaluation.protocol import common_labels_floor
    from multibit.features.leaks import crossing_duplicates
    from multibit.files import require_writable
    from multibit.machine import processors
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
    score, floor = run.record.selection.validation_mean_mAP, common_labels_floor(store.dataset.label_rows)
    if score is not None and score < floor:
        echo(
            f"Warning: {100 * score:.2f} % mAP on the validation rows is below the {100 * floor:.2f} % of ranking the "
            "most common labels first: nothing was learned, or the labels say little about the items.",
            err=True,
        )


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
    from multibit.files import require_writable
    from multibit.hashing.select import require_selectable
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
    download: UrlDownloadOption = False,
) -> None:
    """Write the codes of all items for other tools.

    .npz: ids, image and text (items, bytes) uint8, bits; np.unpackbits(image, axis=1)[:, :B] are the first B bits.
    .mat: q_img q_txt r_img r_txt (-1, +1), q_l r_l; query and database items of the run's split. Of a URL: Parquet
    files, one per shard or block of items; the same command resumes what was stopped, `index --codes` indexes them.
    """
    from multibit.data.objects import is_url
    from multibit.files import require_writable
    from multibit.folders import only_writer_of
    from multibit.pipeline import open_features, open_run, write_codes

    refuse_memory(features=features, out=out)
    if engine is Cluster.local:
        refuse_unused(ctx, "without --engine ray", "workers")
    if features is not None and is_url(features):
        refuse_unused(ctx, "with a URL: the codes have all lengths", "bits")
        _encode_url(run, features, out, engine.value, workers, download=download)
        return
    refuse_unused(ctx, "without a URL as FEATURES", "download")
    given, target = None if features is None else Path(features), Path(out)
    require_ending(target, "out", ".npz", ".mat")
    require_writable(target, unlike=(given,))
    loaded = open_run(run)
    require_writable(target, unlike=(loaded.features,))
    ctx.with_resource(only_writer_of(target))
    store = open_features(loaded, given)
    write_codes(loaded, store, target, bits, engine=engine.value, workers=workers)
    echo(f"Wrote {out}: {counted(len(store), 'item', 'items')}, {bits or loaded.model.bits} bits per modality")


def _encode_url(run: Path, data: str, out: str, engine: str, workers: int, *, download: bool) -> None:
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
        parts = Parts.of(data, Path(temporary), download=download)
        count = code_parts(loaded, parts, out, engine=engine, workers=workers)
    sizes = counted(len(parts.parts), "part", "parts"), counted(count, "item", "items")
    echo(f"Wrote {out}: {', '.join(sizes)} coded now")


def evaluate(
    ctx: typer.Context,
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="A run folder; or codes made elsewhere: .mat, .npz, or a folder of them or of .npy."
        ),
    ],
    features: OptionalFeatures = None,
    at: Annotated[int | None, typer.Option(min=1, help="Also compute mAP and precision at this rank.")] = None,
    against: Annotated[
        list[Path] | None, typer.Option(help="Another run on the same split to compare with. Repeatable.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Folder of the report. Default: RUN/report")] = None,
    no_report: Annotated[bool, typer.Option("--no-report", help="Only compute mAP, which is quick.")] = False,
    pdf: Annotated[bool, typer.Option("--pdf", help="Also write the figures as PDF, for LaTeX.")] = False,
    save_dir: Annotated[
        Path | None,
        typer.Option(help="Also write the files of the field's repositories: .mat codes, top-N and PR points, logs."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="JSON file; per-query values go into a .parquet next to it. Default: RUN/evaluation.json"),
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(help="Of codes made elsewhere: nested, e.g. 16,32,64. Default: the lengths of the files."),
    ] = None,
    label_names: Annotated[
        Path | None,
        typer.Option(help="Of codes made elsewhere: file with a name per label column, for the label-name evaluator."),
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print markdown tables.")] = False,
    download: DownloadOption = False,
) -> None:
    """Evaluate a run or codes made elsewhere, and write a report.

    In both directions at every length, under two protocols: training items in the searched database, as usual in the
    field, and kept out of it. mAP is printed first; the report adds resolution, agreement between lengths, quantisation
    loss, time and memory.

    Codes made elsewhere have the keys q_img q_txt r_img r_txt q_l r_l: -1, 1; or 0, 1; or packed. Their results go
    next to them: CODES-evaluation.json, CODES-report. Items without labels are measured by pair recall alone.
    """
    from multibit.evaluation.ranking import DEPTH
    from multibit.evaluation.storage import save_evaluations
    from multibit.folders import only_writer_of
    from multibit.measurement import assess_run, measure, references_of
    from multibit.pipeline import located_encoder, open_features, require_one_view
    from multibit.records import is_run
    from multibit.report.examples import example_searches
    from multibit.report.field import LAST, field_record, write_field_files
    from multibit.runs import Run, require_comparable
    from multibit.search.code_files import is_codes

    for name, given in {"report": report is not None, "pdf": pdf}.items():
        if given and no_report:
            raise ConfigError("cannot be combined with --no-report.", option=name, hint="Give one of them.")
    if not is_run(run) and is_codes(run):
        refuse_unused(ctx, "on codes made elsewhere", "save_dir")
        if not against:
            refuse_unused(ctx, "on codes made elsewhere without --against", "features")
        else:
            refuse_unused(ctx, "with --against, because the run has the names", "label_names")
        folder, target = report or _next_to(run, "report"), out or _next_to(run, "evaluation.json")
        _check_targets(target, None if no_report else folder, None)
        ctx.with_resource(only_writer_of(*_outputs(target, None if no_report else folder, None)))
        names = lines(label_names) or []
        _evaluate_codes(
            run,
            features,
            at,
            against or [],
            None if no_report else folder,
            target,
            lengths,
            names,
            markdown,
            pdf,
            download,
        )
        return
    refuse_unused(ctx, "on a run", "lengths", "label_names")
    folder, target = report or run / "report", out or run / "evaluation.json"
    loaded = Run.load(run)
    _check_targets(target, None if no_report else folder, save_dir)
    ctx.with_resource(only_writer_of(*_outputs(target, None if no_report else folder, save_dir)))
    others = [Run.load(path) for path in against or ()]
    for other in others:
        require_comparable(loaded, other)
    if save_dir is not None:
        require_one_view(loaded, "Each of the field's files")
    store = open_features(loaded, features)
    if save_dir is not None and not store.dataset.label_rows.per_item().any():
        raise DataError("the field's files need labels, and no item has one.", option="save_dir")
    first = measure(loaded, store, at=at, depth=DEPTH if save_dir is None else LAST)
    measured = [first, *(measure(other, store, at=at, depth=0, relaxed=False) for other in others)]
    comparisons = _show_tables(measured, markdown)
    save_evaluations(target, first.evaluations)
    if save_dir is not None:
        count = len(write_field_files(field_record(first, store), save_dir))
        echo(f"Wrote {save_dir}: {count} files in the field's formats")
    if not no_report:
        references = references_of(
            located_encoder(loaded, loaded.recipe.text), loaded.label_names, first.database, loaded.folder,
            download=download,
        )  # fmt: skip
        assessed = [
            assess_run(each, store, None if each is first else first, references=references) for each in measured
        ]
        _write_report(assessed, folder, comparisons, target, example_searches(first, store), pdf)
    echo(f"Wrote {target}: means and curves; per-query values in the .parquet next to it")


def _evaluate_codes(
    path: Path,
    features: Path | None,
    at: int | None,
    against: Sequence[Path],
    folder: Path | None,
    target: Path,
    lengths: str | None,
    label_names: Sequence[str],
    markdown: bool,
    pdf: bool,
    download: bool,
) -> None:
    """Evaluate codes made elsewhere; the arguments are those of `evaluate`, and no folder is no report."""
    from multibit.evaluation.storage import save_evaluations
    from multibit.measurement import (
        PROTOCOLS,
        WHOLE,
        assess_codes,
        assess_run,
        measure_against,
        measure_codes,
        require_same_items,
    )
    from multibit.pipeline import located_encoder, open_features
    from multibit.runs import Run
    from multibit.search.code_files import CodeSets

    sets = CodeSets.open(path, None if lengths is None else numbers(lengths, "lengths", int))
    sets.require_label_names(label_names)
    runs = [Run.load(each) for each in against]
    stores = [open_features(run, features) for run in runs]
    for run, store in zip(runs, stores, strict=True):
        require_same_items(sets, run, store)
    others = [measure_against(sets, run, store, at=at) for run, store in zip(runs, stores, strict=True)]
    first = measure_codes(sets, protocol=PROTOCOLS["in"] if others else WHOLE, at=at)
    for note in sets.notes:
        echo(f"Note: {note}")
    comparisons = _show_tables([first, *others], markdown)
    save_evaluations(target, first.evaluations)
    if folder is not None:
        measured_with = zip(others, stores, strict=True)
        compared = [assess_run(other, store, first, download=download) for other, store in measured_with]
        recipe = located_encoder(runs[0], runs[0].recipe.text) if runs else None
        known = assess_codes(
            first,
            runs[0].label_names if runs and sets.labelled else label_names,
            recipe,
            runs[0].folder if runs else None,
            download=download,
        )
        _write_report([known, *compared], folder, comparisons, target, pdf=pdf)
    echo(f"Wrote {target}: means and curves; per-query values in the .parquet next to it")


def _next_to(path: Path, name: str) -> Path:
    """The default output of codes made elsewhere, such as `codes-report` of `codes.mat`."""
    whole = path if path.name not in ("", "..") else path.resolve()
    return whole.with_name(f"{whole.name if whole.is_dir() else whole.stem}-{name}")


def _show_tables(measured: Sequence[Measurement], markdown: bool) -> list[Comparison]:
    """Print the accuracy of the first run, compared with the others under each protocol, and warnings about all."""
    from multibit.evaluation.comparison import compare
    from multibit.measurement import NO_LABELS
    from multibit.report.tables import accuracy_table, pair_tables

    first, *others = measured
    protocols = zip(*(each.evaluations for each in measured), strict=True)
    comparisons = [compare(*each) for each in protocols] if others else []
    accuracy = [accuracy_table(each) for each in first.evaluations if each.labelled]
    tables = [*accuracy, *pair_tables(first.evaluations[0])]
    for table in [*tables, *(comparison.table() for comparison in comparisons)]:
        if markdown:
            echo(table.markdown() + "\n")
        else:
            show(table)
    warnings = [
        f"Warning: {each.evaluations[0].name}: {warning}"
        for each in measured
        for warning in (*each.bits.warnings, *each.notes)
        if warning != NO_LABELS
    ]
    if any(NO_LABELS in each.notes for each in measured):
        echo(f"Note: {NO_LABELS}")
    for warning in dict.fromkeys(warnings):  # a run compared with itself has the same ones
        echo(warning, err=True)
    return comparisons


def _write_report(
    assessed: Sequence[Assessment],
    folder: Path,
    comparisons: Sequence[Comparison],
    target: Path,
    examples: Sequence[Example] = (),
    pdf: bool = False,
) -> None:
    """Write the report and the evaluation with all its metrics."""
    from multibit.evaluation.storage import save_evaluations
    from multibit.report.page import missing_for_figures, write_report

    saved = save_evaluations(target, assessed[0].evaluations)
    written = write_report(assessed, folder, comparisons=comparisons, examples=examples, pdf=pdf, keep=saved)
    missing = missing_for_figures()
    if missing:
        echo(f"Wrote {folder}: tables, but no figures and no page: {missing}")
    else:
        echo(f"Wrote {written[0]}: open it in a browser")


def _outputs(target: Path, *folders: Path | None) -> list[Path | None]:
    """What an evaluation replaces; None where it is not written."""
    return [target, target.with_suffix(".parquet"), *folders]


def _check_targets(out: Path, report: Path | None, field: Path | None) -> None:
    """Refuse outputs that cannot be written, before the work starts."""
    from multibit.evaluation import storage
    from multibit.report import field as field_files
    from multibit.report import page
    from multibit.report.folder import require_folder

    require_ending(out, "out", ".json")
    storage.require_evaluation_target(out)
    if report is not None:
        require_folder(report, folders=page.FOLDERS, files=(page.PAGE,))
    if field is not None:
        require_folder(field, folders=(field_files.FOLDER,))

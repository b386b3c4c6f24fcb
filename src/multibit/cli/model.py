"""The verbs that train and evaluate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from multibit.cli.options import (
    Cluster,
    ClusterOption,
    ConfigOption,
    Device,
    DeviceOption,
    FeaturesArgument,
    MethodOption,
    OptionalFeatures,
    PresetOption,
    RunArgument,
    SeedOption,
    SetOption,
    read_config,
    refuse_unused,
    require_ending,
    show,
)
from multibit.errors import ConfigError, DataError


def train(
    features: FeaturesArgument,
    out: Annotated[Path, typer.Option(help="Run folder to write; an unfinished run there is resumed.")],
    method: MethodOption = "multibit-plus",
    preset: PresetOption = None,
    config: ConfigOption = None,
    settings: SetOption = None,
    seed: SeedOption = None,
    queries: Annotated[int | None, typer.Option(help="Number of query items. Default: 25 %, at most 5,000.")] = None,
    training: Annotated[
        int | None, typer.Option(help="Number of training items. Default: 45 %, at most 9,000.")
    ] = None,
    validation: Annotated[
        int | None, typer.Option(help="Number of validation items. Default: 5 %, at most 1,000.")
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="A seed (in the field: 1814, 3407, 1), or rows or ids of each part: .npz, .mat, .json, a folder of "
            ".txt, or a run. Default: the split of the features, or the paper's rule."
        ),
    ] = None,
    groups: Annotated[
        Path | None, typer.Option(help="Manifest of id and group; no group is in two parts of the split.")
    ] = None,
    device: DeviceOption = Device.cpu,
) -> None:
    """Train one model that serves every code length.

    It is trained on the training rows of a split; query and database rows take no part. If interrupted, run the same
    command again to resume.
    """
    from multibit.data.split_files import choose_split
    from multibit.features.store import FeatureStore
    from multibit.files import require_writable
    from multibit.hashing.methods import find_method
    from multibit.pipeline import require_split_of
    from multibit.runs import Run, require_alone

    chosen = find_method(method)
    resolved = read_config(preset, config, settings, seed, chosen.settings)
    require_writable(out, folder=True)
    require_alone(out, separate=chosen.separate)
    store = FeatureStore.open(features)
    require_split_of(split, store.dataset)
    store.require_finite()  # all rows, not only those of the training: the run will be evaluated on the others
    rows = choose_split(
        store.dataset.ids,
        split,
        source=store.source,
        sizes={"query": queries, "train": training, "validation": validation},
        groups=groups,
        seed=resolved.seed,
    )
    typer.echo(f"Split {rows.describe()}")
    for name, each in chosen.models(resolved).items():
        finished = chosen.separate and (out / name / "run.json").exists()  # of an interrupted series
        run = (
            Run.load(out / name)
            if finished
            else Run.create(out / name, store, rows, each, method=method, device=device.value)
        )
        if run.config != each or run.split.fingerprint() != rows.fingerprint():
            raise DataError(
                "holds a run of other settings.", file=out / name, hint="Choose another folder or delete it first."
            )
        selection = run.record.selection
        typer.echo(f"Wrote {out / name}: {run.model.bits}-bit code, best epoch {selection.epoch} ({selection.rule})")


def encode(
    ctx: typer.Context,
    run: RunArgument,
    features: OptionalFeatures = None,
    out: Annotated[Path, typer.Option(help="The .npz or .mat file to write.")] = Path("codes.npz"),
    bits: Annotated[int | None, typer.Option(help="Code length. Default: the full length.")] = None,
    engine: ClusterOption = Cluster.local,
    workers: Annotated[int, typer.Option(min=1, help="Number of Ray workers.")] = 2,
) -> None:
    """Write the codes of all items for other tools.

    .npz: ids, image and text (items, bytes) uint8, bits; np.unpackbits(image, axis=1)[:, :B] are the first B bits.
    .mat: q_img q_txt r_img r_txt (-1, +1), q_l r_l; query and database items of the run's split.
    """
    from multibit.files import require_writable
    from multibit.pipeline import open_features, write_codes
    from multibit.runs import Run

    if engine is Cluster.local:
        refuse_unused(ctx, "without --engine ray", "workers")
    require_ending(out, "out", ".npz", ".mat")
    require_writable(out, unlike=(features,))
    loaded = Run.load(run)
    require_writable(out, unlike=(Path(loaded.record.features or ""),))
    store = open_features(loaded, features)
    write_codes(loaded, store, out, bits, engine=engine.value, workers=workers)
    typer.echo(f"Wrote {out}: {len(store):,} items, {bits or loaded.model.bits} bits per modality")


def evaluate(
    run: RunArgument,
    features: OptionalFeatures = None,
    at: Annotated[int | None, typer.Option(min=1, help="Also compute mAP and precision at this rank.")] = None,
    against: Annotated[
        list[Path] | None, typer.Option(help="Another run on the same split to compare with. Repeatable.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Folder of the report. Default: RUN/report")] = None,
    no_report: Annotated[bool, typer.Option("--no-report", help="Only compute mAP, which is quick.")] = False,
    save_dir: Annotated[
        Path | None,
        typer.Option(help="Also write the files of the field's repositories: .mat codes, top-N and PR points, logs."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="JSON file; per-query values go into a .parquet next to it. Default: RUN/evaluation.json"),
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print markdown tables.")] = False,
) -> None:
    """Evaluate a run at every length and write a report.

    In both directions, under two protocols: training items in the searched database, as usual in the field, and kept
    out of it. mAP is printed first; the report adds resolution, agreement between lengths, quantisation loss, time and
    memory.
    """
    from multibit.evaluation.comparison import compare
    from multibit.evaluation.ranking import DEPTH
    from multibit.evaluation.storage import save_evaluations
    from multibit.pipeline import assess_run, measure, open_features
    from multibit.report.field import LAST, field_record, write_field_files
    from multibit.report.page import missing_for_figures, write_report
    from multibit.report.tables import accuracy_table
    from multibit.runs import Run, require_comparable

    if report is not None and no_report:
        raise ConfigError("cannot be combined with --no-report.", option="report", hint="Give one of them.")
    folder, target = report or run / "report", out or run / "evaluation.json"
    loaded = Run.load(run)
    _check_targets(target, None if no_report else folder, save_dir)
    others = [Run.load(path) for path in against or ()]
    for other in others:
        require_comparable(loaded, other)
    store = open_features(loaded, features)
    first = measure(loaded, store, at=at, depth=DEPTH if save_dir is None else LAST)
    measured = [first, *(measure(other, store, at=at) for other in others)]
    tables = [accuracy_table(evaluation) for evaluation in first.evaluations]
    protocols = zip(*(one.evaluations for one in measured), strict=True)
    comparisons = [compare(*each) for each in protocols] if others else []
    tables += [comparison.table() for comparison in comparisons]
    for table in tables:
        if markdown:
            typer.echo(table.markdown() + "\n")
        else:
            show(table)
    for one in measured:
        for warning in one.warnings:
            typer.echo(f"Warning: {one.run.name}: {warning}", err=True)
    save_evaluations(target, first.evaluations)
    if save_dir is not None:
        count = len(write_field_files(field_record(first, store), save_dir))
        typer.echo(f"Wrote {save_dir}: {count} files in the field's formats")
    if not no_report:
        assessed = [assess_run(first, store), *(assess_run(each, store, first) for each in measured[1:])]
        saved = save_evaluations(target, assessed[0].evaluations)
        written = write_report(assessed, folder, comparisons=comparisons, keep=saved)
        missing = missing_for_figures()
        if missing:
            typer.echo(f"Wrote {folder}: tables, but no figures and no page: {missing}")
        else:
            typer.echo(f"Wrote {written[0]}: open it in a browser")
    typer.echo(f"Wrote {target}: means and curves; per-query values in the .parquet next to it")


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

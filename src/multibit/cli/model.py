"""Verbs that train and measure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from multibit.cli.options import (
    Cluster,
    ClusterOption,
    ConfigOption,
    Device,
    DeviceOption,
    FeaturesArgument,
    OptionalFeatures,
    PresetOption,
    RunArgument,
    SeedOption,
    SetOption,
    VariantOption,
    read_config,
    refuse_unused,
    stdout,
)
from multibit.errors import ConfigError, DataError

if TYPE_CHECKING:
    from rich.console import Console

    from multibit.data import FeatureStore
    from multibit.evaluation import Evaluation
    from multibit.runs import Run


def train(
    features: FeaturesArgument,
    out: Annotated[Path, typer.Option(help="Run folder to make; an unfinished run in it goes on.")],
    variant: VariantOption = "multibit-plus",
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
    from multibit.files import require_writable
    from multibit.hashing.variants import find_variant
    from multibit.runs import Run, require_alone, require_split_of

    chosen = find_variant(variant)
    resolved = read_config(preset, config, settings, seed, chosen.settings)
    require_writable(out, folder=True)
    require_alone(out, separate=chosen.separate)
    store = FeatureStore.open(features)
    require_split_of(split, store.dataset)
    store.require_finite()  # also where training does not look: the run could not be evaluated
    rows = choose_split(
        store.dataset.ids,
        split,
        source=store.source,
        sizes={"query": query, "training": training, "validation": validation},
        groups=groups,
        seed=resolved.seed,
    )
    console = stdout()
    console.print(f"Split {rows.describe()}")
    for name, each in chosen.models(resolved).items():
        finished = chosen.separate and (out / name / "run.json").exists()  # of an interrupted series
        run = Run.load(out / name) if finished else Run.create(out / name, store, rows, each, device=device.value)
        if run.config != each or run.split.fingerprint() != rows.fingerprint():
            raise DataError(f"{out / name}: holds a run of other settings. Choose another folder or delete it first.")
        epoch, rule = run.record["selection"]["epoch"], run.record["selection"]["rule"]
        console.print(f"Wrote {out / name}: {run.model.bits}-bit code, best epoch {epoch} ({rule})")


def encode(
    ctx: typer.Context,
    run: RunArgument,
    features: OptionalFeatures = None,
    out: Annotated[Path, typer.Option(help="The .npz or .mat file to write.")] = Path("codes.npz"),
    bits: Annotated[int | None, typer.Option(help="Code length, 1 to the full length (default).")] = None,
    engine: ClusterOption = Cluster.local,
    workers: Annotated[int, typer.Option(min=1, help="Workers of Ray.")] = 2,
) -> None:
    """Write the codes of all items for other tools.

    .npz: ids, image and text (items, bytes) uint8, bits; np.unpackbits(image, axis=1)[:, :B] are the first B bits.
    .mat: q_img q_txt r_img r_txt (-1, +1), q_l r_l; queries and database of the run's split.
    """
    from multibit.files import require_writable
    from multibit.runs import Run

    if engine is Cluster.local:
        refuse_unused(ctx, "without --engine ray", "workers")
    if out.suffix not in (".npz", ".mat"):
        raise ConfigError(f"--out {out}: must be a file name that ends in .npz or .mat, such as codes.npz.")
    require_writable(out, unlike=(features,))
    loaded = Run.load(run)
    require_writable(out, unlike=(loaded.features,))
    store = loaded.open_features(features)
    save = loaded.save_mat if out.suffix == ".mat" else loaded.save_codes
    save(out, store, bits, engine=engine.value, workers=workers)
    stdout().print(f"Wrote {out}: {len(store):,} items, {bits or loaded.model.bits} bits per modality", soft_wrap=True)


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
    loaded = Run.load(run)
    _check_places(target, None if no_report else folder, save_dir)
    runs = [loaded, *(Run.load(path) for path in against or ())]
    for other in runs[1:]:
        loaded.require_comparable(other)
    store = loaded.open_features(features)
    measured = [each.evaluate(store, at=at) for each in runs]  # run -> protocol -> evaluation
    tables = [accuracy_table(evaluation) for evaluation in measured[0]]
    if len(runs) > 1:
        tables += [compare(*evaluations).table() for evaluations in zip(*measured, strict=True)]
    console = stdout()
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


def _check_places(out: Path, report: Path | None, field: Path | None) -> None:
    """Refuse what could not be written, before the work."""
    from multibit.report import field as field_files
    from multibit.report import page, values

    if out.suffix != ".json":
        raise ConfigError(f"--out {out}: must end in .json.")
    values.check_target(out)
    if report is not None:
        page.check_target(report)
    if field is not None:
        field_files.check_target(field)


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

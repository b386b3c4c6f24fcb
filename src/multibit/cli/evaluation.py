"""The verb `evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from multibit.cli.options import (
    DownloadOption,
    OptionalFeatures,
    echo,
    lines,
    numbers,
    refuse_unused,
    require_ending,
    show,
)
from multibit.errors import ConfigError, DataError

if TYPE_CHECKING:
    from multibit.evaluation.assessment import Assessment
    from multibit.evaluation.comparison import Comparison
    from multibit.measurement import Measurement
    from multibit.report.examples import Example


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

"""The verb `evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

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
from multibit.errors import ConfigError, DataError, counted

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
    from multibit.records import is_run
    from multibit.search.code_sets import is_codes

    for name, given in {"report": report is not None, "pdf": pdf}.items():
        if given and no_report:
            raise ConfigError("cannot be combined with --no-report.", option=name, hint="Give one of them.")
    elsewhere = not is_run(run) and is_codes(run)
    if elsewhere:
        refuse_unused(ctx, "on codes made elsewhere", "save_dir")
        if not against:
            refuse_unused(ctx, "on codes made elsewhere without --against", "features")
        else:
            refuse_unused(ctx, "with --against, because the run has the names", "label_names")
        folder, target = report or _next_to(run, "report"), out or _next_to(run, "evaluation.json")
    else:
        refuse_unused(ctx, "on a run", "lengths", "label_names")
        folder, target = report or run / "report", out or run / "evaluation.json"
    own, written = not (elsewhere or out), None if no_report else folder
    asked = _Asked(features, at, against or [], target, own, written, save_dir, pdf, markdown, download)
    if elsewhere:
        _evaluate_codes(ctx, run, asked, lengths, lines(label_names) or [])
    else:
        _evaluate_run(ctx, run, asked)
    echo(f"Wrote {target}: means and curves; per-query values in the .parquet next to it")


class _Asked(NamedTuple):
    """Options of every evaluation.

    Attributes:
        target: the evaluation file. own: whether it is that of the run, where nothing else can be.
        report, save_dir: folders that are written; None for those that are not.
    """

    features: Path | None
    at: int | None
    against: Sequence[Path]
    target: Path
    own: bool
    report: Path | None
    save_dir: Path | None
    pdf: bool
    markdown: bool
    download: bool

    def hold_outputs(self, ctx: typer.Context) -> None:
        """Refuse outputs that cannot be written, and be their only writer until the verb ends."""
        from multibit.evaluation.storage import require_evaluation_target
        from multibit.folders import only_writer_of
        from multibit.report import field, page
        from multibit.report.folder import require_folder

        require_ending(self.target, "out", ".json")
        require_evaluation_target(self.target, own=self.own)
        if self.report is not None:
            require_folder(self.report, folders=page.FOLDERS, files=(page.PAGE,))
        if self.save_dir is not None:
            require_folder(self.save_dir, folders=(field.FOLDER,))
        outputs = self.target, self.target.with_suffix(".parquet"), self.report, self.save_dir
        ctx.with_resource(only_writer_of(*outputs))


def _evaluate_run(ctx: typer.Context, path: Path, asked: _Asked) -> None:
    """Evaluate a run."""
    from multibit.evaluation.ranking import DEPTH
    from multibit.evaluation.storage import save_evaluations
    from multibit.measurement import assess_run, measure, references_of
    from multibit.pipeline import open_features, require_comparable, require_one_view
    from multibit.report.examples import example_searches
    from multibit.report.field import LAST, field_record, write_field_files
    from multibit.runs import Run

    run = Run.load(path)
    asked.hold_outputs(ctx)
    others = [Run.load(each) for each in asked.against]
    for other in others:
        require_comparable(run, other)
    if asked.save_dir is not None:
        require_one_view(run, "Each of the field's files")
    store = open_features(run, asked.features)
    if asked.save_dir is not None and not store.dataset.label_rows.per_item().any():
        raise DataError("the field's files need labels, and no item has one.", option="save_dir")
    first = measure(run, store, at=asked.at, depth=DEPTH if asked.save_dir is None else LAST)
    measured = [first, *(measure(other, store, at=asked.at, depth=0, relaxed=False) for other in others)]
    comparisons = _show_tables(measured, asked.markdown)
    save_evaluations(asked.target, first.evaluations)
    if asked.save_dir is not None:
        count = len(write_field_files(field_record(first, store), asked.save_dir))
        echo(f"Wrote {asked.save_dir}: {counted(count, 'file', 'files')} in the field's formats")
    if asked.report is not None:
        encoder = run.encoder_recipe("text")
        references = references_of(encoder, run.label_names, first.database, run.folder, download=asked.download)
        assessed = [
            assess_run(each, store, None if each is first else first, references=references) for each in measured
        ]
        _write_report(assessed, asked, asked.report, comparisons, example_searches(first, store))


def _evaluate_codes(
    ctx: typer.Context, path: Path, asked: _Asked, lengths: str | None, label_names: Sequence[str]
) -> None:
    """Evaluate codes made elsewhere."""
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
    from multibit.pipeline import open_features
    from multibit.runs import Run
    from multibit.search.code_sets import CodeSets

    asked.hold_outputs(ctx)
    sets = CodeSets.open(path, None if lengths is None else numbers(lengths, "lengths", int))
    sets.require_label_names(label_names)
    runs = [Run.load(each) for each in asked.against]
    stores = [open_features(run, asked.features) for run in runs]
    for run, store in zip(runs, stores, strict=True):
        require_same_items(sets, run, store)
    others = [measure_against(sets, run, store, at=asked.at) for run, store in zip(runs, stores, strict=True)]
    first = measure_codes(sets, protocol=PROTOCOLS["in"] if others else WHOLE, at=asked.at)
    for note in sets.notes:
        echo(f"Note: {note}")
    comparisons = _show_tables([first, *others], asked.markdown)
    save_evaluations(asked.target, first.evaluations)
    if asked.report is not None:
        measured_with = zip(others, stores, strict=True)
        compared = [assess_run(other, store, first, download=asked.download) for other, store in measured_with]
        known = assess_codes(
            first,
            runs[0].label_names if runs and sets.labelled else label_names,
            runs[0].encoder_recipe("text") if runs else None,
            runs[0].folder if runs else None,
            download=asked.download,
        )
        _write_report([known, *compared], asked, asked.report, comparisons)


def _next_to(path: Path, name: str) -> Path:
    """The default output of codes made elsewhere, such as `codes-report` of `codes.mat`."""
    whole = path if path.name not in ("", "..") else path.resolve()
    return whole.with_name(f"{whole.name if whole.is_dir() else whole.stem}-{name}")


def _show_tables(measured: Sequence[Measurement], markdown: bool) -> list[Comparison]:
    """Print the accuracy of the first run, compared with the others under each protocol, and warnings about all."""
    from multibit.evaluation.comparison import compare
    from multibit.evaluation.tables import accuracy_table, pair_tables
    from multibit.measurement import NO_LABELS

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
    asked: _Asked,
    folder: Path,
    comparisons: Sequence[Comparison],
    examples: Sequence[Example] = (),
) -> None:
    """Write the report and the evaluation with all its metrics."""
    from multibit.evaluation.storage import save_evaluations
    from multibit.report.page import missing_for_figures, write_report

    saved = save_evaluations(asked.target, assessed[0].evaluations)
    written = write_report(assessed, folder, comparisons=comparisons, examples=examples, pdf=asked.pdf, keep=saved)
    missing = missing_for_figures()
    if missing:
        echo(f"Wrote {folder}: tables, but no figures and no page: {missing}")
    else:
        echo(f"Wrote {written[0]}: open it in a browser")

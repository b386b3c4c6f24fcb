"""The verbs about the paper's methods, tables and figures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from multibit.cli.options import (
    Device,
    DeviceOption,
    DownloadOption,
    PresetOption,
    SetOption,
    echo,
    numbers,
    pairs,
    refuse_unused,
    show,
    stdout,
)
from multibit.errors import ConfigError, counted

if TYPE_CHECKING:
    from multibit.config import Config

NOT_JOINED = (
    "table", "methods", "seeds", "quick", "preset", "settings", "labels_key", "text_encoder", "queries", "training",
    "validation", "download", "device",
)  # fmt: skip
"""Options of `reproduce` that have no effect when finished reproductions are joined."""


def methods() -> None:
    """List the training methods and relation teachers.

    A method is chosen by `train --method NAME`, a relation teacher by `train --set teacher=NAME`.
    """
    from multibit.report.method_tables import methods_tables

    for table in methods_tables():
        show(table)


def reproduce(
    ctx: typer.Context,
    data: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[DATA]",
            help="A feature store, or an .npz with features or labels only. Default: the included sample. "
            "With --join the folders of finished reproductions.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of runs, tables and figures; finished runs there are kept.")] = Path(
        "multibit-reproduction"
    ),
    table: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this table or figure; --list shows the names, sota is all that compare methods. Repeatable."
        ),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(help="Compared methods to show, comma-separated. Default: all with --table sota, else none."),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the tables and figures, and exit.")] = False,
    seeds: Annotated[
        str, typer.Option(help="Training seeds, comma-separated; several give mean ± standard deviation.")
    ] = "42",
    quick: Annotated[bool, typer.Option("--quick", help="Few epochs and no sensitivity grid, as a test run.")] = False,
    preset: PresetOption = None,
    settings: SetOption = None,
    labels_key: Annotated[str | None, typer.Option(help="Key of the labels in an .npz without features.")] = None,
    text_encoder: Annotated[
        str | None,
        typer.Option(help="Encoder of the label names: name, folder or hub name. Default: that of the features."),
    ] = None,
    queries: Annotated[int | None, typer.Option(min=1, help="Number of query items. Default: the paper's.")] = None,
    training: Annotated[int | None, typer.Option(min=2, help="Number of training items. Default: the paper's.")] = None,
    validation: Annotated[
        int | None, typer.Option(min=0, help="Number of validation items. Default: the paper's.")
    ] = None,
    joined: Annotated[
        bool, typer.Option("--join", help="Join finished reproductions of several datasets into the paper's layouts.")
    ] = False,
    download: DownloadOption = False,
    device: DeviceOption = Device.cpu,
) -> None:
    """Reproduce the paper's tables and figures.

    Each number is printed next to the paper's. --preset names the paper's dataset; without it there is no column of
    the paper. If interrupted, run the same command again: trained runs are kept.
    """
    from multibit.folders import only_writer
    from multibit.hashing.code_model import check_device
    from multibit.machine import processors
    from multibit.paper.join import join
    from multibit.paper.reproduce import (
        SUMMARY,
        choose,
        compared_methods,
        entries_table,
        open_subject,
        reproduce_all,
        require_plan,
    )
    from multibit.paper.reproduction import Reproduction
    from multibit.paths import require_writable

    if list_:
        show(entries_table())
        return
    if joined:
        refuse_unused(ctx, "with --join, which reads finished reproductions", *NOT_JOINED)
        echo(f"Wrote {out}: {counted(len(join(data or [], out)), 'file', 'files')}")
        return
    if data and len(data) > 1:
        raise ConfigError(
            f"need one dataset, got {len(data)}.", option="data", hint="Join finished folders by `joined`."
        )
    source = data[0] if data else None
    names = choose(table or [], quick=quick)
    require_writable(out, folder=True)
    check_device(device.value)
    config, wanted = _read_settings(preset, settings, quick=quick), numbers(seeds, "seeds", int)
    require_plan(config, wanted)
    if labels_key and (source is None or source.suffix != ".npz"):
        raise ConfigError(f"names the labels in an .npz, got {source or 'the sample'}.", option="labels_key")
    subject = open_subject(source or _sample_features(out), labels_key, None if preset == "default" else preset)
    sizes = {"query": queries, "train": training, "validation": validation}
    given = None if methods is None else [name.strip() for name in methods.split(",") if name.strip()]
    made = Reproduction(
        subject, out, config, device.value, say=echo,
        sizes={role: size for role, size in sizes.items() if size is not None} or None, text_encoder=text_encoder,
        workers=processors() if device is Device.cpu else 1,
        compared=compared_methods(given, table or [], subject.store), download=download,
    )  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    ctx.with_resource(only_writer(out, (SUMMARY, "reproduction.md")))
    tables, left_out = reproduce_all(made, names, wanted, out, stdout())
    echo(f"Wrote {out / 'reproduction.md'}: {counted(len(tables), 'table', 'tables')} now")
    if table and left_out:
        raise typer.Exit(1)  # a table or figure that was named could not be made


def _read_settings(preset: str | None, settings: list[str] | None, *, quick: bool) -> Config:
    """The settings of all trainings; the seeds have an option of their own."""
    from multibit.config import Config
    from multibit.paper.reproduce import QUICK

    given = pairs(settings, "settings")
    if "seed" in given:
        raise ConfigError("is not a setting of a reproduction.", option="seed", hint="Use `seeds`.")
    return Config.preset(preset or "default").override({**(QUICK if quick else {}), **given})


def _sample_features(out: Path) -> Path:
    """Path of the features of the included sample, computed once in the folder."""
    from multibit.demo import sample_features

    sample_features(out / "features", stdout())
    return out / "features"

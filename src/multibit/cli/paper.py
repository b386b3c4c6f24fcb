"""Verbs about the paper's variants and tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from multibit.cli.options import (
    Device,
    DeviceOption,
    PresetOption,
    SetOption,
    pairs,
    read_config,
    stdout,
)
from multibit.errors import ConfigError


def variants() -> None:
    """List the methods that `train --variant` knows, and the relation teachers of `--set teacher=NAME`."""
    from multibit.report.tables import variants_tables

    console = stdout()
    for table in variants_tables():
        console.print(table.rich())


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

    from multibit.files import require_writable
    from multibit.report.reproduce import QUICK, choose, entries_table, open_subject, reproduce_all, require_plan
    from multibit.report.reproduction import Reproduction
    from multibit.report.tables import counted
    from multibit.training import check_device

    console = stdout()
    if table == ["list"]:
        console.print(entries_table().rich())
        return
    names = choose(table or [], quick=quick)
    require_writable(out, folder=True)
    check_device(device.value)
    if "seed" in pairs(settings, "--set"):
        raise ConfigError("--set seed: give seeds with --seeds.")
    config = read_config(preset, None, settings, None, QUICK if quick else None)
    wanted = _seeds(seeds)
    require_plan(config, wanted)
    if labels_key and (data is None or data.suffix != ".npz"):
        raise ConfigError(f"--labels-key {labels_key}: names the labels in an .npz, got {data or 'the sample'}.")
    subject = open_subject(data or _sample_features(out), labels_key, None if preset == "default" else preset)
    made = Reproduction(subject, out, config, device.value, say=partial(console.print, markup=False))
    tables, left_out = reproduce_all(made, names, wanted, out, console)
    made_now = counted(len(tables), "table", "tables")
    console.print(f"Wrote {out / 'reproduction.md'}: {made_now} now", markup=False, soft_wrap=True)
    if table and left_out:
        raise typer.Exit(1)  # something that was asked for by name could not be made


def _seeds(text: str) -> list[int]:
    try:
        return [int(seed) for seed in text.split(",") if seed.strip()]
    except ValueError:
        raise ConfigError(f"--seeds {text}: need whole numbers with commas between them.") from None


def _sample_features(out: Path) -> Path:
    """Features of the shipped sample, made once in the folder."""
    from multibit.demo import sample_features

    sample_features(out / "features", stdout())
    return out / "features"

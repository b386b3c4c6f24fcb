"""The verbs about the paper's methods, tables and figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from multibit.cli.options import Device, DeviceOption, PresetOption, SetOption, pairs, read_config, show, stdout
from multibit.errors import ConfigError


def methods() -> None:
    """List the training methods and relation teachers.

    A method is chosen by `train --method NAME`, a relation teacher by `train --set teacher=NAME`.
    """
    from multibit.report.tables import methods_tables

    for table in methods_tables():
        show(table)


def reproduce(
    data: Annotated[
        Path | None,
        typer.Argument(
            metavar="DATA",
            help="A feature store, or an .npz with features or labels only. Default: the included sample.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of runs, tables and figures; finished runs there are kept.")] = Path(
        "multibit-reproduction"
    ),
    table: Annotated[
        list[str] | None, typer.Option(help="Only this table or figure; --list shows the names. Repeatable.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the tables and figures, and exit.")] = False,
    seeds: Annotated[
        str, typer.Option(help="Training seeds, comma-separated; several give mean ± standard deviation.")
    ] = "42",
    quick: Annotated[bool, typer.Option("--quick", help="Few epochs and no sensitivity grid, as a test run.")] = False,
    preset: PresetOption = None,
    settings: SetOption = None,
    labels_key: Annotated[str | None, typer.Option(help="Key of the labels in an .npz without features.")] = None,
    device: DeviceOption = Device.cpu,
) -> None:
    """Reproduce the paper's tables and figures.

    Each number is printed next to the paper's. --preset names the paper's dataset; without it there is no column of
    the paper. If interrupted, run the same command again: trained runs are kept.
    """
    from multibit.files import require_writable
    from multibit.hashing.model import check_device
    from multibit.paper.reproduce import QUICK, choose, entries_table, open_subject, reproduce_all, require_plan
    from multibit.paper.reproduction import Reproduction
    from multibit.table import counted

    if list_:
        show(entries_table())
        return
    names = choose(table or [], quick=quick)
    require_writable(out, folder=True)
    check_device(device.value)
    if "seed" in pairs(settings, "settings"):
        raise ConfigError("is not a setting of a reproduction.", option="seed", hint="Use `seeds`.")
    config = read_config(preset, None, settings, None, QUICK if quick else None)
    wanted = _seeds(seeds)
    require_plan(config, wanted)
    if labels_key and (data is None or data.suffix != ".npz"):
        raise ConfigError(f"names the labels in an .npz, got {data or 'the sample'}.", option="labels_key")
    subject = open_subject(data or _sample_features(out), labels_key, None if preset == "default" else preset)
    made = Reproduction(subject, out, config, device.value, say=typer.echo)
    tables, left_out = reproduce_all(made, names, wanted, out, stdout())
    typer.echo(f"Wrote {out / 'reproduction.md'}: {counted(len(tables), 'table', 'tables')} now")
    if table and left_out:
        raise typer.Exit(1)  # a table or figure that was named could not be made


def _seeds(text: str) -> list[int]:
    try:
        return [int(seed) for seed in text.split(",") if seed.strip()]
    except ValueError:
        raise ConfigError(f"need comma-separated integers, got {text!r}.", option="seeds") from None


def _sample_features(out: Path) -> Path:
    """Path of the features of the included sample, computed once in the folder."""
    from multibit.demo import sample_features

    sample_features(out / "features", stdout())
    return out / "features"

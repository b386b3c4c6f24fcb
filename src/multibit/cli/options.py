"""What several verbs share: options, choices, and how they are read."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from multibit.errors import ConfigError, DataError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from multibit.config import Config


Device = StrEnum("Device", "cpu cuda")
"""Where networks run."""

Kind = StrEnum(
    "Kind",
    "manifest npz mat mat-features mirflickr coco nuswide iapr folders pairs webdataset huggingface",
)
"""Kinds of sources of data, as `multibit.data.sources.READERS` has them."""

Dtype = StrEnum("Dtype", "float32 float16")
"""Precision of networks and features."""

Cluster = StrEnum("Cluster", "local ray")
"""What shares out the work of features and codes."""


class Modality(StrEnum):
    """The two sides of a pair, as values that the type checker knows."""

    image = "image"
    text = "text"


QueryKind = StrEnum("QueryKind", "picture text")
"""How to read a query."""

Items = StrEnum("Items", "all database")
"""Which items to take."""

EngineName = StrEnum("EngineName", "exact lists faiss reference")
"""Engines that an index file can ask for."""

MAX_ROWS = 20  # of a table on the terminal
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
ClusterOption = Annotated[
    Cluster, typer.Option("--engine", help="Where to encode: here, or on the machines of a Ray cluster (RAY_ADDRESS).")
]
DeviceOption = Annotated[Device, typer.Option(help="Where networks run.")]
PresetOption = Annotated[
    str | None, typer.Option(help="Settings of the paper: default, mirflickr, coco, iapr, nuswide.")
]
ConfigOption = Annotated[Path | None, typer.Option(help="TOML file of settings, instead of a preset.")]
SetOption = Annotated[list[str] | None, typer.Option("--set", help="NAME=VALUE of any setting, e.g. --set epochs=30.")]
VariantOption = Annotated[str, typer.Option(help="The method or one of its ablations; `multibit variants` lists them.")]
SeedOption = Annotated[int | None, typer.Option(help="Seed of split, initial weights and batches.")]


def stdout() -> Console:
    """The console; lines keep their length where nobody looks at them."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=not sys.stdout.isatty(), width=None if sys.stdout.isatty() else 120)


def read_config(
    preset: str | None,
    file: Path | None,
    settings: list[str] | None,
    seed: int | None,
    variant: Mapping[str, Any] | None = None,
) -> Config:
    """The preset, changed by the variant, changed by the file, changed by single settings."""
    from multibit.config import Config

    if preset and file:
        raise ConfigError("give --preset or --config, not both; a config file can name its preset.")
    base = Config.load(file, variant) if file else Config.preset(preset or "default").override(variant or {})
    seeded = {} if seed is None else {"seed": seed}
    return base.override({**pairs(settings, "--set"), **seeded})


def refuse_unused(ctx: typer.Context, why: str, *names: str) -> None:
    """Refuse options that were given though nothing would come of them.

    Args:
        ctx: of the verb. why: they have no effect. names: of their parameters.

    Raises:
        ConfigError: names those that were given.
    """
    sources = {
        option.opts[0]: ctx.get_parameter_source(option.name or "")
        for option in ctx.command.params
        if option.name in names
    }
    given = [option for option, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    if given:
        raise ConfigError(f"{', '.join(given)}: no effect {why}. Leave it out.")


def pairs(values: list[str] | None, option: str) -> dict[str, str]:
    """NAME=VALUE of a repeated option.

    Raises:
        ConfigError: another form.
    """
    pairs = {}
    for value in values or ():
        name, equals, content = value.partition("=")
        if not equals or not name:
            raise ConfigError(f"{option} {value}: need NAME=VALUE.")
        pairs[name.strip()] = content.strip()
    return pairs


def lines(path: Path | None) -> list[str] | None:
    """Lines of a file that are not empty; None without a file.

    Raises:
        DataError: not UTF-8, or no such line.
    """
    if path is None:
        return None
    try:
        found = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 ({error}).") from None
    if not found:
        raise DataError(f"{path}: is empty; write the names into it, one a line.")
    return found

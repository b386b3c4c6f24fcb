"""Options, choices and readers that several verbs share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from multibit.errors import ConfigError, DataError, printable

if TYPE_CHECKING:
    from rich.console import Console

    from multibit.hashing.methods import Method
    from multibit.table import Table


N = TypeVar("N", int, float)

Device = StrEnum("Device", "cpu cuda")
"""Where networks run."""

Kind = StrEnum(
    "Kind",
    "manifest npz mat mat-features mirflickr coco nuswide iapr folders pairs webdataset huggingface",
)
"""Dataset layouts that `import` reads, as in `multibit.data.sources.READERS`."""

Dtype = StrEnum("Dtype", "float32 float16")
"""Precision of encoders and features."""

Runtime = StrEnum("Runtime", "torch onnxruntime")
"""Libraries that run an encoder, as in `multibit.features.load.RUNTIMES`."""

Cluster = StrEnum("Cluster", "local ray")
"""Where features and codes are computed."""

Target = StrEnum("Target", "portable huggingface sentence-transformers")
"""What `export` writes to a folder."""

Items = StrEnum("Items", "all database")
"""Items to index."""

EngineName = StrEnum("EngineName", "exact lists faiss reference")
"""Search engines, as in `multibit.search.engines.ENGINES`."""

Modality = Literal["image", "text"]
"""As in `multibit.codes`, which is slow to import."""

MAX_ROWS = 20
"""Rows of a table on the terminal."""

FeaturesArgument = Annotated[
    Path, typer.Argument(metavar="FEATURES", help="A feature store folder, or an .npz with image, text, labels.")
]
OptionalFeatures = Annotated[
    Path | None,
    typer.Argument(metavar="FEATURES", help="A feature store folder or .npz. Default: the features of the training."),
]
DataOrUrlArgument = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="A .csv, .tsv, .jsonl, .json or .parquet: id, image, text or texts, labels. Or a URL of such files or of "
        "WebDataset shards.",
    ),
]
UrlDownloadOption = Annotated[
    bool,
    typer.Option("--download", help="Fetch images that a manifest of a URL has in other stores, without credentials."),
]
RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="A run folder written by `multibit train`, or a portable model.")
]
ImagesOption = Annotated[Path | None, typer.Option(help="Folder of the images. Default: the folder of the manifest.")]
ColumnOption = Annotated[
    list[str] | None,
    typer.Option("--map", help="FIELD=NAME of a field with another name, e.g. image=file_name. Repeatable."),
]
SeparatorOption = Annotated[
    str | None, typer.Option(help="Separates several labels or texts in one CSV cell. Default: |")
]
SpreadsheetSafeOption = Annotated[
    bool,
    typer.Option("--spreadsheet-safe", help="In a .csv, put an apostrophe in front of ids and paths like formulas."),
]
LabelNamesOption = Annotated[
    Path | None, typer.Option(help="File with the allowed label names, one per line. Default: all that occur.")
]
ClusterOption = Annotated[
    Cluster, typer.Option("--engine", help="Encode on this machine, or on a Ray cluster (RAY_ADDRESS).")
]
DeviceOption = Annotated[Device, typer.Option(help="Where networks run.")]
PresetOption = Annotated[
    str | None, typer.Option(help="The paper's settings for a dataset: default, mirflickr, coco, iapr, nuswide.")
]
ConfigOption = Annotated[Path | None, typer.Option(help="TOML file of settings, instead of a preset.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="NAME=VALUE of any setting, e.g. epochs=30. Repeatable.")
]
MethodOption = Annotated[
    str | None,
    typer.Option(
        help="Method or ablation; `multibit methods` lists them. Default: multibit-plus, without any labels "
        "multibit-free, with a preset of the paper's datasets multibit."
    ),
]
DemoMethodOption = Annotated[str, typer.Option(help="Method or ablation; `multibit methods` lists them.")]
SeedOption = Annotated[int | None, typer.Option(help="Seed of initial weights and batches, not of the split.")]
QueriesOption = Annotated[
    int | None,
    typer.Option(
        help="Number of query items, with --training and --validation: all three or none. Default: 25 %, at most 5,000."
    ),
]
TrainingOption = Annotated[
    int | None,
    typer.Option(
        help="Number of training items, with --queries and --validation: all three or none. Default: 45 %, at most "
        "9,000."
    ),
]
ValidationOption = Annotated[
    int | None,
    typer.Option(
        help="Number of validation items, with --queries and --training: all three or none. Default: 5 %, at most "
        "1,000."
    ),
]
SplitOption = Annotated[
    str | None,
    typer.Option(
        help="A seed (in the field: 1814, 3407, 1), or rows or ids of each part: .npz, .mat, .json, a folder of "
        ".txt, or a run. Default: the split of the features, or the paper's rule with seed 42."
    ),
]
DownloadOption = Annotated[
    bool,
    typer.Option("--download", help="Allow the hub to be asked for the encoder that a file names, without your token."),
]
GroupsOption = Annotated[
    Path | None, typer.Option(help="Manifest of id and group; no group is in two parts of the split.")
]


def stdout() -> Console:
    """The console for tables. It prints text as it is: no markup, no emoji codes, and no line breaks in a file."""
    from rich.console import Console

    terminal = sys.stdout.isatty()
    return Console(
        markup=False, emoji=False, highlight=False, soft_wrap=not terminal, width=None if terminal else 10_000
    )


def echo(text: str, err: bool = False) -> None:
    """Print a line; control characters of the data become escapes."""
    typer.echo(printable(text), err=err)


def show(table: Table) -> None:
    """Print a table."""
    from multibit.table import print_table

    print_table(table, stdout())


def read_method(name: str | None, preset: str | None, file: Path | None, *, labels: bool = True) -> Method:
    """The named method, else that of the preset, which a settings file can name, or that of items without labels."""
    from multibit.config import preset_of
    from multibit.hashing.methods import choose_method

    if preset and file:
        raise ConfigError(
            "cannot be combined with --config.", option="preset", hint="A settings file can name its preset."
        )
    return choose_method(name, preset_of(file) if file else preset, labels=labels)


def describe_method(method: Method, *, labels: bool = True) -> str:
    """Which method is trained, and how to train the paper's, which needs labels."""
    from multibit.hashing.methods import PAPER_METHOD

    if not labels:
        return f"Method {method.name}; no training item has a label"
    if method.name == PAPER_METHOD:
        return f"Method {method.name}, the paper's"
    return f"Method {method.name}; the paper's is --method {PAPER_METHOD}"


def read_config(
    method: Method, preset: str | None, file: Path | None, settings: list[str] | None, seed: int | None
) -> Any:
    """The settings of a method: those of a preset, overridden by the file, then by single settings."""
    seeded = {} if seed is None else {"seed": seed}
    return method.configure(preset, file, {**pairs(settings, "settings"), **seeded})


def refuse_memory(**places: str | Path | None) -> None:
    """Refuse URLs of memory://, by option: what a command reads there is never there, and what it writes is lost.

    Raises:
        ConfigError: naming the option.
    """
    for option, place in places.items():
        if str(place).lower().startswith("memory:"):
            raise ConfigError(
                f"{place} is the memory of one process: empty when a command starts, lost when it ends.",
                option=option,
                hint="Use file:///FOLDER or an object store.",
            )


def refuse_unused(ctx: typer.Context, why: str, *names: str) -> None:
    """Refuse options that were given but have no effect.

    Args:
        ctx: of the verb. why: when they have no effect. names: of their parameters.

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
        raise ConfigError(f"no effect {why}.", option=", ".join(given), hint="Leave it out.")


def repeated(ctx: typer.Context, *without: str) -> list[str]:
    """The arguments and options that were given to a verb, to print a command for another verb.

    Args:
        ctx: of the verb. without: parameters to leave out.
    """
    words: list[str] = []
    for param in ctx.command.params:
        source = ctx.get_parameter_source(param.name or "")
        if param.name in without or source is None or source.name != "COMMANDLINE":
            continue
        value = ctx.params[param.name or ""]
        for each in value if isinstance(value, list | tuple) else [value]:
            text = str(each.value if isinstance(each, StrEnum) else each)
            words.append(text if param.param_type_name == "argument" else f"{param.opts[0]}={text}")
    return words


def require_ending(path: Path, option: str, *endings: str) -> None:
    """Refuse an output file with another ending.

    Args:
        path: of the output. option: parameter of the verb. endings: allowed.

    Raises:
        ConfigError: another ending, or only the ending.
    """
    if path.suffix not in endings:
        named = " or ".join(dict.fromkeys(ending.lower() for ending in endings))
        raise ConfigError(f"must be a file name that ends in {named}, got {path}.", option=option)


def pairs(values: list[str] | None, option: str) -> dict[str, str]:
    """NAME=VALUE pairs of a repeated option.

    Raises:
        ConfigError: another form, or a name that is given twice.
    """
    found: dict[str, str] = {}
    for value in values or ():
        name, equals, content = (part.strip() for part in value.partition("="))
        if not equals or not name:
            raise ConfigError(f"need NAME=VALUE, got {value!r}.", option=option)
        if name in found:
            raise ConfigError(f"{name} is given twice.", option=option, hint="Give each name once.")
        found[name] = content
    return found


def numbers(text: str, option: str, kind: Callable[[str], N]) -> list[N]:
    """Comma-separated numbers of a kind: `float`, or `int`.

    Raises:
        ConfigError: another form.
    """
    try:
        return [kind(part) for part in text.split(",") if part.strip()]
    except ValueError:
        what = "integers" if kind is int else "numbers"
        raise ConfigError(f"need comma-separated {what}, got {text!r}.", option=option) from None


def lines(path: Path | None) -> list[str] | None:
    """Non-empty lines of a file; None without a file.

    Raises:
        DataError: not text in UTF-8 or with a byte order mark, or no such line.
    """
    if path is None:
        return None
    from multibit.texts import read_text  # slow to import

    text = read_text(path).replace("\r", "\n")
    found = [line.strip() for line in text.split("\n") if line.strip()]
    if not found:
        raise DataError("the file is empty.", file=path, hint="Write the names into it, one per line.")
    return found

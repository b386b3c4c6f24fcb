"""The application: its help, its progress display, and its errors as one line of plain text."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from multibit import __version__
from multibit.errors import ConfigError, MissingExtraError, MultibitError, printable, shown_path
from multibit.progress import showing

SPELLED_AS: Mapping[str, tuple[str, ...]] = {
    "allowed": ("where",),
    "columns": ("column", "names"),
    "fields": ("field",),
    "folder": ("out",),
    "given": ("split",),
    "ids": ("remove",),
    "key": ("labels_key",),
    "names": ("vocabulary", "table"),
    "path": ("out",),
    "query": ("queries",),
    "run": ("source",),
    "train": ("training",),
    "url": ("to", "index"),
}
"""Argument of a Python function -> parameters of the verbs with that meaning, where the names differ."""


class Terminated(KeyboardInterrupt):
    """SIGTERM, as a batch system sends it before it kills: handled like Ctrl-C."""


def stop_on_sigterm() -> None:
    """Make SIGTERM interrupt the work like Ctrl-C: temporary files are removed, and what is finished stays."""

    def stop(*_: object) -> NoReturn:
        raise Terminated

    signal.signal(signal.SIGTERM, stop)


class Verb(TyperCommand):
    """A verb that refuses an option with one value that is given twice, and a URL where it needs a path."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line.

        Raises:
            ConfigError: an option is given twice, which would have no effect; or a URL, which would become the name of
                a local file.
        """
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        once = [param for param in order if not (getattr(param, "multiple", False) or getattr(param, "is_flag", False))]
        for param in once:
            if param.param_type_name == "option" and once.count(param) > 1:
                raise ConfigError("given twice.", option=str(param.name), hint="Give it once.")
        try:
            rest = list(super().parse_args(ctx, args))
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")  # which says nothing to a user
            raise
        for name, value in ctx.params.items():
            _refuse_urls(name, value if isinstance(value, list | tuple) else [value])
        return rest


def _refuse_urls(name: str, values: Iterable[Any]) -> None:
    """Refuse paths of a parameter that were given as URLs."""
    for value in values:
        if isinstance(value, Path) and (url := shown_path(value)) != str(value):
            hint = "Copy it to this machine. URLs are read by: multibit features, encode, index --codes."
            raise ConfigError(f"need a file or folder, got the URL {url}.", option=name, hint=hint)


class Verbs(TyperGroup):
    """The verbs. Progress is shown while one runs; an error that multibit raises on purpose is printed as one line."""

    def invoke(self, ctx: Any) -> Any:
        """Run the verb."""
        try:
            with showing(), _showing_notes():
                return super().invoke(ctx)
        except MultibitError as error:
            verb = self.get_command(ctx, ctx.invoked_subcommand or "")
            _fail(error.render(flags_of(verb, in_file=error.file is not None)), 1)
        except BrokenPipeError:  # the reader of the output has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(0)
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            _fail(f"{where}{error.strerror or error}. Existing files are unchanged.", 1)
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            _fail(MissingExtraError("torch", extra="train", need="This command").render(), 1)
        except MemoryError:
            _fail("out of memory. Use fewer items at a time.", 1)
        except KeyboardInterrupt as stop:
            code = 128 + (signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT)
            _fail("interrupted. The same command goes on from what was kept, or starts anew.", code)


@contextlib.contextmanager
def _showing_notes() -> Iterator[None]:
    """Print notes of multibit as one line, without the place in its code that Python shows with warnings."""
    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if category.__module__.startswith("multibit."):
                typer.echo(f"Note: {printable(str(message))}", err=True)
            else:
                usual(message, category, *place, **more)

        warnings.showwarning = show
        yield


def flags_of(verb: Any, *, in_file: bool = False) -> Callable[[str], str | None]:
    """How a verb spells the arguments of the Python functions that it calls.

    Args:
        verb: that ran. in_file: the error is about the content of a file, where settings go by their own names.

    Returns:
        Argument name -> its option, "--set NAME" for a setting, the capital name of a positional argument; None for
        any other name.
    """
    spelled = {
        str(param.name): param.opts[0] if param.param_type_name == "option" else str(param.metavar or param.name)
        for param in (verb.params if verb else ())
    }

    def flag_of(name: str) -> str | None:
        for known in (name, *SPELLED_AS.get(name, ())):
            if known in spelled:
                return spelled[known]
        if "settings" in spelled and not in_file and _is_setting(name):
            return f"{spelled['settings']} {name}"
        return None

    return flag_of


def _is_setting(name: str) -> bool:
    from multibit.hashing.methods import METHODS

    return any(hasattr(method.defaults, name) for method in METHODS.values())


app = typer.Typer(
    name="multibit",
    cls=Verbs,
    help=(
        "One nested binary code for image-text search.\n\n"
        "Start with `multibit demo`. The usual order for your own data: features, train, evaluate, index, search."
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"multibit {__version__}")
        raise typer.Exit


@app.callback()
def _multibit(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def _fail(message: str, code: int) -> NoReturn:
    typer.echo(f"Error: {' '.join(printable(message).splitlines())}", err=True)
    sys.exit(code)

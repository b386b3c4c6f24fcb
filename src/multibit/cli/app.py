"""The application: its help, and errors that people can mend as sentences."""

from __future__ import annotations

import sys
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from multibit import __version__
from multibit.errors import MultibitError


class Verbs(TyperGroup):
    """The verbs; errors that people can mend are sentences, not tracebacks."""

    def invoke(self, ctx: Any) -> Any:
        """Run the verb."""
        try:
            return super().invoke(ctx)
        except MultibitError as error:
            _fail(str(error), 1)
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            _fail(f"{where}{error.strerror or error}. Nothing that was there before is lost.", 1)
        except MemoryError:
            _fail("out of memory. Use fewer items at a time.", 1)
        except KeyboardInterrupt:
            _fail("interrupted. Run the same command again to go on from what was last saved.", 130)


app = typer.Typer(
    name="multibit",
    cls=Verbs,
    help=(
        "One nested binary code for image-text search.\n\n"
        "The usual order: features (encode pictures and texts), train, evaluate, index, search. "
        "Start with: multibit demo"
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
    typer.echo(f"Error: {message}", err=True)
    sys.exit(code)

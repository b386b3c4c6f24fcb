"""The command line: one verb per stage of the flow. It parses options, calls the library and prints."""

import threading
from collections.abc import Callable

from multibit.cli import about, data, evaluation, features, indices, model, paper, publish, search, serve
from multibit.cli.app import Verb, app, stop_on_sigterm
from multibit.cli.options import EngineName, Kind

__all__ = ["EngineName", "Kind", "app", "main"]

VERBS: dict[str, Callable[..., None]] = {
    "demo": data.demo,
    "import": data.import_,
    "label": data.label,
    "check": data.check,
    "features": features.features,
    "select": model.select,
    "train": model.train,
    "encode": model.encode,
    "evaluate": evaluation.evaluate,
    "index": indices.index,
    "merge": indices.merge,
    "export": publish.export,
    "search": search.search,
    "duplicates": indices.duplicates,
    "serve": serve.serve,
    "push": publish.push,
    "methods": paper.methods,
    "reproduce": paper.reproduce,
    "info": about.info,
}
"""Verb -> function, in the order of the help."""

for name, verb in VERBS.items():
    app.command(name, cls=Verb)(verb)


def main() -> None:
    """Run the command line."""
    if threading.current_thread() is threading.main_thread():
        stop_on_sigterm()
    app(prog_name="multibit")

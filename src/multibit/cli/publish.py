"""The verb that publishes a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from multibit.cli.options import RunArgument, echo


def push(
    run: RunArgument,
    repo_id: Annotated[str, typer.Argument(metavar="USER/NAME", help="Repository on the Hugging Face Hub.")],
    private: Annotated[bool, typer.Option("--private", help="Create a private repository.")] = False,
    license: Annotated[str | None, typer.Option(help="License in the model card, such as apache-2.0.")] = None,
    encoders: Annotated[
        bool | None,
        typer.Option(
            "--encoders/--no-encoders",
            help="Upload the encoders in ONNX, or only name them. Default: upload packaged ones.",
        ),
    ] = None,
    index: Annotated[
        Path | None,
        typer.Option(help="Also publish the indices of this folder: ids, texts, labels, but no paths of images."),
    ] = None,
    commit_message: Annotated[str, typer.Option("--message", help="Message of the commit.")] = "Upload a multibit run",
    create_pr: Annotated[bool, typer.Option("--pr", help="Open a pull request instead of writing to main.")] = False,
) -> None:
    """Publish a run on the Hugging Face Hub.

    Uploads the model in safetensors and ONNX, its record and a model card; no local paths, no features and no images.
    The token is that of `hf auth login`, or the variable HF_TOKEN.
    """
    from multibit.runs import Run

    address = Run.load(run).push_to_hub(
        repo_id,
        private=private or None,
        commit_message=commit_message,
        create_pr=create_pr,
        license=license,
        encoders=encoders,
        index=index,
    )
    echo(f"Published {run}: {address}")

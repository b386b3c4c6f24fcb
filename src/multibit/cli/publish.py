"""The verbs that hand results to other tools: export and push."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from multibit.cli.options import DownloadOption, Modality, Target, echo, refuse_unused
from multibit.errors import DataError, counted


def export(
    ctx: typer.Context,
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="An index (.mbx), a run, or a dataset.")],
    out: Annotated[
        Path,
        typer.Option(help="File for an index: .parquet (everything), .npy (codes) or .faiss. Else a new folder."),
    ],
    to: Annotated[
        Target | None,
        typer.Option(
            help="portable: a run that searches without torch. huggingface: items, images and codes for the `datasets` "
            "library. sentence-transformers: one modality of a run. Default: portable, or the file of an index."
        ),
    ] = None,
    modality: Annotated[
        Modality, typer.Option("--in", help="Modality for sentence-transformers. An index has only one.")
    ] = "text",
    bits: Annotated[int | None, typer.Option(help="Code length. Default: the full length.")] = None,
    int8: Annotated[
        bool,
        typer.Option("--int8", help="Of portable: a quantised text encoder, whose codes need indices of their own."),
    ] = False,
    download: DownloadOption = False,
) -> None:
    """Export an index, a run or a dataset for other tools.

    A portable model searches without torch: encoders and hash networks in ONNX, the tokenizer and a model card.
    """
    from multibit.paths import require_writable

    is_run = (source / "run.json").exists()
    _refuse_unfit(ctx, source, to, is_run)
    if to is None and not is_run:
        _export_index(ctx, source, out, bits)
        return
    if out.suffix in (".parquet", ".npy", ".faiss"):
        raise DataError(
            f"is exported to a new folder; {out.suffix} is for an index.",
            file=source,
            hint=f"Name an index of it, such as {source / 'index' / 'image.mbx'}." if is_run else "Name a folder.",
        )
    require_writable(out, folder=True)
    if to is Target.huggingface:
        _export_items(ctx, source, out, bits, is_run)
        return
    refuse_unused(ctx, "for a model, whose codes have all lengths", "bits")
    if to is Target["sentence-transformers"]:
        _export_sentences(source, out, modality)
    else:
        _export_portable(source, out, int8, download)


def _refuse_unfit(ctx: typer.Context, source: Path, to: Target | None, is_run: bool) -> None:
    """Refuse options without effect, and sources that cannot be exported so."""
    from multibit.data.rows import READ
    from multibit.portable.model import is_portable

    if to is not Target["sentence-transformers"]:
        refuse_unused(ctx, "except with --to sentence-transformers", "modality")
    if not source.exists():
        raise DataError("no such file or folder.", file=source)
    if to not in (None, Target.portable):
        refuse_unused(ctx, f"with --to {to.value}: only a portable model has encoders", "int8", "download")
    elif not is_run:
        refuse_unused(ctx, f"on {source}, which is not a run: only a portable model has encoders", "int8", "download")
    if to is None and is_portable(source):
        hint = "Copy the folder, or export the run that it was made of."
        raise DataError("is a portable model already.", file=source, hint=hint)
    if to is None and source.suffix.lower() in READ:
        hint = "Name an index (.mbx) or a run; items and images are exported with `to` huggingface."
        raise DataError("is neither an index nor a run.", file=source, hint=hint)


def _export_index(ctx: typer.Context, source: Path, out: Path, bits: int | None) -> None:
    from multibit.folders import only_writer_of
    from multibit.paths import require_writable
    from multibit.search import Index
    from multibit.search.exchange import export_codes, export_index

    require_writable(out, unlike=(source,))
    ctx.with_resource(only_writer_of(out))
    found = Index.load(source)
    if out.suffix == ".parquet":
        export_index(found, out, bits)
    else:
        export_codes(found, out, bits)
    echo(f"Wrote {out}: {counted(len(found), 'code', 'codes')} of {bits or found.bits} bits")


def _export_items(ctx: typer.Context, source: Path, out: Path, bits: int | None, is_run: bool) -> None:
    from multibit.inventory import open_data
    from multibit.pipeline import write_index_items, write_run_items

    if is_run:
        from multibit.pipeline import open_run

        length, count = write_run_items(open_run(source), out, bits)
    elif source.suffix == ".mbx":
        from multibit.search import Index

        length, count = write_index_items(Index.load(source), out, bits)
    else:
        from multibit.data.huggingface import write_huggingface

        refuse_unused(ctx, "for a dataset, which has no codes", "bits")
        dataset, _ = open_data(source)
        write_huggingface(dataset, out)
        length, count = 0, len(dataset)
    codes = f", codes of {length} bits" if length else ""
    echo(f"Wrote {out}: {counted(count, 'item', 'items')}{codes}")


def _export_portable(run: Path, out: Path, int8: bool, download: bool) -> None:
    from multibit.portable.export import export_run
    from multibit.runs import Run

    model = export_run(Run.load(run), out, int8=int8, download=download)
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    echo(f"Wrote {out}: {model.bits}-bit codes, {size / 1e6:.0f} MB, model {model.weights}")


def _export_sentences(run: Path, out: Path, modality: Modality) -> None:
    from multibit.integrations.sentence_transformers import export_sentences
    from multibit.runs import Run

    export_sentences(Run.load(run), out, modality)
    echo(f"Wrote {out}: open it with SentenceTransformer")


def push(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder written by `multibit train`.")],
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
    download: DownloadOption = False,
) -> None:
    """Publish a run on the Hugging Face Hub.

    Uploads the model in safetensors and ONNX, its record and a model card; no local paths, no features and no images.
    The token is that of `hf auth login`, or the variable HF_TOKEN.
    """
    from multibit.portable.model import is_portable
    from multibit.runs import Run

    if is_portable(run) and not (run / "run.json").exists():
        raise DataError("is a portable model.", file=run, hint="Push the run that it was exported from.")
    address = Run.load(run).push_to_hub(
        repo_id,
        private=private or None,
        commit_message=commit_message,
        create_pr=create_pr,
        license=license,
        encoders=encoders,
        index=index,
        download=download,
    )
    echo(f"Published {run}: {address}")

"""Published models: folders that hold no code, and the Hugging Face Hub."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from multibit.errors import ConfigError, DataError, FormatError, MissingExtraError, first_line

PUBLISHED = ("README.md", "*.json", "*.jsonl", "*.safetensors", "*.onnx", "*.onnx.data", "*.mbs")
"""Patterns of the files of a published folder; nothing else is uploaded or downloaded."""

PICKLED = (".bin", ".ckpt", ".joblib", ".pickle", ".pkl", ".pt", ".pth")
"""Endings of files whose reading could run code."""

REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def pull(
    id_or_path: str | Path,
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | Path | None = None,
    local_files_only: bool = False,
    force_download: bool = False,
) -> Path:
    """The folder of a published model: one on this disk, or downloaded from the Hugging Face Hub.

    `open_run` and `Run.load` open it. The network is used only if no folder has this name.

    Args:
        id_or_path: a folder, or `user/name` on the Hub.
        revision, token, cache_dir, local_files_only, force_download: as for `huggingface_hub.snapshot_download`. A
            folder has no revisions; the others have no effect on it.

    Raises:
        ConfigError: an empty name, or a revision of a folder. DataError: no such folder; or no such repository or
            revision, or no connection. FormatError: the folder has pickled files. MissingExtraError: huggingface_hub
            is not installed.

    Example:
        >>> pull(run.folder) == run.folder
        True
    """
    if not str(id_or_path).strip():
        raise ConfigError("is empty.", option="id_or_path", hint="Name a folder, or user/name on the Hub.")
    folder = Path(id_or_path)
    if folder.is_dir() and revision is not None:
        raise ConfigError(
            f"{id_or_path} is a folder on this disk, which has no revisions; got {revision!r}.",
            option="revision",
            hint="Leave it out, or rename the folder if you mean the repository of this name.",
        )
    if not folder.is_dir():
        folder = _downloaded(
            str(id_or_path), revision=revision, token=token, cache_dir=cache_dir, local_files_only=local_files_only,
            force_download=force_download,
        )  # fmt: skip
    require_no_pickles(folder)
    return folder


def require_no_pickles(folder: Path) -> None:
    """Refuse a folder with files whose reading could run code; multibit never reads them, but others might.

    Raises:
        FormatError: names the first one.
    """
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in PICKLED)
    if found:
        raise FormatError(
            "may be a pickled file, which could run code when it is read; a published model has none.",
            file=found[0],
            hint="Do not use this folder, or delete the file if it is your own.",
        )


def require_repository(repo_id: str) -> None:
    """Refuse a name that is not one of a repository.

    Raises:
        ConfigError: another form than `user/name`.
    """
    if not REPOSITORY.fullmatch(repo_id):
        raise ConfigError(f"need a name on the Hub such as user/name, got {repo_id!r}.", option="repo_id")


def upload(
    folder: Path,
    repo_id: str,
    *,
    private: bool | None = None,
    commit_message: str,
    token: str | bool | None = None,
    create_pr: bool = False,
) -> str:
    """Upload a published folder to the Hugging Face Hub and return the address of the commit or pull request.

    Args:
        folder: as `Run.save_pretrained` wrote it. repo_id: `user/name`, created if needed.
        private, commit_message, token, create_pr: as for `huggingface_hub.HfApi.upload_folder`.

    Raises:
        ConfigError: not a name, or the Hub refuses it, or there is no connection. MissingExtraError: huggingface_hub is
            not installed.
    """
    require_repository(repo_id)
    require_no_pickles(folder)
    api = _library().HfApi(token=token)
    try:
        api.create_repo(repo_id, private=private, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repo_id,
            folder_path=folder,
            commit_message=commit_message,
            create_pr=create_pr,
            allow_patterns=list(PUBLISHED),
        )
    except Exception as error:  # the library passes errors of its connections through
        raise ConfigError(
            f"{repo_id} cannot be written ({first_line(error)}).",
            option="repo_id",
            hint="Check the connection; log in with `hf auth login`, or set HF_TOKEN to a token that may write there.",
        ) from None
    return str((create_pr and commit.pr_url) or commit.commit_url)


def _downloaded(name: str, **options: Any) -> Path:
    if not REPOSITORY.fullmatch(name):
        raise DataError("no such folder, and not a name on the Hub such as user/name.", file=name)
    library = _library()
    try:
        return Path(library.snapshot_download(name, allow_patterns=list(PUBLISHED), **options))
    except Exception as error:  # the library passes errors of its connections through
        raise DataError(
            f"no such folder, and cannot be downloaded from the Hub ({first_line(error)}).", file=name
        ) from None


def _library() -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise MissingExtraError("huggingface_hub", extra="hub", need="The Hugging Face Hub") from None
    return huggingface_hub

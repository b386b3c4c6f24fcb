"""Objects in stores that fsspec reaches: `s3://`, `gs://`, `hf://`, `memory://`, `file://` and others.

Credentials come from the environment and the configuration of the user's own programs, never from a URL or a file.
"""

from __future__ import annotations

import contextlib
import posixpath
import re
import secrets
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from multibit.errors import DataError, MissingExtraError, first_line

TRIES = 3  # of a transfer
EXTRAS = {"s3": ("s3fs", "s3"), "s3a": ("s3fs", "s3"), "gs": ("gcsfs", "gcs"), "gcs": ("gcsfs", "gcs")}
"""Protocol -> the library that fsspec needs for it, and the extra that installs it."""

WITHOUT_CREDENTIALS: dict[str, dict[str, Any]] = {
    "s3": {"anon": True}, "s3a": {"anon": True}, "gs": {"token": "anon"}, "gcs": {"token": "anon"},
    "hf": {"token": False},
}  # fmt: skip
"""Protocol -> options for the addresses of strangers: they never get the user's credentials."""

_URL = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://(.*)", re.DOTALL)


def is_url(text: str | Path) -> bool:
    """Whether a text names an object in a store, not a file.

    Example:
        >>> is_url("s3://bucket/items.parquet"), is_url("items.parquet")
        (True, False)
    """
    return isinstance(text, str) and _URL.match(text) is not None


def joined(base: str, name: str) -> str:
    """The URL of a name that is relative to a folder.

    Example:
        >>> joined("s3://bucket/data", "../images/1.jpg")
        's3://bucket/images/1.jpg'
    """
    protocol, path = _split(base)
    return f"{protocol}://{posixpath.normpath(posixpath.join(path, name))}"


def place_of(url: str) -> str:
    """The store of a URL: protocol and bucket.

    Example:
        >>> place_of("s3://bucket/data/1.jpg"), place_of("file:///data/1.jpg")
        ('s3://bucket', 'file://')
    """
    protocol, path = _split(url)
    return f"{protocol}://{path.split('/')[0]}"


def parent_of(url: str) -> str:
    """The folder of an object."""
    protocol, path = _split(url)
    return f"{protocol}://{posixpath.dirname(path)}"


def _split(url: str) -> tuple[str, str]:
    found = _URL.match(url)
    if found is None or "::" in url:
        raise DataError("need one URL, such as s3://bucket/items.parquet or file:///data/items.parquet.", field=url)
    return found[1].lower(), found[2]


def _filesystem(url: str, stranger: bool = False) -> tuple[Any, str]:
    """The file system of a URL, and the path of the URL in it."""
    try:
        import fsspec
    except ImportError:
        raise MissingExtraError("fsspec", extra="objects", need="A URL") from None
    protocol, _ = _split(url)
    options = WITHOUT_CREDENTIALS.get(protocol, {}) if stranger else {}
    try:
        found = fsspec.filesystem(protocol, **options)
        return found, found._strip_protocol(url)
    except ImportError as error:
        module, extra = EXTRAS.get(protocol, (str(error.name or protocol), "objects"))
        raise MissingExtraError(module, extra=extra, need=f"A URL of {protocol}://") from None
    except ValueError as error:
        raise DataError(f"cannot be used ({error}).", field=url) from None


@contextlib.contextmanager
def _reported(url: str, doing: str) -> Iterator[None]:
    """Errors of a store, which may be of any type, as `DataError`; a missing object stays a FileNotFoundError."""
    try:
        yield
    except (DataError, MissingExtraError, FileNotFoundError, NotADirectoryError):
        raise
    except Exception as error:
        raise DataError(
            f"cannot be {doing} ({type(error).__name__}: {first_line(error)}).",
            field=url,
            hint="Credentials are taken from the environment.",
        ) from None


def sizes_of(urls: Sequence[str]) -> list[int]:
    """Bytes of some objects, -1 for those that are not there."""
    out = []
    for url in urls:
        files, path = _filesystem(url)
        with _reported(url, "read"):
            try:
                files.invalidate_cache()
                out.append(int(files.info(path)["size"] or 0))
            except (FileNotFoundError, NotADirectoryError):
                out.append(-1)
    return out


def listed(url: str, endings: Sequence[str]) -> list[str]:
    """The objects that a URL names: itself, those of a folder, or those that a pattern with * fits, in order.

    Args:
        url: of an object, a folder or a pattern. endings: of the names that are wanted, in lower case.

    Raises:
        DataError: none.
    """
    files, path = _filesystem(url)
    protocol, _ = _split(url)
    with _reported(url, "listed"):
        if any(mark in path for mark in "*?["):
            found = files.glob(path)
        elif path.lower().endswith(tuple(endings)):
            found = [path] if files.exists(path) else []
        else:
            found = files.ls(path, detail=False) if files.exists(path) else []
    names = sorted(str(name) for name in found if str(name).lower().endswith(tuple(endings)))
    if not names:
        what = "no such object" if path.lower().endswith(tuple(endings)) else "no such folder, or nothing in it"
        raise DataError(
            f"{what}; need objects that end in {', '.join(endings)}.",
            field=url,
            hint="Check the URL, and that this machine can reach and read it.",
        )
    rooted = _split(url)[1].startswith("/")
    return [f"{protocol}://{name if rooted else name.lstrip('/')}" for name in names]


def fetch(url: str, target: Path, *, stranger: bool = False) -> None:
    """Copy an object to a file, whole or not at all.

    Args:
        url: of the object. target: to write; its folder is made.
        stranger: the URL comes from a file of others, so it is asked for without credentials.

    Raises:
        FileNotFoundError: no such object. DataError: cannot be read, or is cut off again and again.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    for attempt in range(1, TRIES + 1):
        files, path = _filesystem(url, stranger)
        try:
            with _reported(url, "read"):
                size = files.info(path)["size"]
                with files.open(path, "rb") as source, part.open("wb") as file:
                    shutil.copyfileobj(source, file, 1 << 20)
                if size is not None and part.stat().st_size != size:
                    raise OSError(f"{part.stat().st_size:,} of {size:,} bytes")
            part.replace(target)
            return
        except DataError:
            if attempt == TRIES:
                raise
        finally:
            part.unlink(missing_ok=True)


def put(source: Path, url: str) -> None:
    """Copy a file to an object, which appears whole or not at all.

    Raises:
        DataError: cannot be written, or is cut off again and again.
    """
    temporary = f"{url}.{secrets.token_hex(4)}~"
    for attempt in range(1, TRIES + 1):
        files, path = _filesystem(temporary)
        try:
            with _reported(url, "written"):
                if _split(url)[0] not in EXTRAS:  # these have no folders, and would create a bucket that is missing
                    files.makedirs(posixpath.dirname(path), exist_ok=True)
                with source.open("rb") as file, files.open(path, "wb") as target:
                    shutil.copyfileobj(file, target, 1 << 20)
                files.invalidate_cache()
                if (size := files.info(path)["size"]) != source.stat().st_size:
                    raise OSError(f"{size:,} of {source.stat().st_size:,} bytes")
                files.mv(path, _filesystem(url)[1])
            return
        except FileNotFoundError as error:
            raise DataError(f"cannot be written ({error}).", field=url, hint="Create the bucket first.") from None
        except DataError:
            with contextlib.suppress(Exception):
                files.rm(path)
            if attempt == TRIES:
                raise

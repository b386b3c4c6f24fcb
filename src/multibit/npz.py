"""`.npz` files of other tools; what they hold in pickles is never read."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from multibit.errors import DataError
from multibit.paths import require_regular


def npz_keys(path: Path) -> list[str]:
    """Names of the arrays of an `.npz` file, none of which is read.

    Raises:
        DataError: missing, corrupt or truncated, or another kind of file.
    """
    require_regular(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            return list(file.files)
    except Exception as error:
        raise _unreadable(path, error) from None


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of an `.npz` file.

    Raises:
        DataError: missing, corrupt or truncated, or another kind of file; or an array of Python objects, which is never
            unpickled, or one that the memory cannot hold; with its key.
    """
    require_regular(path)
    key = ""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {}
            for key in file.files:
                arrays[key] = file[key]
            return arrays
    except MemoryError:
        raise DataError("is declared larger than the memory.", file=path, field=key) from None
    except Exception as error:  # numpy passes on the errors of zip, zlib and its own parser
        if key and "allow_pickle" in str(error):
            raise DataError(
                "an array of Python objects, which is not read.",
                file=path,
                field=key,
                hint=f"Save it as texts or numbers, e.g. {key}=np.array(list_of_names, str).",
            ) from None
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> DataError:
    foreign = isinstance(error, ValueError) and not zipfile.is_zipfile(path)  # numpy's message is about pickles
    reason = "not a zip archive" if foreign else error
    return DataError(f"corrupt or truncated .npz file, or not one ({reason}).", file=path)

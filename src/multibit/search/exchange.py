"""Codes in the files of other tools: packed `.npy`, faiss binary index, the community's hash-code `.mat`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
from numpy.typing import NDArray

from multibit.codes import Codes
from multibit.errors import DataError, MissingExtraError
from multibit.files import replacing

Side = tuple[Codes, Codes, NDArray[np.uint8]]
"""Image codes, text codes, labels of a query set or a database."""

MAT_KEYS = ("q_img", "q_txt", "r_img", "r_txt", "q_l", "r_l")
"""Query and retrieval codes of pictures and texts (n, B) of -1 and +1, and their multi-hot labels (n, C)."""


def export_codes(codes: Codes, path: Path | str, bits: int | None = None) -> None:
    """Write codes for another tool, the kind of file by its ending.

    Args:
        codes: N codes. path: `.npy` for (N, bytes) uint8 as `np.packbits` makes them, `.faiss` for an
            `IndexBinaryFlat`. bits: prefix length; faiss pads it to whole bytes with zeros, which changes no distance.

    Raises:
        DataError: another ending. MissingExtraError: faiss is not installed.
    """
    target = Path(path)
    packed = codes.prefix(codes.check_length(bits)).to_bytes()
    if target.suffix not in (".npy", ".faiss"):
        raise DataError(f"{target}: codes are exported to .npy or .faiss.")
    faiss = _faiss() if target.suffix == ".faiss" else None
    with replacing(target) as temporary:
        if faiss is None:
            np.save(temporary, packed)
        else:
            index = faiss.IndexBinaryFlat(packed.shape[1] * 8)
            index.add(packed)
            faiss.write_index_binary(index, str(temporary))


def import_codes(path: Path | str, bits: int | None = None) -> Codes:
    """Read what `export_codes` or another tool wrote.

    Args:
        path: `.npy` with (N, bytes) uint8, or a faiss binary flat index. bits: code length; all bits when None.

    Raises:
        DataError: another ending, unreadable, or other content. MissingExtraError: faiss is not installed.
    """
    source = Path(path)
    if not source.is_file():
        raise DataError(f"{source}: no such file.")
    if source.suffix == ".npy":
        try:
            return Codes.from_bytes(np.load(source, allow_pickle=False), bits)
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"{source}: no packed codes ({error}).") from None
    if source.suffix == ".faiss":
        faiss = _faiss()
        try:
            index = faiss.read_index_binary(str(source))
            packed = faiss.vector_to_array(index.xb).reshape(index.ntotal, index.code_size)
        except (RuntimeError, AttributeError) as error:
            first = str(error).splitlines()[0]
            raise DataError(f"{source}: no faiss binary flat index ({first}).") from None
        return Codes.from_bytes(packed, bits)
    raise DataError(f"{source}: codes are imported from .npy or .faiss.")


def save_mat(
    path: Path | str,
    query: Side,
    database: Side,
    bits: int | None = None,
) -> None:
    """Write the six-key `.mat` that the field's plotting scripts read (MATLAB v5, -1 and +1 as float32).

    Args:
        path: ending in .mat. query, database: image codes, text codes, labels. bits: prefix length.
    """
    arrays: dict[str, Any] = {}
    for side, (image, text, labels) in (("q", query), ("r", database)):
        for name, codes in (("img", image), ("txt", text)):
            arrays[f"{side}_{name}"] = codes.prefix(codes.check_length(bits)).to_signs().astype(np.float32)
        arrays[f"{side}_l"] = np.asarray(labels, np.uint8)
    with replacing(Path(path)) as temporary:
        scipy.io.savemat(temporary, arrays, appendmat=False, do_compression=True)


def load_mat(path: Path | str) -> tuple[Side, Side]:
    """Read a six-key `.mat`: query and database, each image codes, text codes, labels.

    Codes may be -1/+1 or 0/1.

    Raises:
        DataError: unreadable, or a key missing; lists what was found.
    """
    try:
        content = scipy.io.loadmat(path, appendmat=False)
    except (OSError, ValueError, NotImplementedError, TypeError) as error:
        raise DataError(f"{path}: not a readable MATLAB v5 file ({error}).") from None
    missing = [key for key in MAT_KEYS if key not in content]
    if missing:
        found = ", ".join(f"{key} {np.shape(value)}" for key, value in content.items() if not key.startswith("__"))
        raise DataError(f"{path}: no {', '.join(missing)}; it has {found or 'nothing'}.")
    query, database = (
        (
            Codes.from_bits(content[f"{side}_img"] > 0),
            Codes.from_bits(content[f"{side}_txt"] > 0),
            (content[f"{side}_l"] > 0).astype(np.uint8),
        )
        for side in ("q", "r")
    )
    return query, database


def _faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise MissingExtraError("faiss", extra="faiss", need="a .faiss file") from None
    return faiss

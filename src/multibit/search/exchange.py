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
            packed = np.load(source, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"{source}: no packed codes ({error}).") from None
    elif source.suffix == ".faiss":
        faiss = _faiss()
        try:
            index = faiss.read_index_binary(str(source))
            packed = faiss.vector_to_array(index.xb).reshape(index.ntotal, index.code_size)
        except (RuntimeError, AttributeError, MemoryError) as error:
            first = (str(error) or type(error).__name__).splitlines()[0]
            raise DataError(f"{source}: no faiss binary flat index ({first}).") from None
    else:
        raise DataError(f"{source}: codes are imported from .npy or .faiss.")
    try:
        return Codes.from_bytes(packed, bits)
    except DataError as error:
        raise DataError(f"{source}: {error}") from None


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
    if Path(path).suffix != ".mat":
        raise DataError(f"{path}: must end in .mat.")
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
    except Exception as error:  # scipy lets the errors of zlib and of its own parser through
        raise DataError(f"{path}: not a readable MATLAB v5 file ({error}).") from None
    missing = [key for key in MAT_KEYS if key not in content]
    if missing:
        found = ", ".join(f"{key} {np.shape(value)}" for key, value in content.items() if not key.startswith("__"))
        raise DataError(f"{path}: no {', '.join(missing)}; it has {found or 'nothing'}.")
    query, database = (_read_side(path, content, side) for side in ("q", "r"))
    if query[0].bits != database[0].bits or query[2].shape[1] != database[2].shape[1]:
        shapes = ", ".join(f"{key} {np.shape(content[key])}" for key in MAT_KEYS)
        raise DataError(f"{path}: queries and database have different code lengths or labels: {shapes}.")
    return query, database


def _read_side(path: Path | str, content: dict[str, Any], side: str) -> Side:
    image, text, labels = (np.asarray(content[f"{side}_{name}"]) for name in ("img", "txt", "l"))
    for name, array in (("img", image), ("txt", text), ("l", labels)):
        allowed = (0, 1) if name == "l" else (-1, 0, 1)
        if array.ndim != 2 or array.dtype.kind not in "biuf" or not np.isin(array, allowed).all():
            raise DataError(f"{path}: {side}_{name} must be a matrix of {' or '.join(map(str, allowed))}.")
    if not image.shape == text.shape or len(labels) != len(image):
        raise DataError(
            f"{path}: {side}_img {image.shape}, {side}_txt {text.shape}, {side}_l {labels.shape} do not fit."
        )
    return Codes.from_bits(image > 0), Codes.from_bits(text > 0), labels.astype(np.uint8)


def _faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise MissingExtraError("faiss", extra="faiss", need="a .faiss file") from None
    return faiss

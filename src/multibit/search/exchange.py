"""Codes in files of other tools: packed `.npy`, faiss binary indices, and the hash-code `.mat` of the field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import scipy.io

from multibit.codes import CodedItems, Codes
from multibit.errors import DataError, MissingExtraError
from multibit.files import replacing
from multibit.search.code_files import CodeFile

SEVERAL = "Keep codes with several views in multibit's own files: `Codes.save`, `Index.save`."


def export_codes(codes: Codes, path: Path | str, bits: int | None = None) -> None:
    """Write codes for another tool, in the format of the file extension.

    Args:
        codes: N codes. path: `.npy` for (N, bytes) uint8 as from `np.packbits`, `.faiss` for an `IndexBinaryFlat`.
        bits: prefix length; faiss pads it to whole bytes with zeros, which changes no distance.

    Raises:
        DataError: another extension, or items with several codes each. MissingExtraError: faiss is not installed.
    """
    target = Path(path)
    codes.require_one_view(f"A {target.suffix} file", SEVERAL)
    packed = codes.prefix(codes.check_length(bits)).to_bytes()
    if target.suffix not in (".npy", ".faiss"):
        raise DataError(f"must end in .npy or .faiss, got {target.suffix!r}.", file=target)
    faiss = _faiss() if target.suffix == ".faiss" else None
    with replacing(target) as temporary:
        if faiss is None:
            np.save(temporary, packed)
        else:
            index = faiss.IndexBinaryFlat(packed.shape[1] * 8)
            index.add(packed)
            faiss.write_index_binary(index, str(temporary))


def import_codes(path: Path | str, bits: int | None = None) -> Codes:
    """Read a file that `export_codes` or another tool wrote.

    Args:
        path: `.npy` with (N, bytes) uint8, or a faiss binary flat index. bits: code length; all bits when None.

    Raises:
        DataError: another extension, unreadable, or other content. MissingExtraError: faiss is not installed.
    """
    source = Path(path)
    if not source.is_file():
        raise DataError("no such file.", file=source)
    if source.suffix == ".npy":
        try:
            packed = np.load(source, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"cannot be read as .npy ({error}).", file=source) from None
    elif source.suffix == ".faiss":
        faiss = _faiss()
        try:
            index = faiss.read_index_binary(str(source))
            packed = faiss.vector_to_array(index.xb).reshape(index.ntotal, index.code_size)
        except (RuntimeError, AttributeError, MemoryError) as error:
            first = (str(error) or type(error).__name__).splitlines()[0]
            raise DataError(f"not a faiss binary flat index ({first}).", file=source) from None
    else:
        raise DataError(f"must end in .npy or .faiss, got {source.suffix!r}.", file=source)
    try:
        return Codes.from_bytes(packed, bits)
    except DataError as error:
        raise error.within(source) from None


def save_mat(path: Path | str, query: CodedItems, database: CodedItems, bits: int | None = None) -> None:
    """Write the six-key `.mat` that the plotting scripts of the field read (MATLAB v5, -1 and +1 as float32).

    Args:
        path: ending in .mat. query, database: the two sets of items. bits: prefix length.

    Raises:
        DataError: another extension, items with several codes each, or `bits` longer than the codes.
    """
    if Path(path).suffix != ".mat":
        raise DataError(f"must end in .mat, got {Path(path).suffix!r}.", file=path)
    arrays: dict[str, Any] = {}
    for side, items in (("q", query), ("r", database)):
        for name, codes in (("img", items.image), ("txt", items.text)):
            codes.require_one_view("A .mat file", SEVERAL)
            arrays[f"{side}_{name}"] = codes.prefix(codes.check_length(bits)).to_signs().astype(np.float32)
        arrays[f"{side}_l"] = items.labels
    with replacing(Path(path)) as temporary:
        scipy.io.savemat(temporary, arrays, appendmat=False, do_compression=True)


def load_mat(path: Path | str) -> tuple[CodedItems, CodedItems]:
    """Read a six-key `.mat`, v5 or v7.3, as `CodeFile.read` does: query and database.

    Raises:
        DataError: unreadable, a missing key, or arrays that do not fit.
    """
    file = CodeFile.read(path)
    return file.query, file.database


def _faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise MissingExtraError("faiss", extra="faiss", need="A .faiss file") from None
    return faiss

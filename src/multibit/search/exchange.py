"""Indices and codes in files of other tools: Parquet, packed `.npy`, faiss binary indices, the `.mat` of the field."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import scipy.io
from numpy.typing import NDArray

from multibit.codes import CodedItems, Codes
from multibit.errors import DataError, MissingExtraError
from multibit.files import building
from multibit.paths import replacing, require_suffix
from multibit.search.batches import CODE, FACTS, ID, read_facts, unpacked
from multibit.search.columns import IdColumn, whole_array
from multibit.search.index import Index
from multibit.search.kinds import Kinds, plain_nulls
from multibit.search.metadata import Metadata
from multibit.search.parquet import read_table
from multibit.search.segments import Segment

ROWS = 100_000  # of a row group, and of a block
SEVERAL = "Keep codes with several views in multibit's own files: `Codes.save`, `Index.save`."


def export_codes(codes: Codes | Index, path: Path | str, bits: int | None = None) -> None:
    """Write codes for another tool, in the format of the file extension; in blocks of bounded memory.

    A `.faiss` file needs room on the disk for the codes twice, while it is written.

    Args:
        codes: N codes, or an index with N items, whose codes are written in its order.
        path: `.npy` for (N, bytes) uint8 as from `np.packbits`, `.faiss` for an `IndexBinaryFlat`.
        bits: prefix length; faiss pads it to whole bytes with zeros, which changes no distance.

    Raises:
        DataError: another extension, an empty index, or items with several codes each. MissingExtraError: faiss is not
            installed.
    """
    target = Path(path)
    first = codes if isinstance(codes, Codes) else codes.some_codes(1)
    first.require_one_view(f"A {target.suffix} file", SEVERAL)
    length = first.check_length(bits)
    if target.suffix not in (".npy", ".faiss"):
        raise DataError(f"must end in .npy or .faiss (an index also in .parquet), got {target.suffix!r}.", file=target)
    faiss = _faiss() if target.suffix == ".faiss" else None
    with replacing(target) as temporary:
        if faiss is None:
            _write_npy(temporary, codes, length)
        else:
            packed = temporary.with_suffix(".npy")
            _write_npy(packed, codes, length)
            _write_faiss(faiss, temporary, np.load(packed, mmap_mode="r"))


def _write_npy(path: Path, codes: Codes | Index, bits: int) -> None:
    """Write packed codes as (N, bytes) uint8; a mapped array would end the process where the disk is full."""
    size = -(-bits // 8)
    with path.open("wb") as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": (len(codes), size)}
        np.lib.format.write_array_header_1_0(file, header)
        for block in _code_blocks(codes):
            file.write(block.prefix(bits).to_bytes().tobytes())


def _code_blocks(codes: Codes | Index) -> Iterator[Codes]:
    if isinstance(codes, Index):
        return codes.version.code_blocks(ROWS)
    return (codes.take(np.arange(start, min(start + ROWS, len(codes)))) for start in range(0, len(codes), ROWS))


def _write_faiss(faiss: Any, path: Path, packed: NDArray[np.uint8]) -> None:
    """Let faiss write (N, bytes) mapped codes as its flat index, of which they are a view: nothing is copied."""
    index = faiss.IndexBinaryFlat(8 * packed.shape[1])
    index.xb = faiss.MaybeOwnedVectorUInt8.create_view(faiss.swig_ptr(packed), packed.size, index.xb.owner)
    index.ntotal = len(packed)
    with path.open("wb") as file:  # its own writer only prints that a disk is full when it closes the file
        faiss.write_index_binary(index, faiss.PyCallbackIOWriter(file.write))


def export_index(index: Index, path: Path | str, bits: int | None = None) -> None:
    """Write an index to Parquet, which DuckDB, Polars, pandas and Lance read; in blocks of bounded memory.

    The columns: `id`; the metadata fields; and `code`, binary of fixed size: the bits in the order of `np.packbits`,
    view after view.

    Args:
        index: not empty. path: ending in .parquet. bits: prefix length; the full length when None.

    Raises:
        DataError: another extension, an empty index, or a field that is named like one of the two columns.
    """
    target = Path(path)
    require_suffix(target, ".parquet")
    if not len(index):
        raise DataError("the index is empty, so it cannot be exported.", file=target)
    for name in (ID, CODE):
        if name in index.fields:
            raise DataError(f"a field is named {name!r}, as a column of the file.", field=name, hint="Rename it.")
    first = index.some_codes(1)
    length = first.check_length(bits)
    facts = {
        "bits": length, "views": first.views, "model": index.model, "modality": index.modality,
        "engine": index.engine_name, "fields": index.fields,
    }  # fmt: skip
    tables = (_exported(block, length, index.fields) for block in index.version.blocks(ROWS))
    table = next(tables)
    with replacing(target) as temporary:
        schema = table.schema.with_metadata({FACTS: json.dumps(facts)})
        with pyarrow.parquet.ParquetWriter(temporary, schema) as writer:
            for each in itertools.chain([table], tables):
                writer.write_table(each, ROWS)


def _exported(items: Segment, bits: int, fields: Kinds) -> Any:
    """Some items as a table with all fields of their index."""
    packed = np.ascontiguousarray(items.codes.prefix(bits).to_bytes()).reshape(len(items), -1)
    code = pyarrow.FixedSizeBinaryArray.from_buffers(
        pyarrow.binary(packed.shape[1]), len(packed), [None, pyarrow.py_buffer(packed)]
    )
    own = items.metadata.to_table()
    columns = {name: own[name] if name in own.column_names else plain_nulls(len(items), kind)
               for name, kind in fields.items()}  # fmt: skip
    return pyarrow.table({ID: items.ids.to_arrow(), **columns, CODE: code})


def import_index(path: Path | str, bits: int | None = None) -> Index:
    """Read a Parquet file that `export_index` wrote, or one of another tool with a column `code`.

    Args:
        path: with a column `code` (packed bits, binary of fixed size), and `id` or the items are numbered.
        bits: code length; that of the file, or all bits, when None.

    Raises:
        DataError: unreadable, no codes, null or different sizes in them, invalid ids, or too many bits.
    """
    source = Path(path)
    table = read_table(source)
    facts = read_facts(table.schema, source)
    with building(source):
        codes = _packed_column(table, facts.views, bits or facts.bits)
        ids = IdColumn.of(table.column(ID) if ID in table.column_names else range(len(codes)))
        metadata = Metadata.of(table.drop_columns([name for name in (ID, CODE) if name in table.column_names]), ids)
        kinds = {name: facts.fields.get(name, kind) for name, kind in metadata.kinds.items()}
        index = Index(facts.model, facts.engine, facts.modality)
        index.add(ids, codes, Metadata(len(metadata), metadata.columns, kinds))
    return index


def _packed_column(table: Any, views: int, bits: int | None) -> Codes:
    if CODE not in table.column_names:
        raise DataError(f"no column {CODE!r}; found {', '.join(table.column_names)}.", field=CODE)
    return unpacked(whole_array(table.column(CODE)), views, bits)


def save_mat(path: Path | str, query: CodedItems, database: CodedItems, bits: int | None = None) -> None:
    """Write the six-key `.mat` that the plotting scripts of the field read (MATLAB v5, -1 and +1 as float32).

    Args:
        path: ending in .mat. query, database: the two sets of items. bits: prefix length.

    Raises:
        DataError: another extension, items with several codes each, or `bits` longer than the codes.
    """
    require_suffix(Path(path), ".mat")
    arrays: dict[str, Any] = {}
    for side, items in (("q", query), ("r", database)):
        for name, codes in (("img", items.image), ("txt", items.text)):
            codes.require_one_view("A .mat file", SEVERAL)
            arrays[f"{side}_{name}"] = codes.prefix(codes.check_length(bits)).to_signs().astype(np.float32)
        arrays[f"{side}_l"] = items.labels
    with replacing(Path(path)) as temporary:
        scipy.io.savemat(temporary, arrays, appendmat=False, do_compression=True)


def _faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise MissingExtraError("faiss", extra="faiss", need="A .faiss file") from None
    return faiss

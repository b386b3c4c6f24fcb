"""Runs and their features opened and checked; their codes written for other tools.

`multibit.queries` encodes queries, `multibit.indices` has the indices of a run, `multibit.measurement` the steps of
`multibit evaluate`.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from multibit.codes import MODALITIES, Codes, Modality
from multibit.codes.distance import check_radius
from multibit.codes.duplicates import near_duplicates
from multibit.data import PairedDataset
from multibit.data.huggingface import write_huggingface
from multibit.errors import DataError, MismatchError, MissingExtraError, require_opened, require_path
from multibit.features import FeatureStore
from multibit.hashing.encode import encode_store
from multibit.paths import replacing, require_suffix
from multibit.portable.model import PortableRun, is_portable
from multibit.records import RECORD, RunRecord, is_run, require_finished
from multibit.search import Index
from multibit.search.columns import IdColumn
from multibit.search.duplicates import Duplicates
from multibit.search.exchange import SEVERAL, save_mat
from multibit.search.items import items_of
from multibit.search.metadata import Metadata

if TYPE_CHECKING:
    from multibit.runs import Run

    AnyRun = Run | PortableRun


# Runs


def open_run(folder: Path | str, *, many: bool = False) -> AnyRun:
    """A run for encoding and searching: through its portable model, which needs no torch, where it has one.

    Args:
        folder: of a run, or of a portable model. many: many queries will follow, as in a server.

    Raises:
        FormatError: as `Run.load` and `PortableModel.open`. MissingExtraError: there is no portable model, and torch is
            not installed. DataError: no path.

    Example:
        >>> open_run(run.folder).lengths
        (4, 8)
    """
    portable = PortableRun.find(require_path(folder, "folder"), many=many)
    if portable is not None:
        return portable
    _require_torch(f"{folder} has no portable model, so it")
    from multibit.runs import Run  # slow to import

    return Run.load(folder)


def is_model(folder: Path) -> bool:
    """Whether `open_run` opens a folder: a run, finished or not, or a portable model."""
    return is_run(folder) or is_portable(folder)


def whole_run(run: AnyRun) -> Run:
    """The run with its split and all else that `Run` has.

    Raises:
        DataError: the folder has a portable model only. MissingExtraError: torch is not installed.
    """
    if not isinstance(run, PortableRun):
        return run
    if is_portable(run.folder):
        hint = "Name the run that it was exported from."
        raise DataError("is a portable model, which has no split.", file=run.folder, hint=hint)
    _require_torch(f"The split of {run.folder}")
    from multibit.runs import Run  # slow to import

    return Run.load(run.folder)


def _require_torch(need: str) -> None:
    if importlib.util.find_spec("torch") is None:
        raise MissingExtraError("torch", extra="train", need=need)


# Features


def open_features(run: AnyRun, features: Path | str | None = None) -> FeatureStore:
    """The features that a run was trained on, or others made by the same recipe.

    Args:
        run: with the recipe. features: path of a feature store; the one that the run was trained on when None.

    Raises:
        DataError: the path is not recorded, or does not exist; or a path instead of a run. MismatchError: features of
            another recipe.

    Example:
        >>> open_features(run).fingerprint() == run.record.data
        True
    """
    require_opened(run, "run", "open_run")
    where = features or run.features
    if where is None:
        raise DataError("the path of the features is not recorded.", file=run.folder, hint="Pass it as `features`.")
    if features is None and not Path(where).exists():
        raise DataError(
            "the features that the run was trained on do not exist.",
            file=where,
            hint="Pass their new path as `features`.",
        )
    store = FeatureStore.open(where)
    try:
        run.recipe.require(store.recipe, "they")
    except MismatchError as error:
        raise error.within(where) from None
    return store


def require_own_features(run: Run, store: FeatureStore) -> None:
    """Refuse features of other data than the split of a run.

    Raises:
        MismatchError: other data, so training items could be among the queries.
    """
    if store.fingerprint() != run.record.data:
        raise MismatchError(
            f"fingerprint {store.fingerprint()} with {len(store)} items; the split of {run.folder} belongs to "
            f"{run.record.data} with {run.record.dataset.items} items, so training items could be among the queries.",
            file=store.source,
            field="data",
            hint=f"Pass the `features` that it was trained on: {run.features or 'their path is not recorded'}.",
        )


def require_split_of(given: str | None, data: PairedDataset) -> None:
    """Refuse a run folder as the source of a split, where the run was trained on another data set.

    Args:
        given: as for `choose_split`; only a run folder records which data its rows belong to. data: to be split.

    Raises:
        MismatchError: another data set. FormatError: a corrupt run.
    """
    folder = Path(given or "")
    if given is None or given.isdecimal() or not is_run(folder):
        return
    require_finished(folder)
    theirs, here = RunRecord.read(folder / RECORD).dataset, data.fingerprint()
    if theirs.fingerprint != here:
        raise MismatchError(
            f"has the split of data {theirs.fingerprint} with {theirs.items} items, not of data {here} with "
            f"{len(data)} items: its rows would be other items.",
            file=folder,
            option="split",
            hint="Name a run on the same data or a seed; if the rows are the same, name "
            f"{folder / 'split.safetensors'}.",
        )


def require_same_split(first: Run, other: Run) -> None:
    """Refuse to compare runs whose queries differ.

    Raises:
        MismatchError: the splits differ.
    """
    if not other.split.same_rows(first.split):
        raise MismatchError(
            f"{other.folder} and {first.folder} have different splits: they cannot be compared.", field="split"
        )


def require_comparable(first: Run, other: Run) -> None:
    """Refuse to compare runs whose data, queries or code lengths differ.

    Raises:
        MismatchError: the features or the labels, the splits, or the lengths differ.
    """
    if other.record.data != first.record.data:
        theirs, mine = (
            f"{run.folder} on {run.features or 'features'} (data {run.record.data})" for run in (other, first)
        )
        raise MismatchError(
            f"trained on different data, {theirs}, {mine}: they cannot be compared.",
            field="data",
            hint="Train both on the same features and labels.",
        )
    require_same_split(first, other)
    if other.lengths != first.lengths:
        lengths = ["/".join(map(str, each.lengths)) for each in (other, first)]
        raise MismatchError(
            f"{other.folder} has codes of {lengths[0]} bits, {first.folder} of {lengths[1]} bits: they cannot be "
            "compared.",
            field="lengths",
            hint="Train both with the same lengths.",
        )


# Export of codes


def require_one_view(run: AnyRun, what: str) -> None:
    """Refuse a run whose items have several codes at each length, where that has no meaning.

    Raises:
        DataError: names what was asked for.
    """
    if run.model.layout.views > 1:
        raise DataError(
            f"{what} holds one code for each item, and this run has {run.model.layout.views}.",
            file=run.folder,
            hint="Write an .npz, or take the variant with one code.",
        )


def write_codes(
    run: AnyRun,
    store: FeatureStore,
    path: Path | str,
    bits: int | None = None,
    *,
    engine: str = "local",
    workers: int = 2,
) -> None:
    """Write packed codes for other tools; the format follows from the ending.

    Args:
        run: with the model. store: the items.
        path: `.npz` for all items: ids, image and text (items, bytes) uint8, bits, model. `.mat` for the queries and
            the database of the run's split, as the field's six keys.
        bits: prefix length; the full length when None. engine, workers: as for `encode_store`.

    Raises:
        DataError: another ending, or `bits` longer than the codes. MismatchError: features of other data than the
            split, for `.mat`.
    """
    path = Path(path)
    require_suffix(path, ".npz", ".mat")
    length = Codes.from_bits(np.zeros((0, run.model.bits), bool)).check_length(bits)  # before the encoding
    if path.suffix == ".mat":
        run = whole_run(run)
        require_one_view(run, "A .mat file")
        require_own_features(run, store)
        rows = np.concatenate([run.split.query, run.split.database])
        coded = encode_store(run.model, store, rows, engine=engine, workers=workers)
        query, database = map(coded.take, np.split(np.arange(len(rows)), [len(run.split.query)]))
        save_mat(path, query.at(length), database.at(length), length)
        return
    coded = encode_store(run.model, store, engine=engine, workers=workers).at(length)
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez(
            file,
            ids=np.array(store.dataset.ids),
            image=coded.image.prefix(length).to_bytes(),
            text=coded.text.prefix(length).to_bytes(),
            bits=length,
            model=run.record.model,
        )


def write_run_items(run: AnyRun, folder: Path | str, bits: int | None = None) -> tuple[int, int]:
    """Write the items that a run was trained on, with the codes of both modalities, for the `datasets` library.

    The columns of the codes are `image_code` and `text_code`; see `multibit.data.huggingface.write_huggingface`.

    Args:
        run: with one code per item, and with features. folder: must not exist. bits: prefix length; the full one when
            None.

    Returns:
        The code length and the number of items.

    Raises:
        DataError: several codes per item, `bits` longer than the codes, or as `open_features` and `write_huggingface`.
    """
    require_one_view(run, "A data set")
    length = _length_of(run, bits)
    store = open_features(run)
    coded = encode_store(run.model, store).at(length)
    codes = {f"{modality}_code": coded.codes(modality).prefix(length).to_bytes() for modality in MODALITIES}
    description = f"Codes of {length} bits of model {run.record.model}, as packed by numpy.packbits."
    write_huggingface(store.dataset, folder, codes=codes, description=description)
    return length, len(store)


def write_index_items(index: Index, folder: Path | str, bits: int | None = None) -> tuple[int, int]:
    """Write the items of an index, with their codes (`code`) and fields, for the `datasets` library.

    Args:
        index: not empty, with one code per item. folder, bits: as for `write_run_items`.

    Returns:
        The code length and the number of items.

    Raises:
        DataError: an empty index, several codes per item, `bits` longer than the codes, or as `write_huggingface`.
    """
    codes = index.codes
    if codes is None:
        raise DataError("the index is empty, so it cannot be exported.", file=index.path)
    codes.require_one_view("A data set", SEVERAL)
    length = codes.check_length(bits)
    dataset, fields = items_of(index, (index.path or Path()).parent)
    description = f"{index.modality} codes of {length} bits of model {index.model}, as packed by numpy.packbits."
    packed = {"code": codes.prefix(length).to_bytes()}
    write_huggingface(dataset, folder, codes=packed, fields=fields, description=description)
    return length, len(index)


def _length_of(run: AnyRun, bits: int | None) -> int:
    """A code length, the longest when None, that is checked before the encoding.

    Raises:
        DataError: `bits` longer than the codes.
    """
    length = run.model.bits if bits is None else bits
    run.model.layout.serving(length)
    return length


# Near-duplicates


def duplicates_of_run(
    run: AnyRun, store: FeatureStore, modality: Modality, radius: int, bits: int | None = None
) -> Duplicates:
    """Encode items, and group those whose codes differ in at most `radius` bits, directly or through others; exact.

    Args:
        run: with the model. store: the items. modality: of the codes. radius: largest distance of two near-duplicates.
        bits: code length; the longest when None.

    Raises:
        DataError: a radius that is not whole or negative, or `bits` longer than the codes.
    """
    check_radius(radius, "radius")
    length = _length_of(run, bits)
    coded = encode_store(run.model, store).at(length)
    found = near_duplicates(coded.codes(modality), radius, length)
    ids = IdColumn.of([store.dataset.ids[row] for row in found.rows])
    return Duplicates(found, ids, Metadata.of([store.dataset.describe(row) for row in found.rows], ids), modality)

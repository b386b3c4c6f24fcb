"""The indices of a run, one for each modality: built, changed, loaded into a database, and opened."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow
from numpy.typing import ArrayLike

from multibit.arrays import row_numbers
from multibit.codes import MODALITIES, Codes, Modality
from multibit.errors import ConfigError, DataError, MismatchError, require_kind, require_opened, shown_path
from multibit.features import FeatureStore
from multibit.files import fingerprint
from multibit.hashing.encode import encode_store
from multibit.paths import portable_path
from multibit.pipeline import require_one_view
from multibit.progress import tracked
from multibit.search import Index
from multibit.search.columns import IdColumn, strings
from multibit.search.metadata import Metadata
from multibit.search.names import INDEX, index_name, index_path
from multibit.search.remote.urls import SCHEMES, is_url
from multibit.search.together import writing_together

if TYPE_CHECKING:
    from multibit.pipeline import AnyRun
    from multibit.search.remote import RemoteIndex

LOADED = 10_000  # items that are encoded and loaded into a database together
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+:/")  # longer than the letter of a drive


def index_names(run: AnyRun) -> dict[str, tuple[Modality, int]]:
    """The indices of a run: name -> modality and code length.

    A nested code needs one index for each modality, "image" and "text"; a code for each length needs one for each
    length too, such as "image-16".
    """
    layout = run.model.layout
    lengths = (layout.longest,) if layout.nested else run.lengths
    return {index_name(layout, modality, bits): (modality, bits) for bits in lengths for modality in MODALITIES}


def build_indices(
    run: AnyRun,
    store: FeatureStore,
    rows: ArrayLike | None = None,
    *,
    engine: str = "exact",
    folder: Path | str | None = None,
) -> dict[str, Index]:
    """Build the indices of a run, see `index_names`, with image path, text and labels as metadata.

    Args:
        run: with the model. store: the items. rows: of the items to index, or a mask; all when None.
        engine: "exact" or another search engine.
        folder: where they will be saved, RUN/index when None: image paths are kept relative to it, see `located_hits`.

    Example:
        >>> build_indices(run, store, run.split.database)
        {'image': Index(18 images, 8 bits, exact engine), 'text': Index(18 texts, 8 bits, exact engine)}
    """
    require_opened(run, "run", "open_run")
    require_kind(store, FeatureStore, "store", "Open it with open_features(run).")
    place = Path(folder or run.folder / INDEX)
    coded = encode_store(run.model, store, rows)
    ids, payloads = _described(store, rows, place)
    indices = {}
    for name, (modality, bits) in index_names(run).items():
        indices[name] = Index(run.record.model, engine, modality)
        indices[name].upsert(ids, coded.at(bits).codes(modality), payloads)
    return indices


def update_indices(run: AnyRun, store: FeatureStore, folder: Path, rows: ArrayLike | None = None) -> dict[str, Index]:
    """Add items to the indices of a folder, in all of them or none; items with an id that is there are replaced.

    Args:
        run: with the model. store: the items. folder: of the indices. rows: as for `build_indices`.

    Raises:
        MismatchError: an index has codes of another model. BusyError: another process is writing one.
    """
    coded, named = encode_store(run.model, store, rows), index_names(run)
    indices = {name: Index.open(index_path(folder, name)) for name in named}
    ids, payloads = _described(store, rows, folder)
    with writing_together(list(indices.values())) as writers:
        for index, (modality, bits) in zip(writers, named.values(), strict=True):
            index.require_model(run.record.model)
            index.upsert(ids, coded.at(bits).codes(modality), payloads)
    return indices


def _described(
    store: FeatureStore, rows: ArrayLike | None, folder: Path, *, quiet: bool = False
) -> tuple[IdColumn, pyarrow.Table]:
    """Ids and metadata of some items, all when None: as columns, since values of Python need ten times the memory."""
    data = store.dataset
    chosen = np.arange(len(data)) if rows is None else row_numbers(rows, len(data))
    columns: dict[str, list[str | None]] = {"image": [], "text": []}
    for row in chosen if quiet else tracked(chosen, "Indexing", "items"):
        image = data.images[row]
        columns["image"].append(None if image is None else portable_path(image.absolute(), folder))
        columns["text"].append(data.texts[row][0])
    labels = data.label_rows.matrix[chosen]
    names = pyarrow.DictionaryArray.from_arrays(labels.indices.astype(np.int32), strings(data.label_names))
    lists = pyarrow.LargeListArray.from_arrays(labels.indptr.astype(np.int64), names)
    return IdColumn.of([data.ids[row] for row in chosen]), pyarrow.table(
        {**{name: strings(values) for name, values in columns.items()}, "labels": lists}
    )


class RunSource:
    """The items of a run as the source of a load into a database: they are encoded block by block.

    Args:
        run: with the model. store: the items. name: of the index, see `index_names`. rows: of the items, all when None.
    """

    def __init__(self, run: AnyRun, store: FeatureStore, name: str, rows: ArrayLike | None = None) -> None:
        require_one_view(run, "A database")
        self._run, self._store = run, store
        self._rows = np.arange(len(store)) if rows is None else row_numbers(rows, len(store))
        self._modality, self.bits = index_names(run)[name]
        self.model: str = run.record.model
        self.modality: str = self._modality
        self.count, self.integer_ids = len(self._rows), False

    def fingerprint(self) -> str:
        """See `Source`."""
        return fingerprint(self.model, self.modality, self.bits, self._store.fingerprint(), self._rows)

    def blocks(self, start: int) -> Iterator[tuple[IdColumn, Codes, Metadata]]:
        """See `Source`."""
        run, store = self._run, self._store
        for first in range(start, self.count, LOADED):
            rows = self._rows[first : first + LOADED]
            codes = encode_store(run.model, store, rows).at(self.bits).codes(self._modality)
            ids, payloads = _described(store, rows, run.folder / INDEX, quiet=True)
            yield ids, codes, Metadata.of(payloads, ids)


def load_indices(run: AnyRun, store: FeatureStore, url: str, rows: ArrayLike | None = None) -> dict[str, RemoteIndex]:
    """Load the indices of a run into a database, see `multibit.search.remote.load` and `index_names`.

    Args:
        run: with the model. store: the items. url: of the database. rows: as for `build_indices`.
    """
    from multibit.search.remote import load

    sources = {name: RunSource(run, store, name, rows) for name in index_names(run)}
    return {name: load(source, url, name) for name, source in sources.items()}


def open_index(
    run: AnyRun, folder: Path | str, modality: Modality, bits: int | None = None, *, partial: bool = False
) -> Index | RemoteIndex:
    """The index of one modality of a run that serves a code length.

    Args:
        run: with the model. folder: of the indices, or URL of a database. modality: to search. bits: code length; the
            longest when None.
        partial: compare all checksums, and leave out segments that are missing or corrupt, or servers that are down.

    Raises:
        DataError: no such index. MismatchError: codes of another model or modality. UnavailableError, ConfigError:
            as `open_remote`.
    """
    if is_url(folder):
        return _open_remote(run, str(folder), modality, bits, partial)
    folder = Path(folder)
    if _SCHEME.match(str(folder)) and not folder.exists():
        raise ConfigError(
            f"the URL of a database begins with {', '.join(SCHEMES)}; got {shown_path(folder)}.", option="index"
        )
    path = index_path(folder, index_name(run.model.layout, modality, bits))
    if not path.exists():
        raise DataError("no such index.", file=path, hint=f"Build one with: multibit index {run.folder}")
    index = Index.load(path, verify=partial, partial=partial)
    index.require_model(run.record.model)
    if index.modality not in ("", modality):
        raise MismatchError(
            f"holds {index.modality} codes, not {modality} codes.",
            file=path,
            field="modality",
            hint="Restore the file name.",
        )
    return index


def _open_remote(run: AnyRun, url: str, modality: Modality, bits: int | None, partial: bool) -> RemoteIndex:
    from multibit.search.remote import open_remote

    index = open_remote(url, index_name(run.model.layout, modality, bits), partial=partial)
    index.require_model(run.record.model)
    return index

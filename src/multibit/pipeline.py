"""The steps of the command line as functions: open features, write codes, build an index, encode a query.

`multibit.measurement` has those of `multibit evaluate`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from multibit.arrays import row_numbers
from multibit.codes import MODALITIES, Codes, Modality
from multibit.data import PairedDataset
from multibit.data.images import open_image
from multibit.errors import DataError, MismatchError, MultibitError
from multibit.features import EncoderRecipe, FeatureStore, Recipe
from multibit.features.load import image_encoder_of, text_encoder_of
from multibit.features.store import read_header
from multibit.files import located, portable_path, replacing
from multibit.hashing.encode import encode_store, part_at
from multibit.runs import Run, is_run
from multibit.search import Hit, Index
from multibit.search.exchange import save_mat

# Features


def open_features(run: Run, features: Path | str | None = None) -> FeatureStore:
    """The features that a run was trained on, or others made by the same recipe.

    Args:
        run: with the recipe. features: path of a feature store; the one that the run was trained on when None.

    Raises:
        DataError: the path is not recorded, or does not exist. MismatchError: features of another recipe.
    """
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
    theirs, here = Run.load(folder).record.dataset, data.fingerprint()
    if theirs.fingerprint != here:
        raise MismatchError(
            f"has the split of data {theirs.fingerprint} with {theirs.items} items, not of data {here} with "
            f"{len(data)} items: its rows would be other items.",
            file=folder,
            option="split",
            hint="Name a run on the same data or a seed; if the rows are the same, name "
            f"{folder / 'split.safetensors'}.",
        )


# Export of codes


def require_one_view(run: Run, what: str) -> None:
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
    run: Run, store: FeatureStore, path: Path, bits: int | None = None, *, engine: str = "local", workers: int = 2
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
    if path.suffix not in (".npz", ".mat"):
        raise DataError(f"must end in .npz or .mat, got {path.name}.", file=path)
    length = Codes.from_bits(np.zeros((0, run.model.bits), bool)).check_length(bits)  # before the encoding
    if path.suffix == ".mat":
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


# Indices


INDEX = "index"
"""Name of the folder of the indices in a run folder."""


def index_path(folder: Path, name: str) -> Path:
    """The file of an index in an index folder, see `index_names`."""
    return folder / f"{name}.mbx"


def index_names(run: Run) -> dict[str, tuple[Modality, int]]:
    """The indices of a run: name -> modality and code length.

    A nested code needs one index for each modality, "image" and "text"; a code for each length needs one for each
    length too, such as "image-16".
    """
    lengths = (run.model.bits,) if run.model.layout.nested else run.lengths
    return {index_name(run, modality, bits): (modality, bits) for bits in lengths for modality in MODALITIES}


def index_name(run: Run, modality: Modality, bits: int | None = None) -> str:
    """Name of the index of one modality that serves a code length, the longest when None.

    Raises:
        DataError: the codes are shorter.
    """
    layout = run.model.layout
    return modality if layout.nested else f"{modality}-{layout.serving(bits or layout.longest)}"


def build_indices(
    run: Run,
    store: FeatureStore,
    rows: ArrayLike | None = None,
    *,
    engine: str = "exact",
    folder: Path | None = None,
) -> dict[str, Index]:
    """Build the indices of a run, see `index_names`, with image path, text and labels as metadata.

    Args:
        run: with the model. store: the items. rows: of the items to index, or a mask; all when None.
        engine: "exact" or another search engine.
        folder: where they will be saved, RUN/index when None: image paths are kept relative to it, see `located_hits`.
    """
    place = folder or run.folder / INDEX
    coded = encode_store(run.model, store, rows)
    indices = {}
    for name, (modality, bits) in index_names(run).items():
        indices[name] = Index(run.record.model, engine, modality)
        _upsert(indices[name], coded.at(bits).codes(modality), store, rows, place)
    return indices


def update_indices(run: Run, store: FeatureStore, folder: Path, rows: ArrayLike | None = None) -> dict[str, Index]:
    """Add items to the indices of a folder; items with an id that is already there are replaced.

    Args:
        run: with the model. store: the items. folder: of the indices. rows: as for `build_indices`.

    Raises:
        MismatchError: an index has codes of another model. BusyError: another process is writing one.
    """
    coded = encode_store(run.model, store, rows)
    indices = {}
    for name, (modality, bits) in index_names(run).items():
        with Index.editing(index_path(folder, name)) as index:
            index.require_model(run.record.model)
            _upsert(index, coded.at(bits).codes(modality), store, rows, folder)
        indices[name] = index
    return indices


def _upsert(index: Index, codes: Codes, store: FeatureStore, rows: ArrayLike | None, folder: Path) -> None:
    chosen = np.arange(len(store)) if rows is None else row_numbers(rows, len(store))
    payloads = [store.dataset.describe(row) for row in chosen]
    for payload in payloads:
        payload["image"] = payload["image"] and portable_path(Path(payload["image"]), folder)
    index.upsert([store.dataset.ids[row] for row in chosen], codes, payloads)


def located_hits(hits: Sequence[Hit], folder: Path) -> list[Hit]:
    """Hits with the absolute paths of their images.

    Args:
        hits: of an index. folder: of the index, to which it keeps the paths relative.
    """
    return [
        replace(hit, payload={**hit.payload, "image": str(located(image, folder))})
        if isinstance(image := hit.payload.get("image"), str)
        else hit
        for hit in hits
    ]


def open_index(run: Run, folder: Path, modality: Modality, bits: int | None = None) -> Index:
    """The index of one modality of a run that serves a code length.

    Args:
        run: with the model. folder: of the indices. modality: to search. bits: code length; the longest when None.

    Raises:
        DataError: no such file. MismatchError: codes of another model or modality.
    """
    path = index_path(folder, index_name(run, modality, bits))
    if not path.exists():
        raise DataError("no such index.", file=path, hint=f"Build one with: multibit index {run.folder}")
    index = Index.open(path)
    index.require_model(run.record.model)
    if index.modality not in ("", modality):
        raise MismatchError(
            f"holds {index.modality} codes, not {modality} codes.",
            file=path,
            field="modality",
            hint="Restore the file name.",
        )
    return index


# Queries


def encode_text(run: Run, text: str, bits: int | None = None, *, download: bool = False) -> NDArray[np.float32]:
    """Relaxed code (1, B) of a text, by the text encoder of the run's features.

    Args:
        run: with the model. text: any. bits: length to be searched at, where the run has a code for each length; the
            longest when None.
        download: whether the hub may be asked for an encoder that is not on this disk; the user's token is not sent.

    Raises:
        DataError: the run was trained on ready-made features. MismatchError: the installed encoder differs from that
            of the features.
    """
    encoder = text_encoder_of(located_encoder(run, run.recipe.text), folder=run.folder, download=download)
    run.recipe.require(Recipe(run.recipe.image, encoder.recipe), "the installed encoders")
    return _code(run, encoder, [text], "text", bits)


def encode_image(run: Run, path: Path, bits: int | None = None, *, download: bool = False) -> NDArray[np.float32]:
    """Relaxed code (1, B) of an image file, by the image encoder of the run's features.

    Args:
        run: with the model. path: of the image. bits, download: as for `encode_text`.

    Raises:
        DataError: an unreadable image, or the run was trained on ready-made features. MismatchError: as `encode_text`.
    """
    encoder = image_encoder_of(located_encoder(run, run.recipe.image), folder=run.folder, download=download)
    run.recipe.require(Recipe(encoder.recipe, run.recipe.text), "the installed encoders")
    return _code(run, encoder, [encoder.prepare(open_image(path))], "image", bits)


def located_encoder(run: Run, recipe: EncoderRecipe) -> EncoderRecipe:
    """The recipe, with the place of a model folder that only the features know: a run keeps its name."""
    if "/" in recipe.source or not recipe.source or (run.folder / recipe.source).exists():
        return recipe
    with contextlib.suppress(MultibitError):
        if run.features is not None:
            stored = read_header(run.features).recipe
            return next((each for each in (stored.image, stored.text) if each == recipe), recipe)
    return recipe


def _code(run: Run, encoder: Any, inputs: Sequence[Any], modality: Modality, bits: int | None) -> NDArray[np.float32]:
    """The relaxed code of one query at a length: (1, B), or (1, V, B) where an item has V codes."""
    model = run.model.serving(run.model.bits if bits is None else bits)
    vectors, tokens = encoder.encode_tokens(inputs) if model.reads_tokens else (encoder.encode(inputs), None)
    return part_at(model, model.encode(vectors, modality, tokens), bits)

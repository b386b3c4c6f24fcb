"""The full pipeline on the included sample: features, training, evaluation, index and example searches."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from multibit.codes import Codes
from multibit.codes.items import Modality
from multibit.config import Settings
from multibit.data import Split
from multibit.data.sample import load_sample
from multibit.errors import printable
from multibit.evaluation.storage import save_evaluations
from multibit.evaluation.tables import accuracy_table
from multibit.features.extract import extract_features
from multibit.features.load import load_image_encoder, load_text_encoder
from multibit.features.store import FeatureStore
from multibit.indices import build_indices
from multibit.machine import processors
from multibit.measurement import evaluate_run
from multibit.portable.export import make_portable
from multibit.queries import encode_image, encode_text
from multibit.report.sheet import Search, contact_sheet
from multibit.runs import Run, describe_code
from multibit.search import Index
from multibit.search.names import INDEX, index_name, index_path, located_hits
from multibit.search.together import save_together
from multibit.table import print_table

SHOWN_BITS = (16, 128)
SHOWN_HITS = 8


def run_demo(folder: Path, config: Settings, out: Console, *, method: str = "", device: str = "cpu") -> None:
    """Run the full pipeline on the included sample and keep all files in `folder`.

    Features that are there are used again; a finished run is replaced, an unfinished one is resumed.

    Args:
        folder: of all outputs. config: complete settings. out: prints the results, without markup.
        method: name that made `config`, for the run record. device: where networks run.
    """
    sample = load_sample()
    out.print(
        f"Sample: {len(sample):,} public-domain images with texts, {len(sample.label_names)} labels, "
        f"{sample.labels.sum() / len(sample):.2f} labels per item"
    )
    store = sample_features(folder / "features", out, device=device)
    split = Split.usual(len(store))
    out.print(
        f"Split (seed {split.seed}): {len(split.train):,} train, {len(split.validation):,} validation, "
        f"{len(split.query):,} query, {len(split.database):,} database, of which {len(split.unseen):,} never trained on"
    )
    if (folder / "run" / "run.json").exists():
        shutil.rmtree(folder / "run")
    workers = processors() if device == "cpu" else 1
    run = Run.create(folder / "run", store, split, config, method=method, device=device, workers=workers)
    out.print(
        f"One model: {run.model.bits}-bit code, {'/'.join(map(str, run.model.blocks))} bits for the "
        f"{run.teacher.scales} diffusion scales; best epoch {run.record.selection.epoch} on validation data"
        if run.teacher is not None
        else f"Code: {describe_code(run)}; best epoch {run.record.selection} on validation data"
    )
    make_portable(run)
    evaluations = evaluate_run(run, store)
    for evaluation in evaluations:
        print_table(accuracy_table(evaluation), out)
    save_evaluations(folder / "evaluation.json", evaluations)
    indices = build_indices(run, store, split.database)
    save_together({index_path(run.folder / INDEX, name): index for name, index in indices.items()})
    sheet = folder / "searches.png"
    contact_sheet(_searches(run, store, indices), sheet)
    out.print(f"Example searches: {printable(str(sheet))}")
    out.print(f'Search yourself: multibit search {printable(str(folder / "run"))} "a red flower" --bits 32')


def sample_features(folder: Path, out: Console, *, device: str = "cpu") -> FeatureStore:
    """Features of the included sample by the packaged encoders, computed once and kept in `folder`."""
    if not folder.exists():
        out.print("Encoding the sample with the packaged encoders; later runs use the same features")
    images, texts = load_image_encoder("efficientnet-lite0", device), load_text_encoder("all-minilm-l6-v2", device)
    store = extract_features(load_sample(), images, texts, folder)
    out.print(f"Features: {len(store):,} items, {store.image.shape[1]}-d images, {store.text.shape[1]}-d texts")
    for name, reason in store.skipped:
        out.print(printable(f"Skipped {name}: {reason}"))
    return store


def _searches(run: Run, store: FeatureStore, indices: dict[str, Index]) -> list[Search]:
    """Searches by free text, by the text of a query item, and by the image of a query item."""
    free = [_search(run, indices, text, None, frozenset()) for text in ("a red flower", "musical instrument")]
    shown = _various(store, run.split.query, 6)
    by_text = [_search_item(run, store, indices, int(row), "text") for row in shown[:3]]
    by_image = [_search_item(run, store, indices, int(row), "image") for row in shown[3:]]
    return [*free, *by_text, *by_image]


def _various(store: FeatureStore, rows: NDArray[np.int64], count: int) -> list[int]:
    """The first rows, in order, that share no label with those before them."""
    seen: set[str] = set()
    chosen: list[int] = []
    for row in rows:
        labels = set(store.dataset.label_names_of(row))
        if labels and not labels & seen and len(chosen) < count:
            chosen.append(int(row))
            seen |= labels
    return chosen


def _search_item(run: Run, store: FeatureStore, indices: dict[str, Index], row: int, query: Modality) -> Search:
    data = store.dataset
    image = data.images[row] if query == "image" else None
    return _search(run, indices, data.texts[row][0], image, frozenset(data.label_names_of(row)))


def _search(run: Run, indices: dict[str, Index], text: str, image: Path | None, labels: frozenset[str]) -> Search:
    searched: Modality = "text" if image else "image"
    rows = {}
    for bits in sorted({min(bits, run.model.bits) for bits in SHOWN_BITS}):
        codes = Codes.binarize(encode_image(run, image, bits) if image else encode_text(run, text, bits))
        hits = indices[index_name(run.model.layout, searched, bits)].search(codes, SHOWN_HITS, bits).hits()
        rows[bits] = located_hits(hits, run.folder / INDEX)
    title = f"image -> texts: {text}" if image else f"text -> images: {text}"
    return Search(title, labels, image, rows, show=searched)

"""The main job on the real sample: pictures and texts -> features -> teacher -> model -> codes -> index -> numbers."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from multibit.codes import Codes
from multibit.config import Config
from multibit.data import FeatureStore, Split
from multibit.data.encoders import load_picture_encoder, load_text_encoder
from multibit.data.extract import extract_features
from multibit.data.sample import load_sample
from multibit.hashing.model import MODALITIES, Modality
from multibit.report import Search, accuracy_table, contact_sheet, save_evaluations
from multibit.runs import Run
from multibit.search import Index

SHOWN_BITS = (16, 128)
SHOWN_HITS = 8


def run_demo(folder: Path, config: Config, out: Console, *, device: str = "cpu") -> None:
    """Run everything on the shipped sample and leave all files in `folder`.

    The features are kept there and used again; a finished run is replaced by a new one, an unfinished one goes on.
    """
    sample = load_sample()
    out.print(
        f"Sample: {len(sample):,} public-domain pictures with texts, {len(sample.label_names)} labels, "
        f"{sample.labels.sum() / len(sample):.2f} labels an item"
    )
    store = sample_features(folder / "features", out, device=device)
    split = Split.usual(len(store), config.seed)
    out.print(
        f"Split (seed {split.seed}): {len(split.train):,} train, {len(split.validation):,} validation, "
        f"{len(split.query):,} query, {len(split.database):,} database, of which {len(split.unseen):,} never trained on"
    )
    if (folder / "run" / "run.json").exists():
        shutil.rmtree(folder / "run")
    run = Run.create(folder / "run", store, split, config, device=device)
    out.print(
        f"One model: {run.model.bits}-bit code, {'/'.join(map(str, run.model.blocks))} bits for the "
        f"{run.teacher.scales} diffusion scales; best epoch {run.record['selection']['epoch']} on validation data"
    )
    evaluations = run.evaluate(store)
    for evaluation in evaluations:
        out.print(accuracy_table(evaluation).rich())
    save_evaluations(folder / "evaluation.json", evaluations)
    indices: dict[Modality, Index] = {}
    for modality in MODALITIES:
        indices[modality] = Index(model=run.record["model"])
        run.index_items(indices[modality], store, modality, split.database)
        indices[modality].save(folder / "run" / "index" / f"{modality}.mbx")
    sheet = folder / "searches.png"
    contact_sheet(_searches(run, store, indices), sheet)
    out.print(f"Searches to look at: {sheet}")
    out.print(f'Try your own: multibit search {folder / "run"} "a red flower" --bits 32')


def sample_features(folder: Path, out: Console, *, device: str = "cpu") -> FeatureStore:
    """Features of the shipped sample by the packaged encoders, made once and kept in `folder`."""
    if not folder.exists():
        out.print("Encoding once with the packaged encoders; the features are kept for the next run")
    pictures, texts = load_picture_encoder("efficientnet-lite0", device), load_text_encoder("all-minilm-l6-v2", device)
    store = extract_features(load_sample(), pictures, texts, folder)
    out.print(f"Features: {len(store):,} items, {store.image.shape[1]}-d pictures, {store.text.shape[1]}-d texts")
    for name, reason in store.skipped:
        out.print(f"Skipped {name}: {reason}")
    return store


def _searches(run: Run, store: FeatureStore, indices: dict[Modality, Index]) -> list[Search]:
    """Searches by free texts, by texts of query items, and by pictures of query items."""
    free = [_search(run, indices["image"], text, None, frozenset()) for text in ("a red flower", "musical instrument")]
    shown = _various(store, run.split.query, 6)
    by_text = [_search_item(run, store, indices["image"], int(row), "text") for row in shown[:3]]
    by_picture = [_search_item(run, store, indices["text"], int(row), "image") for row in shown[3:]]
    return [*free, *by_text, *by_picture]


def _various(store: FeatureStore, rows: NDArray[np.int64], count: int) -> list[int]:
    """The first rows, in order, that bring a label not seen yet."""
    seen: set[str] = set()
    chosen: list[int] = []
    for row in rows:
        labels = set(store.dataset.label_names_of(row))
        if labels and not labels & seen and len(chosen) < count:
            chosen.append(int(row))
            seen |= labels
    return chosen


def _search_item(run: Run, store: FeatureStore, index: Index, row: int, asked: Modality) -> Search:
    data = store.dataset
    image = data.images[row] if asked == "image" else None
    return _search(run, index, data.texts[row][0], image, frozenset(data.label_names_of(row)))


def _search(run: Run, index: Index, text: str, image: Path | None, labels: frozenset[str]) -> Search:
    codes = Codes.from_signs(run.encode_picture(image) if image else run.encode_text(text))
    lengths = sorted({min(bits, run.model.bits) for bits in SHOWN_BITS})
    rows = {bits: index.search(codes, SHOWN_HITS, bits).hits() for bits in lengths}
    title = f"picture -> texts: {text}" if image else f"text -> pictures: {text}"
    return Search(title, labels, image, rows, show="text" if image else "image")

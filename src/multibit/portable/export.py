"""Export: a run -> the folder of a portable model."""

from __future__ import annotations

import importlib.util
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from multibit.codes.items import MODALITIES
from multibit.errors import ConfigError, require_opened
from multibit.features.export import cached_encoder, export_encoder
from multibit.features.load import image_encoder_of, text_encoder_of
from multibit.features.packaged import IMAGE_ENCODERS, TEXT_ENCODERS
from multibit.features.portable import PortableImages, PortableTexts
from multibit.features.recipe import Recipe
from multibit.features.sessions import checksum_of
from multibit.files import write_json
from multibit.hashing.heads import can_export, export_head
from multibit.machine import versions_here
from multibit.paths import replacing, require_new
from multibit.portable.card import model_card
from multibit.portable.model import CONFIG, FOLDER, KIND, NETWORKS, TEACHER, VERSION, PortableConfig, PortableModel
from multibit.portable.quantize import SUFFIX, quantize_texts

if TYPE_CHECKING:
    from multibit.runs import Run


def export_run(
    run: Run, folder: Path | str, *, encoders: bool = True, int8: bool = False, download: bool = False
) -> PortableModel:
    """Write a run as a portable model.

    Args:
        run: trained on features of packaged encoders or of a CLIP-like model in float32. folder: must not exist.
        encoders: with the encoders, about 100 MB for the packaged ones; without them, packaged encoders are written to
            the cache of the user when they are first needed.
        int8: quantise the text encoder, see `multibit.portable.quantize`: another recipe, whose codes are another
            model's, so indices of the run refuse them.
        download: whether the hub may be asked for encoders that are not on this disk; the user's token is not sent.

    Raises:
        DataError: ready-made features, `folder` exists, or a path instead of a run. ConfigError: a network or encoder
            that cannot be exported, or no `encoders` where they are not packaged. MissingExtraError: a library is not
            installed. MismatchError: the installed encoders differ from those of the features.
    """
    require_opened(run, "run", "Run.load")
    target = Path(folder)
    require_new(target)
    if int8 and not encoders:
        raise ConfigError("needs the encoders in the folder.", option="int8", hint="Write them too.")
    if not encoders and not has_packaged_encoders(run):
        raise ConfigError("the encoders of this run are not packaged ones.", option="encoders", hint="Write them too.")
    with replacing(target) as temporary:
        temporary.mkdir()
        write_networks(run, temporary / NETWORKS, encoders=encoders, download=download)
        card, recipe, weights = model_card(run), run.recipe, run.record.model
        if int8:
            texts = temporary / NETWORKS / "encoders" / "text"
            quantize_texts(texts)
            found = replace(PortableTexts(texts).recipe, prompt=recipe.text.prompt)
            recipe, weights = Recipe(recipe.image, found), f"{weights}{SUFFIX}"
            card += (
                f"\nThe text encoder is quantised, so this is model {weights}; indices of the run refuse its codes.\n"
            )
        write_config(run, temporary, recipe, weights)
        if encoders:
            _copy_explanation(run, temporary)
        (temporary / "README.md").write_text(card, encoding="utf-8")
    return PortableModel.open(target)


def write_networks(run: Run, folder: Path, *, encoders: bool, download: bool = False) -> None:
    """Write both hash networks, and the encoders if asked for, to a new folder; see `export_run`."""
    for modality in MODALITIES:
        export_head(run.model, modality, folder / "heads" / modality)
    if encoders:
        _write_encoders(run, folder / "encoders", download)


def write_config(run: Run, folder: Path, recipe: Recipe | None = None, weights: str = "") -> None:
    """Write `config.json`: the sizes and lengths of a run, and the recipe of its features.

    Args:
        run: to describe. folder: of the model. recipe, weights: of a quantised model; those of the run by default.
    """
    model = run.model
    config = PortableConfig(
        weights or run.record.model, run.record.method, model.layout.to_dict(), list(run.lengths),
        model.dimensions, recipe or run.recipe, versions_here(),
        list(run.label_names), list(run.record.blocks), run.record.teacher,
        {each.name: checksum_of(each) for each in sorted((folder / NETWORKS / "heads").glob("*"))},
    )  # fmt: skip
    write_json(folder / CONFIG, msgspec.to_builtins(config), kind=KIND, version=VERSION)


def make_portable(run: Run) -> PortableModel | None:
    """Add a portable model to the folder of a new run, where this costs little: with packaged encoders, without a copy.

    Returns:
        None for ready-made features, encoders that are not packaged, a network that cannot be exported, or without the
        libraries.
    """
    target = run.folder / FOLDER
    missing = any(importlib.util.find_spec(library) is None for library in ("onnx", "onnxruntime", "tokenizers"))
    if missing or target.exists() or not has_packaged_encoders(run) or not can_export(run.model):
        return None
    return export_run(run, target, encoders=False)


def has_packaged_encoders(run: Run) -> bool:
    """Whether the features of a run were made by packaged encoders, which the cache can hold."""
    image, text = run.recipe.image, run.recipe.text
    sides = ((image, IMAGE_ENCODERS), (text, TEXT_ENCODERS))
    known = all(each.weights and not each.source and hasattr(named.get(each.name), "compute") for each, named in sides)
    return known and text.prompt == "{}"


def _copy_explanation(run: Run, folder: Path) -> None:
    """Copy what explains a run, and is not needed to search: its teacher and its evaluation."""
    for name in (TEACHER, "evaluation.json", "evaluation.parquet"):
        if (run.folder / name).exists():
            shutil.copyfile(run.folder / name, folder / name)


def _write_encoders(run: Run, folder: Path, download: bool) -> None:
    """Write both encoders: packaged ones are copied from the cache, others are exported."""
    recipe = run.recipe
    if has_packaged_encoders(run):
        for modality in MODALITIES:
            shutil.copytree(cached_encoder(getattr(recipe, modality).name, modality), folder / modality)
        found = Recipe(PortableImages(folder / "image").recipe, PortableTexts(folder / "text").recipe)
    else:
        image, text = run.encoder_recipe("image"), run.encoder_recipe("text")
        unprompted = replace(text, prompt="{}")  # the network reads what the prompt has made
        sides = (
            image_encoder_of(image, folder=run.folder, download=download, runtime="torch"),
            text_encoder_of(unprompted, folder=run.folder, download=download, runtime="torch"),
        )
        found = Recipe(sides[0].recipe, replace(sides[1].recipe, prompt=recipe.text.prompt))
        for encoder, modality in zip(sides, MODALITIES, strict=True):
            export_encoder(encoder, folder / modality)
    recipe.require(found, "the installed encoders")

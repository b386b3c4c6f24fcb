"""What `multibit evaluate` does, as functions: a run or codes made elsewhere are measured, then assessed.

Items are coded once and rankings are computed once per direction and length: `measure` and `measure_codes` do both,
and all later steps read their result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from multibit.codes import MODALITIES, CodedItems
from multibit.counterparts import real_blocks, text_codes
from multibit.errors import MismatchError, MultibitError, require_kind, require_opened
from multibit.evaluation.assessment import Assessment, assess
from multibit.evaluation.cost import Cost, ModelSize, measure_cost
from multibit.evaluation.evaluation import Evaluation
from multibit.evaluation.floors import floor_warning
from multibit.evaluation.health import BitUse, bit_use
from multibit.evaluation.pair_metrics import add_pair_recall
from multibit.evaluation.protocol import evaluate_rankings
from multibit.evaluation.ranking import DEPTH, Rankings
from multibit.evaluation.relevance import GradedRelevance
from multibit.features import EncoderRecipe, FeatureStore
from multibit.features.leaks import crossing_duplicates, look_alikes
from multibit.features.load import load_text_encoder, text_encoder_of
from multibit.features.pairs import in_memory
from multibit.hashing.encode import encode_codes, encode_store
from multibit.pipeline import require_own_features, require_same_split, whole_run
from multibit.progress import showing
from multibit.relation import LabelGraph
from multibit.runs import Run, describe_code, read_history
from multibit.search.code_sets import CodeSets

if TYPE_CHECKING:
    from multibit.pipeline import AnyRun

PROTOCOLS = {
    "in": "training items in the database",
    "out": "training items kept out of the database",
}
WHOLE = "the whole database"
NO_LABELS = (
    "The items have no labels, so only pair recall is measured: mAP, its floors, precision and relevance need labels."
)
References = tuple[list[GradedRelevance], list[str]]
"""Evaluators, and one sentence for each that is missing."""

DEFAULT_TEXT_ENCODER = "all-minilm-l6-v2"


@dataclass(frozen=True, eq=False)
class Measurement:
    """Codes measured: each direction and length ranked once.

    Attributes:
        rankings, evaluations: one per protocol. bits: use of the bits in the database.
        notes: what was not measured and why, and reasons to doubt the numbers; one sentence each.
    """

    rankings: tuple[Rankings, ...]
    evaluations: tuple[Evaluation, ...]
    bits: BitUse
    notes: tuple[str, ...]


# A run


@dataclass(frozen=True, eq=False)
class MeasuredRun(Measurement):
    """A run measured on its own split, one ranking per protocol.

    Attributes:
        run: the measured run. query, database: coded items of the split.
    """

    run: Run
    query: CodedItems
    database: CodedItems


def measure(
    run: Run,
    store: FeatureStore,
    *,
    at: int | None = None,
    depth: int = DEPTH,
    lengths: Sequence[int] | None = None,
    protocols: Sequence[str] = tuple(PROTOCOLS),
    relaxed: bool = True,
) -> MeasuredRun:
    """Code the queries and the database of a run's split, rank them, and evaluate mAP under both protocols.

    The protocols search the whole database, and the database without training and validation items, which is left out
    where nothing can be found in it; a note says why. Items without labels are measured by pair recall alone, which has
    one protocol: among the query items, and among the whole database too.

    Args:
        run: to measure. store: the features of its split. at: also compute mAP and precision at this rank.
        depth: last rank of the precision curves over the whole database; 0 for none.
        lengths: to measure; those of the training when None. protocols: keys of `PROTOCOLS`.
        relaxed: keep the real values of the codes, for the asymmetric mAP and the quantisation loss.

    Raises:
        DataError: a length beyond the codes, or `at` without labels. MismatchError: features of other data than the
            split.
    """
    require_own_features(run, store)
    split = run.split
    query, database = (
        encode_store(run.model, store, rows, keep_relaxed=relaxed) for rows in (split.query, split.database)
    )
    unseen = np.isin(split.database, split.unseen)
    known = replace(database, relaxed={})  # real values of the database are compared under one protocol only
    parts = {PROTOCOLS[name]: database if name == "in" else known.take(unseen) for name in protocols}
    fingerprints = {"run": run.record.model, "data": run.record.data, "split": run.split.identity()}
    rankings, evaluations, notes = list[Rankings](), list[Evaluation](), list[str]()
    for protocol, part in parts.items():
        if evaluations and not rankings[0].labelled:
            break
        if reason := _nothing_to_find(query, part) if evaluations else "":
            notes.append(f"Not measured: {protocol}, because {reason}.")
            continue
        rankings.append(Rankings(query, part, lengths or run.lengths, depth=depth if part is database else 0))
        evaluations.append(
            evaluate_rankings(
                rankings[-1], training_labels=store.dataset.labels[split.train], protocol=protocol, at=at,
                name=run.name, fingerprints=fingerprints,
            )
        )  # fmt: skip
    several = len(store.text) > len(store)
    texts = (text_codes(run, store, split.query), text_codes(run, store, split.database)) if several else None
    evaluations[0] = add_pair_recall(evaluations[0], rankings[0], texts)
    notes += [NO_LABELS] if not rankings[0].labelled else filter(None, map(floor_warning, evaluations))
    bits = bit_use(rankings[0], run.model.blocks)
    return MeasuredRun(tuple(rankings), tuple(evaluations), bits, tuple(notes), run, query, database)


def _nothing_to_find(query: CodedItems, database: CodedItems) -> str:
    """Why a protocol cannot be measured; empty where it can."""
    if not len(database):
        return "every item of the database is a training or validation item"
    shared = query.labels.any(axis=0) & database.labels.any(axis=0)
    return "" if shared.any() else "no query shares a label with an item of that database"


def evaluate_run(
    run: AnyRun, store: FeatureStore, *, at: int | None = None, progress: bool = False
) -> list[Evaluation]:
    """Evaluate the mAP of a run under both protocols.

    Args:
        run, store, at: as for `measure`. progress: show a bar on standard error.

    Raises:
        MismatchError: features of other data than the split. DataError: a portable model, which has no split.

    Example:
        >>> for evaluation in evaluate_run(run, store):
        ...     print(evaluation.protocol, evaluation.queries, evaluation.database)
        training items in the database 6 18
        training items kept out of the database 6 7
    """
    require_opened(run, "run", "open_run")
    require_kind(store, FeatureStore, "store", "Open it with open_features(run).")
    with showing(progress):
        return list(measure(whole_run(run), store, at=at).evaluations)


def assess_run(
    measured: MeasuredRun,
    store: FeatureStore,
    anchor: Measurement | None = None,
    *,
    references: References | None = None,
    download: bool = False,
    progress: bool = False,
) -> Assessment:
    """Complete the measurement of a run: resolution, agreement of lengths, quantisation, bit statistics, cost.

    Args:
        measured: of the run. store: its features.
        anchor: measurement of the run or codes that this run is compared with, whose candidates are shared with all
            pools; only what is compared is then computed. This run when None.
        references: from `references_of`, if they were made before. download: as for `label_name_relevance`.
        progress: show a bar on standard error.

    Raises:
        MismatchError: an anchor with another split.
    """
    run = measured.run
    if isinstance(anchor, MeasuredRun):
        require_same_split(anchor.run, run)
    recipe, labelled = run.encoder_recipe("text"), measured.rankings[0].labelled
    graded, notes = references or references_of(
        recipe, run.label_names, measured.database, run.folder, download=download
    )
    with showing(progress):
        return assess(
            measured.rankings,
            measured.evaluations,
            teacher=run.teacher,
            graph=_graph(run, store) if labelled else None,
            blocks=run.model.blocks,
            references=graded,
            bits=measured.bits,
            cost=_cost(measured, store),
            anchors=None if anchor is None else [rankings.anchor for rankings in anchor.rankings],
            facts=_facts(run),
            history=read_history(run),
            label_names=run.label_names,
            real=None if anchor is not None else real_blocks(run, store, measured.query, measured.database),
            look_alikes=None if anchor is not None else look_alikes(store, run.split),
            warnings=[*filter(None, [crossing_duplicates(store, run.split).problem]), *measured.notes, *notes],
        )


def _graph(run: Run, store: FeatureStore) -> LabelGraph:
    return run.teacher.graph if run.teacher else LabelGraph.from_labels(store.dataset.labels[run.split.train])


def references_of(
    recipe: EncoderRecipe | None,
    label_names: Sequence[str],
    database: CodedItems,
    folder: Path | None = None,
    *,
    download: bool = False,
) -> References:
    """The IDF evaluator, and the label-name evaluator if a text encoder and label names are available.

    Args:
        recipe: of the text features, if known. label_names: C names. database: items for the frequency of each label.
        folder, download: as for `label_name_relevance`.

    Returns:
        The evaluators, and one sentence for each that is missing. Both are empty without any labels.
    """
    if not database.labels.any():
        return [], []
    idf = GradedRelevance.idf(database.labels)
    try:
        return [idf, label_name_relevance(recipe, label_names, folder=folder, download=download)], []
    except MultibitError as error:
        return [idf], [f"No label-name evaluator: {error}"]


def label_name_relevance(
    recipe: EncoderRecipe | None,
    label_names: Sequence[str],
    *,
    text_encoder: str | None = None,
    folder: Path | None = None,
    download: bool = False,
) -> GradedRelevance:
    """The label-name evaluator; its `origin` names the text encoder.

    The encoder reads each name in the evaluator's own prompt (`multibit.evaluation.relevance.PROMPT`), never in that of
    the features.

    Args:
        recipe: of the text features; None where there are none. label_names: C names.
        text_encoder: name, folder or hub name of another encoder. When None, the encoder of the features, or the
            packaged one where the features are ready-made.
        folder: of the file that holds the recipe, for a model folder inside it.
        download: whether the hub may be asked for the encoder of the recipe; the user's token is not sent.

    Raises:
        DataError: no label names. MultibitError: the text encoder cannot be loaded.
    """
    if text_encoder is None and recipe is not None and recipe.weights:
        plain = replace(recipe, prompt="{}")
        encoder, origin = text_encoder_of(plain, folder=folder, download=download), recipe.name
    else:
        name = text_encoder or DEFAULT_TEXT_ENCODER
        encoder, origin = load_text_encoder(name), Path(name).name if Path(name).is_dir() else name
    return GradedRelevance.semantic(label_names, encoder.encode, origin=origin)


def _cost(measured: MeasuredRun, store: FeatureStore) -> Cost:
    model, run = measured.run.model, measured.run
    pairs = in_memory(store.take(run.split.query[:1]))
    return measure_cost(
        measured.query.take([0]),
        measured.database,
        measured.rankings[0].lengths,
        ModelSize(model.nbytes, model.parameter_count, model.flops),
        {modality: partial(encode_codes, model, pairs, modality) for modality in MODALITIES},
    )


def _facts(run: Run) -> dict[str, str]:
    record, blocks = run.record, run.model.blocks
    return {
        "method": record.method or "not recorded",
        "code": describe_code(run),
        **({"bits of the scales": f"{', '.join(map(str, run.model.blocks))}, local to long range"} if blocks else {}),
        "settings": ", ".join(f"{name} {value}" for name, value in run.config.to_dict().items()),
        "selected epoch": str(record.selection),
        "split": run.split.describe(),
        "image features": f"{run.recipe.image.name}, {run.model.image_dim}-d",
        "text features": f"{run.recipe.text.name}, {run.model.text_dim}-d",
        "model": record.model,
        "data": record.data,
        "versions": ", ".join(f"{name} {value}" for name, value in record.versions.items()),
    }


# Codes made elsewhere


@dataclass(frozen=True, eq=False)
class MeasuredCodes(Measurement):
    """Codes made elsewhere, measured under the one protocol of their database.

    Attributes:
        sets: the codes.
    """

    sets: CodeSets


def measure_codes(sets: CodeSets, *, protocol: str = WHOLE, at: int | None = None) -> MeasuredCodes:
    """Rank codes made elsewhere in both directions at all lengths, and evaluate mAP.

    Such files hold no training labels, so there is no popularity floor. Without any labels only pair recall is
    measured.

    Args:
        sets: the codes. protocol: human-readable description of the database. at: as for `measure`.

    Raises:
        DataError: no query has a relevant item, or `at` without labels.
    """
    own = {key: (file.query, file.database) for key, file in sets.files.items()}
    rankings = Rankings(sets.query, sets.database, sets.lengths, own=own)
    evaluation = add_pair_recall(
        evaluate_rankings(rankings, training_labels=None, protocol=protocol, at=at, name=sets.name), rankings
    )
    notes = filter(None, [floor_warning(evaluation)]) if rankings.labelled else [NO_LABELS]
    return MeasuredCodes((rankings,), (evaluation,), bit_use(rankings), tuple(notes), sets)


def require_same_items(sets: CodeSets, run: Run, store: FeatureStore) -> None:
    """Refuse to compare codes made elsewhere with a run on other items.

    Args:
        sets: the codes. run: to compare with. store: its features.

    Raises:
        MismatchError: other queries or another database, by the labels of each row; codes of the run that are shorter;
            not the features of the run.
    """
    labels = store.dataset.labels
    require_own_features(run, store)
    sets.require_same_items(labels[run.split.query], labels[run.split.database], run.folder)
    if sets.lengths[-1] > run.model.bits:
        raise MismatchError(
            f"has codes of {run.model.bits} bits, {sets.source} of {sets.lengths[-1]} bits.",
            file=run.folder,
            hint="Choose shorter ones by `lengths`.",
        )


def measure_against(sets: CodeSets, run: Run, store: FeatureStore, *, at: int | None = None) -> MeasuredRun:
    """Measure a run on the whole database at the lengths of codes made elsewhere, to compare both.

    Args:
        sets: the codes. run: to measure. store: its features. at: as for `measure`.

    Raises:
        MismatchError: as `require_same_items`.
    """
    require_same_items(sets, run, store)
    return measure(run, store, at=at, depth=0, lengths=sets.lengths, protocols=("in",), relaxed=False)


def assess_codes(
    measured: MeasuredCodes,
    label_names: Sequence[str] = (),
    recipe: EncoderRecipe | None = None,
    folder: Path | None = None,
    *,
    download: bool = False,
) -> Assessment:
    """Measure what needs no model: resolution, agreement of lengths, use of bits.

    Args:
        measured: the codes. label_names: C names, for the label-name evaluator.
        recipe: of the text encoder that reads them; the packaged one when None.
        folder, download: as for `label_name_relevance`.

    Raises:
        DataError: another number of label names than label columns.
    """
    sets = measured.sets
    sets.require_label_names(label_names)
    references, notes = list[GradedRelevance](), [*sets.notes, *measured.notes]
    if label_names:
        references, missing = references_of(recipe, label_names, sets.database, folder, download=download)
        notes += missing
    elif sets.labelled:
        references = [GradedRelevance.idf(sets.database.labels)]
    return assess(
        measured.rankings,
        measured.evaluations,
        references=references,
        bits=measured.bits,
        facts=_facts_of_codes(sets),
        warnings=notes,
    )


def _facts_of_codes(sets: CodeSets) -> dict[str, str]:
    files = dict.fromkeys(file.path.name for file in sets.files.values())
    return {
        "codes": f"made elsewhere: {', '.join(files)}",
        "code lengths": f"{', '.join(map(str, sets.lengths))} bits{', nested' if sets.nested else ''}",
        "items": f"{len(sets.query):,} queries, {len(sets.database):,} in the database",
        "label columns": str(sets.database.labels.shape[1]),
        **({"popularity floor": "not measured, because the files have no training labels"} if sets.labelled else {}),
    }

"""Labels for data that has none: words of the texts, or what a joint encoder sees in the pictures."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from multibit.data.dataset import PairedDataset
from multibit.data.encoders import PictureEncoder, TextEncoder
from multibit.data.pictures import open_picture
from multibit.errors import ConfigError, DataError, MismatchError
from multibit.progress import progress

WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")
ENGLISH = """
    a about above across after against all along also am an and another any are around as at away back be been before
    behind being below beneath beside between both but by can could did do does doing down during each either few for
    from front full get had has have he her here him his how i if in inside into is it its itself just like lot many me
    more most much near next no not of off on one onto or other others our out outside over own part per several she
    side so some such than that the their them then there these they this those three through to top toward towards
    two under until up upon us very was we were what when where which while who with within without would you your
    """
FUNCTION_WORDS = frozenset(ENGLISH.split())
"""English words that are no topic; they also end a phrase."""

IRREGULAR = {"men": "man", "women": "woman", "children": "child"}

TAG_LIST = 4
"""A longer run of words without a function word is a list of tags: each word stands for itself."""


def label_from_texts(
    dataset: PairedDataset,
    vocabulary: Sequence[str] | None = None,
    *,
    min_share: float = 0.002,
    max_share: float = 0.5,
    count: int = 100,
) -> PairedDataset:
    """Label each item with the words and two-word phrases of a vocabulary that its texts hold.

    Case and plural do not matter. Without a vocabulary, one is made of the most frequent words that look like nouns:
    those that often end a phrase ("a small red dog on the grass" has dog and grass), and of pairs of words that mostly
    occur together ("fire hydrant"). Numbers measured on labels that come from the texts flatter the text side.

    Args:
        dataset: whose labels are replaced. vocabulary: the labels; made from the texts when None.
        min_share, max_share: of items that have it, for a word to become a label. count: labels at most.

    Raises:
        ConfigError: shares or count out of range, or an empty vocabulary. DataError: no item has a text, or none that
            holds a label.

    Example:
        >>> texts = (("A dog and a fire hydrant.",), ("Two dogs sit.",), ("The fire hydrant",), ("a cat",))
        >>> data = PairedDataset(("a", "b", "c", "d"), (None,) * 4, texts, [[]] * 4, ())
        >>> label_from_texts(data, max_share=0.9, count=2).label_names
        ('dog', 'fire hydrant')
    """
    if not 0 <= min_share <= max_share <= 1 or count < 1:
        raise ConfigError(
            f"labels: need 0 <= min_share <= max_share <= 1 and count >= 1; got {min_share}, {max_share}, {count}."
        )
    if vocabulary is not None and not vocabulary:
        raise ConfigError("labels: the vocabulary is empty; need at least one name.")
    if not any(text.strip() for texts in dataset.texts for text in texts):
        raise DataError(
            f"none of the {len(dataset):,} items has a text that could give a label. Are there pictures, look at "
            "those: give --image-encoder, --text-encoder and --vocabulary."
        )
    runs_of = [list(_runs(texts)) for texts in dataset.texts]
    named = {name: _lower(name) for name in vocabulary or ()}
    known = {word for runs in [*runs_of, named.values()] for run in runs for word in run}
    items = [[[_singular(word, known) for word in run] for run in runs] for runs in runs_of]
    if vocabulary is None:
        names = _vocabulary(items, min_share * len(items), max_share * len(items), count)
        phrases = {name: name for name in names}
    else:
        phrases = {" ".join(_singular(word, known) for word in words): name for name, words in named.items()}
    found = [{phrases[phrase] for phrase in _phrases(runs) if phrase in phrases} for runs in items]
    if not any(found):
        raise DataError(f"no text holds any of {len(phrases)} labels. Give another vocabulary, or smaller shares.")
    return _relabel(dataset, found, sorted(set(phrases.values())))


def label_zero_shot(
    dataset: PairedDataset,
    names: Sequence[str],
    pictures: PictureEncoder,
    texts: TextEncoder,
    *,
    template: str = "a photo of a {}",
    temperature: float = 0.01,
    min_probability: float = 0.2,
) -> PairedDataset:
    """Label each picture with the names that a joint encoder finds nearest, as CLIP's zero-shot classification does.

    Args:
        dataset: whose labels are replaced; an item whose picture cannot be read gets none.
        names: the labels. pictures, texts: the two sides of one encoder, with features in one space.
        template: what is encoded for a name. temperature: of the softmax over cosines; CLIP learned 0.01.
        min_probability: from which a name becomes a label; the most probable one always does.

    Raises:
        ConfigError: no name, or no {} in the template. MismatchError: the encoders have different dimensions.
    """
    if not names or "{}" not in template:
        raise ConfigError(
            f"labels: need at least one name and a template with {{}}; got {len(names)} and {template!r}."
        )
    dimensions = pictures.recipe.dimension, texts.recipe.dimension
    if dimensions[0] != dimensions[1]:
        raise MismatchError(
            f"{pictures.recipe.name} and {texts.recipe.name}: features of {dimensions[0]} and {dimensions[1]} values "
            "are not in one space. Zero-shot labels need the two sides of a joint encoder, such as CLIP."
        )
    prompts = _unit(texts.encode([template.format(name) for name in names]))
    found: list[set[str]] = [set() for _ in dataset.ids]
    batch = max(pictures.batch_size, 1)
    with progress("Labelling pictures", len(dataset), "pictures") as advance:
        for start in range(0, len(dataset), batch):
            rows = range(start, min(start + batch, len(dataset)))
            prepared = {row: one for row in rows if (one := _prepare(dataset, row, pictures)) is not None}
            if prepared:
                cosines = _unit(pictures.encode(list(prepared.values()))) @ prompts.T  # (n, labels)
                likely = _likely(cosines / temperature, min_probability)
                for row, chosen in zip(prepared, likely, strict=True):
                    found[row] = {names[column] for column in np.flatnonzero(chosen).tolist()}
            advance(len(rows))
    return _relabel(dataset, found, sorted(set(names)))


def _prepare(dataset: PairedDataset, row: int, pictures: PictureEncoder) -> NDArray[np.uint8] | None:
    path = dataset.images[row]
    try:
        return None if path is None else pictures.prepare(open_picture(path))
    except DataError:
        return None


def _likely(scores: NDArray[np.floating], least: float) -> NDArray[np.bool_]:
    """Which columns of each row have at least this softmax probability; the best one always."""
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    chosen: NDArray[np.bool_] = (weights / weights.sum(axis=1, keepdims=True) >= least) | (weights == 1)
    return chosen


def _unit(features: NDArray[np.float32]) -> NDArray[np.float64]:
    vectors = np.asarray(features, np.float64)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: NDArray[np.float64] = vectors / np.where(lengths > 0, lengths, 1)
    return unit


def _relabel(dataset: PairedDataset, found: Iterable[set[str]], names: Sequence[str]) -> PairedDataset:
    items = zip(dataset.ids, dataset.images, dataset.texts, found, strict=True)
    return PairedDataset.of_items(items, names)


Runs = list[list[str]]
"""Words of an item's texts, cut at function words and punctuation."""


def _runs(texts: Iterable[str]) -> Iterator[list[str]]:
    for text in texts:
        for part in re.split(r"[.,;:!?()\n]", text):
            for is_word, run in itertools.groupby(_lower(part), key=lambda word: word not in FUNCTION_WORDS):
                if is_word:
                    yield list(run)


def _lower(text: str) -> list[str]:
    return [word.replace("’", "'").casefold() for word in WORD.findall(text)]


def _singular(word: str, known: set[str]) -> str:
    """A plural becomes its singular where that occurs too."""
    if word in IRREGULAR:
        return IRREGULAR[word]
    if word.endswith("ss"):
        return word
    shorter = (word.removesuffix(ending) for ending in ("s", "es") if word.endswith(ending) and len(word) > 3)
    return next((one for one in shorter if one in known), word)


def _phrases(runs: Runs) -> set[str]:
    """Words and pairs of neighbouring words."""
    return {word for run in runs for word in run} | {f"{a} {b}" for run in runs for a, b in itertools.pairwise(run)}


def _vocabulary(items: Sequence[Runs], least: float, most: float, count: int) -> list[str]:
    """The most frequent words and phrases that look like nouns, by the number of items that have them."""
    having: Counter[str] = Counter()
    nouns, uses = Counter[str](), Counter[str]()
    for runs in items:
        having.update(_phrases(runs))
        for run in runs:
            uses.update(run)
            nouns.update(_heads(run))
    good = {word for word in uses if len(word) > 1 and nouns[word] >= uses[word] / 3}
    pairs = {phrase: phrase.split() for phrase in having if " " in phrase}
    fixed = {
        phrase: words
        for phrase, words in pairs.items()
        if words[1] in good and having[phrase] >= max(least, min(having[word] for word in words) / 2)
    }
    covered = {word for phrase, words in fixed.items() for word in words if having[phrase] >= 0.8 * having[word]}
    candidates = [name for name in (good - covered) | fixed.keys() if max(least, 2) <= having[name] <= most]
    return sorted(candidates, key=lambda name: (-having[name], name))[:count]


def _heads(run: Sequence[str]) -> list[str]:
    """The words of a run that may be nouns: the last, those before a verb, or all of a list of tags."""
    if len(run) > TAG_LIST:
        return list(run)
    return [
        word
        for word, after in itertools.zip_longest(run, run[1:])
        if not _like_a_verb(word) and (after is None or _like_a_verb(after))
    ]


def _like_a_verb(word: str) -> bool:
    return len(word) > 4 and word.endswith(("ing", "ed"))

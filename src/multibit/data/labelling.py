"""Labels made from the words and phrases of an item's texts."""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from simplemma import lemmatize
from stop_words import get_stop_words

from multibit.data.dataset import PairedDataset
from multibit.data.values import same_name
from multibit.errors import ConfigError, DataError, counted, require_kind
from multibit.progress import tracked

MARKS = "".join(chr(code) for code in range(0x300, 0x20000) if unicodedata.category(chr(code))[0] == "M")
"""Combining marks, which are part of words in many scripts."""

LETTER = rf"(?:[^\W\d_]|[{re.escape(MARKS)}\u200c\u200d])"
WORD = re.compile(rf"{LETTER}+(?:['’-]{LETTER}+)*")
UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
"""Letters of scripts without blanks between words, such as Chinese and Thai: a name is found anywhere in them."""

_PIECE = re.compile(rf"[{UNSPACED}]|(?:(?![{UNSPACED}])(?:{LETTER}|\d))+")
"""Letters and digits without a break, by which names are found in texts."""

ENGLISH = """
    a about above across after against all along also am an and another any are around as at away back be been before
    behind being below beneath beside between both but by can could did do does doing down during each either few for
    from front full get had has have he her here him his how i if in inside into is it its itself just like lot many me
    more most much near next no not of off on one onto or other others our out outside over own part per several she
    side so some such than that the their them then there these they this those three through to top toward towards
    two under until up upon us very was we were what when where which while who with within without would you your
    """
FUNCTION_WORDS = frozenset(ENGLISH.split())
"""English words that are never a label; they also end a phrase, which other stop words can be part of."""

_SIGNS = ("+", "#")
"""Signs behind a name that make it another one, as in C++ and C#."""

STOP_WORDS = frozenset(get_stop_words("en"))
"""English words that say little. One that mostly follows an article, such as room, may be a label all the same."""

ARTICLES = frozenset(("a", "an", "the"))
IRREGULAR = {"men": "man", "women": "woman", "children": "child"}

LEAST = 0.002
"""Least share of the items that have a word of a built vocabulary, unless another is asked for."""

TAG_LIST = 4
"""A run of more words than this without a function word is a list of tags: each word is taken on its own."""


class WordRun(NamedTuple):
    """Neighbouring words without a function word or punctuation between them, and whether an article opens them."""

    words: list[str]
    article: bool


WordRuns = list[WordRun]
"""The words of an item's texts."""


def label_from_texts(
    dataset: PairedDataset,
    vocabulary: Sequence[str] | None = None,
    *,
    min_share: float = LEAST,
    max_share: float = 0.5,
    count: int = 100,
    plurals: bool = False,
) -> PairedDataset:
    """Label each item with the names of a vocabulary that occur in its texts.

    A name may have any number of words and any characters. It must be a whole word or phrase: C is not in "C++". Case,
    the Unicode form and the width of blanks are ignored, the plural only with `plurals`. In scripts without blanks
    between words, such as Chinese, a name is found anywhere.

    Without a vocabulary, one is built from the most frequent words that look like nouns, which are those that often end
    a phrase ("a small red dog on the grass" gives dog and grass), and from pairs of words that mostly occur together
    ("fire hydrant"). English stop words and verbs are no labels, and plurals count as their singular. Scores on labels
    that come from the texts favour the texts.

    Args:
        dataset: N items; their labels are replaced.
        vocabulary: the labels; built from the texts when None.
        min_share, max_share: smallest and largest share of the items that contain a word of the built vocabulary.
        count: largest number of labels in the built vocabulary.
        plurals: with a vocabulary, a name also stands for its English plural: dogs is dog.

    Returns:
        The same items with the new labels, whose columns are in alphabetical order.

    Raises:
        ConfigError: shares or count out of range, an empty vocabulary, or names in it that are the same, or without any
            letter or digit.
        DataError: no item has a text, no text contains a label, or not a data set.

    Example:
        >>> texts = (("A dog and a fire hydrant.",), ("Two dogs sit.",), ("The fire hydrant",), ("a cat",))
        >>> data = PairedDataset(("a", "b", "c", "d"), (None,) * 4, texts, [[]] * 4, ())
        >>> label_from_texts(data, max_share=0.9, count=2).label_names
        ('dog', 'fire hydrant')
    """
    require_kind(dataset, PairedDataset, "dataset", "Read one with read(source) or read_manifest(path).")
    if not 0 <= min_share <= max_share <= 1:
        raise ConfigError(
            f"need 0 <= smallest share <= largest share <= 1, got {min_share} and {max_share}.",
            option="min_share" if min_share < 0 or (min_share != LEAST and max_share <= 1) else "max_share",
        )
    if count < 1:
        raise ConfigError(f"need at least 1 label, got {count}.", option="count")
    if vocabulary is not None and not vocabulary:
        raise ConfigError("the vocabulary is empty; it needs at least 1 name.", option="vocabulary")
    if not any(text.strip() for texts in dataset.texts for text in texts):
        raise DataError(
            f"none of {counted(len(dataset), 'item', 'items')} has a text to take labels from.",
            field="texts",
            hint="If the items have images, label those with a joint encoder: `label_zero_shot`.",
        )
    if vocabulary is None:
        found, names = _by_frequent_words(dataset, min_share, max_share, count)
    else:
        found, names = _by_vocabulary(dataset, vocabulary, plurals)
    if not any(found):
        raise DataError(
            f"no text contains any of {counted(len(names), 'label', 'labels')}.",
            field="texts",
            hint="Use another `vocabulary`.",
        )
    return relabel(dataset, found, names)


def _by_frequent_words(
    dataset: PairedDataset, min_share: float, max_share: float, count: int
) -> tuple[list[set[str]], list[str]]:
    """Labels of each item, and all labels, from a vocabulary that is built.

    Raises:
        DataError: no word occurs in so many items; names the share that excludes all words.
    """
    items = [
        [WordRun([_singular(word) for word in run.words], run.article) for run in _runs(texts)]
        for texts in tracked(dataset.texts, "Reading texts", "items")
    ]
    names = set(_vocabulary(items, min_share * len(items), max_share * len(items), count))
    if not names:
        in_many = bool(_vocabulary(items, min_share * len(items), len(items), count))
        in_few = bool(_vocabulary(items, 0, max_share * len(items), count))
        hints = [
            *(["increase `max_share`"] if in_many else []), *(["decrease `min_share`"] if in_few else []),
            "give a `vocabulary`",
        ]  # fmt: skip
        raise DataError(
            f"no noun occurs in {min_share:.1%} to {max_share:.1%} of the {len(items):,} items, and in 2 or more.",
            field="texts",
            hint=f"{', or '.join(hints).capitalize()}.",
        )
    return [_phrases(runs) & names for runs in items], sorted(names)


def _by_vocabulary(
    dataset: PairedDataset, vocabulary: Sequence[str], plurals: bool
) -> tuple[list[set[str]], list[str]]:
    """Labels of each item, and all labels, from a vocabulary that is given.

    Raises:
        ConfigError: two names are the same, or a name has no letter or digit.
    """
    folded: dict[str, str] = {}
    for name in vocabulary:
        key = _folded(name)
        if not any(unicodedata.category(letter)[0] in "LN" for letter in key):
            raise ConfigError(f"{name!r} has no letter or digit, so it cannot be found.", option="vocabulary")
        if key in folded:
            raise ConfigError(
                f"{folded[key]!r} and {name!r} are the same name, because case is ignored.",
                option="vocabulary",
                hint="Leave one out.",
            )
        folded[key] = name
    forms = dict(folded)
    if plurals:
        for key, name in folded.items():
            for form in _plurals(key):
                forms.setdefault(form, name)
    names_at: dict[str, list[str]] = {}
    for form in sorted(forms, key=len, reverse=True):  # by their first word, so that each text is read once
        names_at.setdefault(_PIECE.findall(form)[0], []).append(form)
    found = [
        {forms[form] for text in texts for form in _found(_folded(text), names_at)}
        for texts in tracked(dataset.texts, "Reading texts", "items")
    ]
    return found, sorted(map(same_name, folded.values()))


def _folded(text: str) -> str:
    """Text as it is compared: one Unicode form, no case, one blank between words, one kind of apostrophe."""
    folded = unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())
    return " ".join(folded.replace("’", "'").split())


def _found(text: str, forms_at: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """The names that are whole words or phrases of a text, overlapping ones too."""
    for match in _PIECE.finditer(text):
        for form in forms_at.get(match[0], ()):
            start = match.start() - form.index(match[0])
            before, after = text[max(start - 1, 0) : max(start, 0)], text[start + len(form) : start + len(form) + 1]
            whole = not _go_together(before, form[0]) and not _go_together(form[-1], after)
            if start >= 0 and text.startswith(form, start) and whole and after not in _SIGNS:
                yield form


def _go_together(first: str, second: str) -> bool:
    """Whether two neighbouring characters are of one word."""
    return len(pieces := _PIECE.findall(first + second)) == 1 and len(pieces[0]) == 2


def _plurals(name: str) -> list[str]:
    """English plurals of a name, which is the singular."""
    start, blank, word = name.rpartition(" ")
    irregular = [plural for plural, singular in IRREGULAR.items() if singular == word]
    return [f"{start}{blank}{plural}" for plural in (*irregular, f"{word}s", f"{word}es")]


def relabel(dataset: PairedDataset, found: Iterable[set[str]], names: Sequence[str]) -> PairedDataset:
    """The same items with other labels.

    Args:
        dataset: N items. found: names of the labels of each item. names: all label names, in column order.

    Raises:
        DataError: a label that is not in `names`.

    Example:
        >>> data = PairedDataset(("a", "b"), (None, None), (("x",), ("y",)), [[], []], ())
        >>> relabel(data, [{"dog"}, set()], ["cat", "dog"]).labels.tolist()
        [[0, 1], [0, 0]]
    """
    items = zip(dataset.ids, dataset.images, dataset.texts, found, strict=True)
    return PairedDataset.of_items(items, names)


def _runs(texts: Iterable[str]) -> Iterator[WordRun]:
    for text in texts:
        for part in re.split(r"[.,;:!?()\n]", text):
            before = ""
            for is_word, words in itertools.groupby(_lower(part), key=lambda word: word not in FUNCTION_WORDS):
                run = list(words)
                if is_word:
                    yield WordRun(run, before in ARTICLES)
                before = run[-1]


def _lower(text: str) -> list[str]:
    """The words of a text without case and possessive: dog's is dog."""
    return [word.replace("’", "'").casefold().removesuffix("'s") for word in WORD.findall(text)]


@cache
def _singular(word: str) -> str:
    """The lemma of a plural; any other word unchanged."""
    if word in IRREGULAR:
        return IRREGULAR[word]
    return lemmatize(word, lang="en").casefold() if re.fullmatch("[a-z]*[a-rt-z]s", word) else word


def _phrases(runs: WordRuns) -> set[str]:
    """Words and pairs of neighbouring words."""
    pairs = {f"{a} {b}" for run in runs for a, b in itertools.pairwise(run.words)}
    return {word for run in runs for word in run.words} | pairs


def _vocabulary(items: Sequence[WordRuns], least: float, most: float, count: int) -> list[str]:
    """The words and phrases that look like nouns and occur in the most items, most frequent first."""
    having: Counter[str] = Counter()
    nouns, named, uses = Counter[str](), Counter[str](), Counter[str]()
    for runs in items:
        having.update(_phrases(runs))
        for run in runs:
            uses.update(run.words)
            heads = _heads(run.words)
            nouns.update(heads)
            named.update(heads if run.article else ())
    good = {
        word
        for word in uses
        if len(word) > 1
        and (named if word in STOP_WORDS else nouns)[word] >= uses[word] / 3
        and sum(uses[form] for form in _continuous(word)) <= uses[word]
    }
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
    """The words of a run that may be nouns: the last one, those before a verb, or all words of a list of tags."""
    if len(run) > TAG_LIST:
        return list(run)
    return [
        word
        for word, after in itertools.zip_longest(run, run[1:])
        if not _looks_like_verb(word) and (after is None or _looks_like_verb(after))
    ]


def _continuous(word: str) -> set[str]:
    """The -ing form of an English verb: walk is a verb where texts have more of walking."""
    return {f"{word}ing", f"{word.removesuffix('e')}ing", f"{word}{word[-1]}ing"}


@cache
def _looks_like_verb(word: str) -> bool:
    """Whether a word is a form of an English verb: parking, parked, but not ring or bed."""
    past = word.endswith("ed") and word.isascii() and lemmatize(word, lang="en") != word
    return past or (len(word) > 4 and word.endswith("ing"))

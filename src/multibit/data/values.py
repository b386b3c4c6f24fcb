"""Declared conversions of values of other tools to ids, texts, labels and paths; any other value is refused."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from multibit.errors import DataError, counted

TEXT_KEYS = ("raw", "text", "caption", "sentence", "texts", "captions", "sentences")
"""Keys of the text in a structure that also has tokens, numbers and so on, as in COCO on the hub."""

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_TWO_BYTES = re.compile("[\u0080-\u07ff]{2,}")

EXACT = 2**53
"""Larger floats do not hold every whole number."""

NO_CLASS = -1
"""Class number of an item whose label is hidden."""


def id_of(value: Any, *, row: int | None = None, field: str = "id") -> str:
    """An id: a text, a whole number, or a whole float, which is how MATLAB and pandas store numbers.

    Raises:
        DataError: empty or blank, null, or of another type; a float that is too large to be exact.

    Example:
        >>> id_of("a"), id_of(7), id_of(101.0)
        ('a', '7', '101')
    """
    value = _plain(value)
    if value is None or (isinstance(value, str) and not value.strip()):
        raise DataError("is empty.", row=row, field=field)
    number = _whole(value)
    if number is not None and not (isinstance(value, float) and abs(value) > EXACT):
        return str(number)
    if isinstance(value, str | bytes):
        return _text(value, row, field)
    raise DataError(f"need a text or a whole number, got {describe(value)}.", row=row, field=field)


def texts_of(value: Any, *, row: int | None = None, field: str = "text") -> tuple[str, ...]:
    """Texts of one item: one text, a list of them, or a structure with one of `TEXT_KEYS`; none for null.

    Raises:
        DataError: a value of another type, such as a number.

    Example:
        >>> texts_of(["a dog", None]), texts_of({"raw": "a cat", "tokens": ["a", "cat"]})
        (('a dog',), ('a cat',))
    """
    value = _plain(value)
    if value is None:
        return ()
    if isinstance(value, str | bytes):
        return (_text(value, row, field),)
    if isinstance(value, list | tuple):
        return tuple(text for each in value for text in texts_of(each, row=row, field=field))
    if isinstance(value, Mapping):
        key = next((key for key in TEXT_KEYS if key in value), None)
        if key is not None:
            return texts_of(value[key], row=row, field=f"{field}.{key}")
    raise DataError(f"need a text or a list of texts, got {describe(value)}.", row=row, field=field)


def path_of(value: Any, *, row: int | None = None) -> Path | None:
    """The path of an image; None for null and an empty text.

    Raises:
        DataError: a value of another type, or an address in the web.
    """
    value = _plain(value)
    if value is None or value == "":
        return None
    if not isinstance(value, str | bytes):
        raise DataError(f"need a path, got {describe(value)}.", row=row, field="image")
    path = _text(value, row, "image")
    if "\0" in path:
        raise DataError(f"a path with a NUL character: {path[:60]!r}.", row=row, field="image")
    if any("\ud800" <= letter <= "\udfff" for letter in path):
        raise DataError(
            f"{path[:40]!r} contains a lone surrogate.", row=row, field="image", hint="Fix the source text."
        )
    if _ADDRESS.match(path):
        hint = "Download the images, and write the paths of their files."
        raise DataError(f"{path[:60]!r} is an address, not the path of a file.", row=row, field="image", hint=hint)
    return Path(path)


def with_slashes(path: str) -> str:
    r"""A path that was written on Windows with slashes; any other unchanged.

    Example:
        >>> with_slashes("D:\\set\\a.jpg"), with_slashes("a/b\\c.jpg")
        ('D:/set/a.jpg', 'a/b\\c.jpg')
    """
    return path.replace("\\", "/") if "/" not in path or re.match("[A-Za-z]:", path) else path


def labels_of(
    values: Sequence[Any],
    *,
    rows: Sequence[int] = (),
    field: str = "labels",
    class_names: Sequence[str] | None = None,
    label_names: Sequence[str] | None = None,
) -> tuple[list[tuple[str, ...]], tuple[str, ...] | None]:
    """Label names of all items from one column.

    A value is null, a name, a class number, or a list of names or of class numbers. Where every list has the same
    length of two or more and contains nothing but 0 and 1, the lists are multi-hot vectors. The class number -1 is an
    item whose label is hidden. With `label_names`, class numbers count from 0 or from 1, whichever fits the names.

    Args:
        values: of the N items. rows: their rows in the file, for errors.
        class_names: names of the class numbers, as the source declares them. label_names: the same, as the user
            gives them; and names of the columns of multi-hot vectors.

    Returns:
        Label names of each item, and the label columns: `label_names`, or those of multi-hot vectors, numbered; else
        None for all that occur.

    Raises:
        DataError: a value of another type, a class number without a name, or class numbers that fit the names counted
            from 0 as well as from 1.

    Example:
        >>> labels_of([[0, 1], [1, 1]])
        ([('label 1',), ('label 0', 'label 1')], ('label 0', 'label 1'))
        >>> labels_of(["cat", None, ["dog", "cat"]])
        ([('cat',), (), ('dog', 'cat')], None)
    """
    plain = [_plain(value) for value in values]
    given = None if label_names is None else tuple(label_names)
    width = None if class_names is not None else _multi_hot_width(plain)
    if width is not None:
        columns = given or numbered_labels(width)
        if len(columns) != width:
            raise DataError(
                f"vectors of {width} labels, but {len(columns)} names are given.", field=field, hint=f"Name {width}."
            )
        return [tuple(columns[i] for i, each in enumerate(value or ()) if each) for value in plain], columns
    parts = [[_plain(part) for part in value] if isinstance(value, list | tuple) else [value] for value in plain]
    known = class_names
    if given is not None and class_names is None:
        parts = _numbers_in_texts(parts, given)
        known = _from_zero(parts, given, field)
    names = []
    for number, each in enumerate(parts):
        row = rows[number] if rows else None
        found = (_label(part, known, row, field) for part in each)
        names.append(tuple(name for name in found if name is not None))
    return names, given


def first_class(lowest: int, highest: int, names: Sequence[str]) -> int:
    """The first class number of a column: 0 or 1, whichever fits the names of the classes.

    Args:
        lowest, highest: class numbers that occur. names: of all classes.

    Raises:
        DataError: neither fits, or both do.

    Example:
        >>> first_class(0, 1, ["cat", "dog"]), first_class(1, 2, ["cat", "dog"])
        (0, 1)
    """
    from_zero, from_one = lowest >= 0 and highest < len(names), lowest >= 1 and highest <= len(names)
    if from_zero != from_one:
        return int(from_one)
    both = f"; counted from 0, {lowest} is {names[lowest]!r}, from 1 {names[lowest - 1]!r}" if from_zero else ""
    raise DataError(
        f"class numbers {lowest} to {highest} for {len(names)} label names{both}.",
        hint="Leave out `label_names`, or write names or multi-hot vectors instead of class numbers.",
    )


def _from_zero(parts: Sequence[Sequence[Any]], names: Sequence[str], field: str) -> Sequence[str]:
    """The names of the classes from 0, where the class numbers may count from 1."""
    numbers = [number for each in parts for number in map(_whole, each) if number not in (None, NO_CLASS)]
    if not numbers or min(numbers) < 1 or max(numbers) > len(names):  # from 0; what has no name is refused by its row
        return names
    try:
        return ["", *names] if first_class(min(numbers), max(numbers), names) else names
    except DataError as error:
        error.field = field
        raise


def _numbers_in_texts(parts: list[list[Any]], names: Sequence[str]) -> list[list[Any]]:
    """Texts as class numbers, where all of them are numbers and none is a name, as in a CSV file."""
    texts = {part.strip() for each in parts for part in each if isinstance(part, str)} - {""}
    if not texts or not all(re.fullmatch("-?[0-9]{1,9}", text) for text in texts) or texts & set(names):
        return parts
    return [[int(part) if isinstance(part, str) and part.strip() else part for part in each] for each in parts]


def numbered_labels(count: int) -> tuple[str, ...]:
    """Names for columns without names, whose alphabetical order is that of the columns."""
    return tuple(f"label {i:0{len(str(max(count - 1, 0)))}d}" for i in range(count))


def same_name(name: str) -> str:
    """The form in which names, labels and vocabularies are compared: equal letters have equal code points (NFC)."""
    return unicodedata.normalize("NFC", name)


def mixes_scripts(text: str) -> bool:
    r"""Whether letters of several scripts follow each other, as in text of another encoding that is valid UTF-8.

    Only characters of two bytes in UTF-8 count, which pairs of bytes of Chinese, Japanese and Korean encodings become.

    Example:
        >>> mixes_scripts("\u04bb\u05bb\u00e8"), mixes_scripts("un café, собака")
        (True, False)
    """
    return any(len(_scripts(run)) > 1 for run in _TWO_BYTES.findall(text))


def _scripts(letters: str) -> set[str]:
    names = (unicodedata.name(letter, "") for letter in letters if unicodedata.category(letter)[0] in "LM")
    return {name.split()[0] for name in names if name} - {"COMBINING", "MODIFIER", "FEMININE", "MASCULINE"}


def describe(value: Any) -> str:
    """The type and the beginning of a value, for an error."""
    if isinstance(value, Mapping):
        return f"a structure with {', '.join(map(str, list(value)[:8])) or 'nothing'}"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    if isinstance(value, bytes):
        return counted(len(value), "byte", "bytes")
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} {value.shape}"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"the number {value}"
    return f"{str(value)[:60]!r} ({type(value).__name__})"


def _plain(value: Any) -> Any:
    """Values of numpy as values of Python; a structure as a mapping."""
    if isinstance(value, np.void) and value.dtype.names:
        return {name: value[name] for name in value.dtype.names}
    if isinstance(value, np.ndarray):
        return [_plain(each) for each in value.ravel()] if value.dtype.names else value.tolist()
    return value.item() if isinstance(value, np.generic) else value


def _text(value: str | bytes, row: int | None, field: str) -> str:
    if isinstance(value, str):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise DataError(f"{counted(len(value), 'byte', 'bytes')}, not UTF-8 text.", row=row, field=field) from None


def _whole(value: Any) -> int | None:
    """A whole number, given as an integer or a float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return int(value) if value == int(value) else None


def _multi_hot_width(values: Sequence[Any]) -> int | None:
    """Length of the multi-hot vectors; None where the values are something else."""
    vectors = [value for value in values if value is not None]
    if not vectors or not all(isinstance(value, list | tuple) for value in vectors):
        return None
    width = len(vectors[0])
    whole = all(len(value) == width and all(_is_bit(each) for each in value) for value in vectors)
    return width if width > 1 and whole else None


def _is_bit(value: Any) -> bool:
    return isinstance(value, int | float) and value in (0, 1)


def _label(value: Any, known: Sequence[str] | None, row: int | None, field: str) -> str | None:
    """Name of one label; None for null, an empty name and a hidden class."""
    if value is None:
        return None
    if isinstance(value, str | bytes):
        return _text(value, row, field).strip() or None
    number = _whole(value)
    if number is None:
        raise DataError(
            f"need names, class numbers, or vectors of 0 and 1, got {describe(value)}.", row=row, field=field
        )
    if number == NO_CLASS:
        return None
    if known is None:
        return str(number)
    if not 0 <= number < len(known):
        raise DataError(f"class number {number}, but {len(known)} names are given.", row=row, field=field)
    return known[number]

"""Why a request is invalid, in the names of the request: what the validation library says is not for users."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from multibit.errors import counted, printable

KINDS = {
    "int": "a whole number", "float": "a number", "finite": "a finite number", "bool": "true or false",
    "string": "a text", "list": "a list", "dict": "an object", "model": "an object", "bytes": "a file",
}  # fmt: skip
"""First word of an error's type -> what the value must be."""

LONGEST = 60  # characters of a value that is repeated

SAYS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "missing": lambda _: "is missing.",
    "extra_forbidden": lambda _: "is unknown here: check the spelling.",
    "literal_error": lambda about: f"must be {about['expected']}",
    "greater_than_equal": lambda about: f"must be at least {about['ge']}",
    "less_than_equal": lambda about: f"must be at most {about['le']}",
    "string_too_short": lambda about: f"needs at least {counted(about['min_length'], 'character', 'characters')}.",
    "too_short": lambda about: f"needs at least {counted(about['min_length'], 'entry', 'entries')}.",
    "string_too_long": lambda about: f"may have at most {about['max_length']:,} characters.",
    "too_long": lambda about: f"may have at most {about['max_length']:,} entries.",
    "string_pattern_mismatch": lambda _: "must be hexadecimal digits, two for each byte",
    "json_invalid": lambda about: f"is not valid JSON: {about.get('error', 'it cannot be read')}.",
}
"""Type of an error -> the reason, from the facts about it; without a full stop the value that was given follows."""


def described(errors: Sequence[Mapping[str, Any]], content: Any) -> tuple[str, str]:
    """The first thing that is wrong with a request: the reason, and the field as the request spells it.

    Args:
        errors: of pydantic. content: of the request that they are about; None where it was not read.

    Example:
        >>> described([{"type": "int_parsing", "loc": ("bits", "constrained-int"), "input": "x"}], {"bits": "x"})
        ("must be a whole number, got 'x'.", 'bits')
    """
    places = [_place(error, content) for error in errors]
    reasons = dict.fromkeys(
        _reason(error) for error, place in zip(errors, places, strict=True) if place == places[0]
    )  # of a value that may be of several kinds, one for each
    first = next(iter(reasons))
    if len(reasons) > 1 and all(reason.startswith("must be ") for reason in reasons):
        wanted = [reason.removeprefix("must be ").removesuffix(".") for reason in reasons]
        first = f"must be {' or '.join(wanted)}"
    return (first if first.endswith(".") else f"{first}{_given(errors[0])}."), places[0]


def _place(error: Mapping[str, Any], content: Any) -> str:
    """The path of a value; parts that the content does not have are names of types."""
    names: list[str] = []
    for part in error["loc"]:
        if isinstance(part, int):
            if not isinstance(content, list) or part >= len(content):
                continue
            content = content[part]
        elif isinstance(content, Mapping) and part in content:
            content = content[part]
        elif part != error["loc"][-1] or error["type"] != "missing":
            continue
        names.append(str(part))
    return ".".join(names)


def _reason(error: Mapping[str, Any]) -> str:
    kind, about = str(error["type"]), error.get("ctx") or {}
    if "UploadFile" in str(error.get("msg")):
        return "must be a file: a part of the form with a file name."
    if kind in SAYS:
        return SAYS[kind](about)
    if kind.split("_")[0] in KINDS:
        return f"must be {KINDS[kind.split('_')[0]]}"
    return f"{str(error.get('msg', 'is invalid')).removeprefix('Value error, ')}."


def _given(error: Mapping[str, Any]) -> str:
    """The value, where it is short."""
    value = error.get("input")
    if value is not None and not isinstance(value, str | int | float | bool):
        return ""
    text = printable(repr(value))
    return f", got {text if len(text) <= LONGEST else text[:LONGEST] + '...'}"

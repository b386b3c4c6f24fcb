"""Griffe extension for the API pages: the docstrings of this project in the form that the parser expects."""

from __future__ import annotations

import re
from typing import Any

import griffe

LISTS = re.compile(r"(?ms)^((?:Args|Attributes|Raises):\n)(.*?)(?=^\S|\Z)")
NAMES = r"\*{0,2}\w+(?:, \*{0,2}\w+)*"
NEXT = re.compile(rf"(?<=[.;]) (?={NAMES}: )")
SHARED = re.compile(rf"(?m)^    ({NAMES})(: .*(?:\n {{5,}}.*)*)")
EXAMPLE = re.compile(r"(?m)^Example:$")


class Docstrings(griffe.Extension):
    """Gives arguments that share a line or a description one of their own, and spells sections as the parser does."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Of every class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub("Examples:", LISTS.sub(_one_each, obj.docstring.value))


def _one_each(section: re.Match[str]) -> str:
    entries = NEXT.sub("\n    ", section[2])
    return section[1] + SHARED.sub(
        lambda each: "\n".join(f"    {name}{each[2]}" for name in each[1].split(", ")), entries
    )

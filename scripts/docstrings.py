"""Griffe extension for the API pages: the docstrings of this project in the form that the parser expects."""

from __future__ import annotations

import re
from typing import Any

import griffe

LISTS = re.compile(r"(?ms)^((?:Args|Attributes):\n)(.*?)(?=^\S|\Z)")
NEXT = re.compile(r"(?<=[.;]) (?=[A-Za-z_*]\w*(?:, \w+)*: )")
EXAMPLE = re.compile(r"(?m)^Example:$")


class Docstrings(griffe.Extension):
    """Gives arguments that share a line lines of their own, and spells sections as the parser does."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Of every class, function and attribute."""
        if obj.docstring is not None:
            text = LISTS.sub(lambda found: found[1] + NEXT.sub("\n    ", found[2]), obj.docstring.value)
            obj.docstring.value = EXAMPLE.sub("Examples:", text)

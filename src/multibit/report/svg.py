"""Figures as SVG that follows the colour scheme of the reader."""

from __future__ import annotations

import io
import re
import warnings
from typing import TYPE_CHECKING, Any

from multibit.errors import printable

if TYPE_CHECKING:  # matplotlib is optional
    from matplotlib.figure import Figure

INK = "#000000"
"""What is drawn in this colour is dark on light pages and light on dark ones."""

STYLE = (
    "<style>:root{color:#1f2328}@media(prefers-color-scheme:dark){:root{color:#e6edf3}}"
    "text{font-family:'DejaVu Sans',Verdana,'Noto Sans',Arial,sans-serif}</style>"
)
SETTINGS: dict[Any, Any] = {"svg.fonttype": "none", "path.simplify_threshold": 0.5}


def as_svg(figure: Figure, name: str) -> bytes:
    """A figure as SVG: texts stay texts, the ground is transparent, the same figure gives the same bytes.

    Args:
        figure: drawn with black for what follows the colour scheme. name: of the figure.
    """
    import matplotlib.text

    for text in figure.findobj(matplotlib.text.Text):
        text.set_text(printable(text.get_text()))
    buffer = io.StringIO()
    with matplotlib.rc_context({**SETTINGS, "svg.hashsalt": name}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # the fonts of the reader draw it
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    content = buffer.getvalue()
    content = re.sub(r"(fill|stroke): #000000", r"\1: currentColor", content)
    content = re.sub(r"(<text[^>]*style=\")(?![^\"]*fill:)", r"\1fill: currentColor; ", content)
    content = re.sub(r"(<svg\b[^>]*>)", lambda match: match[1] + STYLE, content, count=1)
    return content.encode()


def svg_width(content: bytes) -> int:
    """Width of a figure on a page, in pixels: a figure of two panels has the width of the text."""
    found = re.search(rb'<svg\b[^>]*\bwidth="([\d.]+)pt"', content)
    return round(1.4 * float(found[1])) if found else 1000

"""The tables of the paper that concern MultiBit and its methods, by name.

The paper's columns of compared methods are left out.
"""

from __future__ import annotations

from multibit.paper.label_tables import LABEL_TABLES
from multibit.paper.model_tables import MODEL_TABLES
from multibit.paper.outcome import Entry, Outcome, printed_texts, reproduce

__all__ = ["TABLES", "Entry", "Outcome", "printed_texts", "reproduce"]

TABLES: dict[str, Entry] = {entry.name: entry for entry in (*LABEL_TABLES, *MODEL_TABLES)}
"""Name -> table, in the order of measuring: labels only first."""

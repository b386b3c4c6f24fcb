"""Tables of the methods and the relation teachers that can be trained."""

from __future__ import annotations

from multibit.config import Config
from multibit.relation import TEACHERS
from multibit.table import Table

LENGTHS_IN_WORDS = {"nested": "nested", "several": "a code for each", "one": "a model for each"}
INPUTS_IN_WORDS = {"pooled": "one vector", "tokens": "tokens"}


def methods_tables() -> list[Table]:
    """The methods and the relation teachers that can be trained."""
    from multibit.hashing.methods import METHODS  # imports torch, which the other tables do not need

    variants = [method for method in METHODS.values() if isinstance(method.defaults, Config)]
    compared = [method for method in METHODS.values() if method not in variants]
    own = tuple(
        (m.name, m.title, m.meaning, ", ".join(f"{name} {value}" for name, value in m.settings.items()))
        for m in variants
    )
    others = tuple(
        (m.name, m.title, m.venue or "classical", LENGTHS_IN_WORDS[m.lengths], INPUTS_IN_WORDS[m.inputs], m.differs)
        for m in compared
    )
    teachers = tuple((name, (teacher.__doc__ or "").splitlines()[0]) for name, teacher in TEACHERS.items())
    heading = ("method", "name in the paper", "venue", "code lengths", "reads", "what differs from the published code")
    return [
        Table("MultiBit and its variants", ("method", "name in the paper", "meaning", "settings"), own),
        Table("Compared methods", heading, others),
        Table("Relation teachers", ("teacher", "g*"), teachers),
    ]

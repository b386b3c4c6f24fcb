"""labels -> label graph -> relation teacher: what the codes have to learn."""

from multibit.relation.graph import LabelGraph
from multibit.relation.teacher import RelationTeacher

__all__ = ["LabelGraph", "RelationTeacher"]

"""Relation teachers: relevance scores from labels, which the codes learn."""

from multibit.relation.graph import LabelGraph
from multibit.relation.teacher import RelationTeacher
from multibit.relation.teachers import TEACHERS, load_teacher, teacher_class

__all__ = ["TEACHERS", "LabelGraph", "RelationTeacher", "load_teacher", "teacher_class"]

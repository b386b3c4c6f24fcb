"""Codes and labels -> per-query values of the retrieval metrics -> an evaluation of both directions at all lengths."""

from multibit.evaluation.metrics import (
    average_precision,
    mean_average_precision,
    precision_at,
    precision_recall,
)
from multibit.evaluation.protocol import CodedPairs, Evaluation, evaluate

__all__ = [
    "CodedPairs",
    "Evaluation",
    "average_precision",
    "evaluate",
    "mean_average_precision",
    "precision_at",
    "precision_recall",
]

"""Evaluations and searches -> tables and pictures that people read."""

from multibit.report.comparison import Comparison, compare
from multibit.report.sheet import Search, contact_sheet
from multibit.report.study import report_tables
from multibit.report.tables import Table, accuracy_table, hits_table
from multibit.report.values import load_evaluations, save_evaluations

__all__ = [
    "Comparison",
    "Search",
    "Table",
    "accuracy_table",
    "compare",
    "contact_sheet",
    "hits_table",
    "load_evaluations",
    "report_tables",
    "save_evaluations",
]

"""Evaluations and searches -> tables and pictures that people read."""

from multibit.report.sheet import Search, contact_sheet
from multibit.report.study import comparison_table, report_tables
from multibit.report.tables import Table, accuracy_table, hits_table

__all__ = ["Search", "Table", "accuracy_table", "comparison_table", "contact_sheet", "hits_table", "report_tables"]

"""The index: exact search for the nearest items at any prefix length."""

from multibit.search.batches import QueryFile, write_hits
from multibit.search.index import Index
from multibit.search.results import Hit, SearchResult

__all__ = ["Hit", "Index", "QueryFile", "SearchResult", "write_hits"]

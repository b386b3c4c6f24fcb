"""The index: exact search for the nearest items at any prefix length."""

from multibit.search.index import Hit, Index, SearchResult

__all__ = ["Hit", "Index", "SearchResult"]

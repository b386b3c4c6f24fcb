"""Codes and labels -> per-query values of the retrieval metrics, both directions, all lengths."""

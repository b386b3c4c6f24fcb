"""A vector store for LangChain: binary codes of texts, or images found by text, in an index of multibit."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multibit.errors import ConfigError, DataError, MissingExtraError
from multibit.integrations.texts import TEXT, Texts
from multibit.queries import encode_text, encode_texts
from multibit.search import Hit, Index
from multibit.search.conditions import Where

try:
    from langchain_core.documents import Document
    from langchain_core.embeddings import Embeddings
    from langchain_core.structured_query import Comparator, Comparison, Operation, Operator, StructuredQuery, Visitor
    from langchain_core.vectorstores import VectorStore
except ImportError:
    raise MissingExtraError("langchain_core", extra="langchain", need="The vector store for LangChain") from None

if TYPE_CHECKING:
    from multibit.pipeline import AnyRun


class MultibitEmbeddings(Embeddings):
    """The relaxed codes of texts, whose signs are the bits.

    Args:
        run: a run, or the path of a run or a portable model.
    """

    def __init__(self, run: AnyRun | Path | str) -> None:
        self.run = Texts(run).run

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Codes of texts to store."""
        return [list(map(float, row)) for row in encode_texts(self.run, texts)]

    def embed_query(self, text: str) -> list[float]:
        """Code of a text to search by."""
        return list(map(float, encode_text(self.run, text)[0]))


class MultibitVectorStore(VectorStore):
    """Documents in an index of multibit. The score of a hit is its Hamming distance: smaller is nearer.

    With an index of images, the documents are the images, with their texts as content; then none can be added.

    Args:
        run, index, bits: as for `multibit.integrations.texts.Texts`.

    Example:
        >>> store = MultibitVectorStore.from_texts(["a red flower", "a dog"], run="run")  # doctest: +SKIP
        >>> store.similarity_search("roses", k=1, bits=32, filter={"year": {"$gte": 2001}})  # doctest: +SKIP
    """

    def __init__(self, run: AnyRun | Path | str, index: Index | None = None, bits: int | None = None) -> None:
        self._texts = Texts(run, index, bits)

    @property
    def index(self) -> Index:
        """The index."""
        return self._texts.index

    @property
    def embeddings(self) -> Embeddings:
        """The encoder."""
        return MultibitEmbeddings(self._texts.run)

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings | None = None,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        run: AnyRun | Path | str | None = None,
        index: Index | None = None,
        bits: int | None = None,
        **kwargs: Any,
    ) -> MultibitVectorStore:
        """A store with some texts.

        Args:
            texts, metadatas, ids: as for `add_texts`. embedding: `MultibitEmbeddings`, in place of `run`.
            run, index, bits: as for the class.

        Raises:
            ConfigError: neither `run` nor `MultibitEmbeddings`, or an unknown argument.
        """
        _refuse(kwargs)
        if run is None and isinstance(embedding, MultibitEmbeddings):
            run = embedding.run
        if run is None:
            raise ConfigError("needs the run that encodes the texts.", option="run")
        store = cls(run, index, bits)
        store.add_texts(texts, metadatas, ids=ids)
        return store

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Add texts, and return their ids; those with an id that is already there are replaced."""
        _refuse(kwargs)
        given = list(texts)
        if metadatas is not None and len(metadatas) != len(given):
            raise DataError(f"{len(metadatas)} for {len(given)} texts.", field="metadatas")
        names = [name or str(uuid.uuid4()) for name in ids or [""] * len(given)]
        self._texts.put(names, given, metadatas or [{}] * len(given))
        return names

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> bool:
        """Remove documents; unknown ids are ignored."""
        _refuse(kwargs)
        self._texts.remove(ids or [])
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Documents by id; unknown ids are ignored."""
        return [_document(hit) for hit in self._texts.get(ids)]

    def similarity_search(
        self, query: str, k: int = 4, filter: Where | None = None, bits: int | None = None, **kwargs: Any
    ) -> list[Document]:
        """The k nearest documents.

        Args:
            query: a text. k: number of hits. filter: on the metadata, see `multibit.search.filters`.
            bits: code length; that of the store when None.

        Raises:
            ConfigError: an unknown argument; so do all searches.
        """
        return [document for document, _ in self.similarity_search_with_score(query, k, filter, bits, **kwargs)]

    def similarity_search_with_score(
        self, query: str, k: int = 4, filter: Where | None = None, bits: int | None = None, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """The k nearest documents with their Hamming distances; the arguments are those of `similarity_search`."""
        _refuse(kwargs)
        return [(_document(hit), float(hit.distance or 0)) for hit in self._texts.search(query, k, bits, filter)]

    def similarity_search_by_vector(
        self,
        embedding: list[float],
        k: int = 4,
        filter: Where | None = None,
        bits: int | None = None,
        **kwargs: Any,
    ) -> list[Document]:
        """The k nearest documents of a relaxed code, as `MultibitEmbeddings` makes it."""
        _refuse(kwargs)
        return [_document(hit) for hit in self._texts.search(embedding, k, bits, filter)]

    def max_marginal_relevance_search(
        self,
        query: str,
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        filter: Where | None = None,
        bits: int | None = None,
        **kwargs: Any,
    ) -> list[Document]:
        """K of the `fetch_k` nearest documents, chosen to be near the query and different from each other.

        Args:
            query, filter, bits: as for `similarity_search`. k: number of documents.
            fetch_k: nearest documents to choose from, at least k.
            lambda_mult: 1 for the nearest documents, 0 for the most different ones, by the share of equal bits.
        """
        _refuse(kwargs)
        return [_document(hit) for hit in self._texts.diverse(query, k, fetch_k, lambda_mult, bits, filter)]

    def max_marginal_relevance_search_by_vector(
        self,
        embedding: list[float],
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        filter: Where | None = None,
        bits: int | None = None,
        **kwargs: Any,
    ) -> list[Document]:
        """`max_marginal_relevance_search` of a relaxed code, as `MultibitEmbeddings` makes it."""
        _refuse(kwargs)
        return [_document(hit) for hit in self._texts.diverse(embedding, k, fetch_k, lambda_mult, bits, filter)]

    def _similarity_search_with_relevance_scores(
        self, query: str, k: int = 4, filter: Where | None = None, bits: int | None = None, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        _refuse(kwargs)
        return [(_document(hit), self._texts.similarity(hit)) for hit in self._texts.search(query, k, bits, filter)]

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        return lambda distance: 1 - distance / self._texts.bits


class MultibitTranslator(Visitor):
    """Filters of LangChain's structured queries -> the grammar of the index."""

    allowed_comparators = tuple(Comparator(name) for name in ("eq", "ne", "gt", "gte", "lt", "lte", "in", "nin"))
    allowed_operators = (Operator.AND, Operator.OR, Operator.NOT)

    def visit_comparison(self, comparison: Comparison) -> dict[str, Any]:
        """One condition."""
        self._validate_func(comparison.comparator)
        return {comparison.attribute: {f"${comparison.comparator.value}": comparison.value}}

    def visit_operation(self, operation: Operation) -> dict[str, Any]:
        """Conditions together."""
        self._validate_func(operation.operator)
        inner = [argument.accept(self) for argument in operation.arguments]
        return (
            {"$not": {"$or": inner}} if operation.operator is Operator.NOT else {f"${operation.operator.value}": inner}
        )

    def visit_structured_query(self, structured_query: StructuredQuery) -> tuple[str, dict[str, Any]]:
        """A query: its text, and the arguments of `similarity_search`."""
        found = structured_query.filter
        return structured_query.query, {} if found is None else {"filter": found.accept(self)}


def _refuse(unknown: Mapping[str, Any]) -> None:
    """Refuse keyword arguments that the base class would accept and nothing would read.

    Raises:
        ConfigError: naming them.
    """
    if unknown:
        raise ConfigError(
            f"unknown {'argument' if len(unknown) == 1 else 'arguments'} {', '.join(unknown)}.",
            option=next(iter(unknown)),
            hint="The searches take k, filter and bits; max_marginal_relevance_search also fetch_k and lambda_mult.",
        )


def _document(hit: Hit) -> Document:
    metadata = dict(hit.payload)
    return Document(id=str(hit.id), page_content=metadata.pop(TEXT, ""), metadata=metadata)

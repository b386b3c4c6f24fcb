"""A vector store for LlamaIndex: binary codes of texts, or images found by text, in an index of multibit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from multibit.errors import ConfigError, DataError, MissingExtraError
from multibit.integrations.texts import TEXT, Texts
from multibit.queries import encode_text, encode_texts
from multibit.search import Hit, Index
from multibit.search.conditions import Where

try:
    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.bridge.pydantic import PrivateAttr
    from llama_index.core.schema import BaseNode, MetadataMode, TextNode
    from llama_index.core.vector_stores.types import (
        BasePydanticVectorStore,
        FilterCondition,
        FilterOperator,
        MetadataFilters,
        VectorStoreQuery,
        VectorStoreQueryMode,
        VectorStoreQueryResult,
    )
    from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict
except ImportError:
    raise MissingExtraError("llama_index.core", extra="llama-index", need="The vector store for LlamaIndex") from None

if TYPE_CHECKING:
    from multibit.pipeline import AnyRun

REF = "ref_doc_id"
OPERATORS = {
    FilterOperator.EQ: "$eq", FilterOperator.NE: "$ne", FilterOperator.GT: "$gt", FilterOperator.GTE: "$gte",
    FilterOperator.LT: "$lt", FilterOperator.LTE: "$lte", FilterOperator.IN: "$in", FilterOperator.NIN: "$nin",
    FilterOperator.ANY: "$in", FilterOperator.ALL: "$all",
}  # fmt: skip


class MultibitEmbedding(BaseEmbedding):
    """The relaxed codes of texts, whose signs are the bits: the `embed_model` of a `VectorStoreIndex`.

    Args:
        run: a run, or the path of a run or a portable model.
    """

    _run: Any = PrivateAttr()

    def __init__(self, run: AnyRun | Path | str, **options: Any) -> None:
        super().__init__(**options)
        self._run = Texts(run).run
        self.model_name = f"multibit {self._run.record.model}"

    def _get_query_embedding(self, query: str) -> list[float]:
        return list(map(float, encode_text(self._run, query)[0]))

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return [list(map(float, row)) for row in encode_texts(self._run, texts)]


class MultibitVectorStore(BasePydanticVectorStore):
    """Nodes in an index of multibit. The similarity of a hit is its share of equal bits.

    With an index of images, the nodes are the images, with their texts; then none can be added.

    Args:
        run, index, bits: as for `multibit.integrations.texts.Texts`.

    Example:
        >>> store = MultibitVectorStore("run", bits=32)  # doctest: +SKIP
        >>> context = StorageContext.from_defaults(vector_store=store)  # doctest: +SKIP
        >>> VectorStoreIndex(nodes, storage_context=context, embed_model=MultibitEmbedding("run"))  # doctest: +SKIP
    """

    stores_text: bool = True
    is_embedding_query: bool = True
    _texts: Texts = PrivateAttr()

    def __init__(self, run: AnyRun | Path | str, index: Index | None = None, bits: int | None = None) -> None:
        super().__init__(stores_text=True)
        self._texts = Texts(run, index, bits)

    @classmethod
    def class_name(cls) -> str:
        """Name of the class in stored indices."""
        return "MultibitVectorStore"

    @property
    def client(self) -> Index:
        """The index."""
        return self._texts.index

    def add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        """Add nodes, and return their ids; those with an id that is already there are replaced.

        Their embeddings are those of `MultibitEmbedding`; nodes without one are encoded here, with the metadata that
        the library gives to an `embed_model`.
        """
        missing = [node for node in nodes if node.embedding is None]
        texts = [node.get_content(metadata_mode=MetadataMode.EMBED) for node in missing]
        encoded = iter(encode_texts(self._texts.run, texts))
        relaxed = [next(encoded) if node.embedding is None else self._checked(node.embedding) for node in nodes]
        ids = [node.node_id for node in nodes]
        contents = [node.get_content(metadata_mode=MetadataMode.NONE) for node in nodes]
        metadata = [node_to_metadata_dict(node, remove_text=True) for node in nodes]
        self._texts.put(ids, contents, metadata, np.array(relaxed, np.float32))
        return ids

    def delete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """Remove the nodes of a document."""
        if REF in self.client.fields:
            self._texts.remove([str(hit.id) for hit in self._texts.get(where={REF: ref_doc_id})])

    def delete_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, **delete_kwargs: Any
    ) -> None:
        """Remove nodes by id, by a filter, or by both."""
        self._texts.remove([str(hit.id) for hit in self._texts.get(node_ids, where_of(filters))])

    def get_nodes(self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None) -> list[BaseNode]:
        """Nodes by id, by a filter, or by both; unknown ids are ignored."""
        return [_node(hit) for hit in self._texts.get(node_ids, where_of(filters))]

    def clear(self) -> None:
        """Remove all nodes."""
        self._texts.remove([str(hit.id) for hit in self._texts.get()])

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """The nearest nodes of a query: its embedding by `MultibitEmbedding`, else its text.

        Args:
            query: in the default mode. kwargs: `bits`, the code length; that of the store when None.

        Raises:
            ConfigError: another mode, or a filter that the index does not have. DataError: an embedding of another
                length, or neither embedding nor text.
        """
        if query.mode is not VectorStoreQueryMode.DEFAULT:
            raise ConfigError(f"{query.mode.value} is not supported; only default is.", option="mode")
        asked = query.query_str if query.query_embedding is None else self._checked(query.query_embedding)
        if asked is None:
            raise DataError("needs an embedding or a text.", option="query")
        conditions = [where for where in (where_of(query.filters), _of_documents(query.doc_ids)) if where]
        where = {"$and": conditions} if conditions else None
        hits = self._texts.search(asked, query.similarity_top_k, kwargs.get("bits"), where, query.node_ids or None)
        return VectorStoreQueryResult(
            nodes=[_node(hit) for hit in hits],
            similarities=[self._texts.similarity(hit) for hit in hits],
            ids=[str(hit.id) for hit in hits],
        )

    def persist(self, persist_path: str, fs: Any = None) -> None:
        """Save the index to a folder of this machine; open it with `Index.open` and give it to a new store."""
        if fs is not None:
            raise ConfigError("an index is saved on this machine only.", option="fs")
        self.client.save(persist_path)

    def _checked(self, embedding: Sequence[float]) -> Sequence[float]:
        bits = self._texts.run.model.bits
        if len(embedding) != bits:
            raise DataError(
                f"{len(embedding)} values, the codes have {bits} bits.",
                option="embed_model",
                hint="Use MultibitEmbedding as the embed_model.",
            )
        return embedding


def where_of(filters: MetadataFilters | None) -> dict[str, Any] | None:
    """Filters of LlamaIndex -> the grammar of the index; None without any.

    Raises:
        ConfigError: an operator that the index does not have.

    Example:
        >>> where_of(MetadataFilters.model_validate({"filters": [{"key": "year", "value": 2001, "operator": ">="}]}))
        {'$and': [{'year': {'$gte': 2001}}]}
    """
    if filters is None or not filters.filters:
        return None
    inner = [
        (where_of(each) or {}) if isinstance(each, MetadataFilters) else _condition(each) for each in filters.filters
    ]
    if filters.condition is FilterCondition.NOT:
        return {"$not": {"$or": inner}}
    return {"$or" if filters.condition is FilterCondition.OR else "$and": inner}


def _condition(filter: Any) -> dict[str, Any]:
    if filter.operator is FilterOperator.IS_EMPTY:
        return {filter.key: None}
    if filter.operator is FilterOperator.CONTAINS:
        return {filter.key: {"$all": [filter.value]}}
    if filter.operator not in OPERATORS:
        raise ConfigError(f"the operator {filter.operator.value} is not one of the index.", option="filters")
    return {filter.key: {OPERATORS[filter.operator]: filter.value}}


def _of_documents(ids: Sequence[str] | None) -> Where | None:
    return {REF: {"$in": list(ids)}} if ids else None


def _node(hit: Hit) -> BaseNode:
    metadata = dict(hit.payload)
    text = metadata.pop(TEXT, "")
    if "_node_content" in metadata:
        return metadata_dict_to_node(metadata, text)
    return TextNode(id_=str(hit.id), text=text, metadata=metadata)

"""The vector store for LlamaIndex: the contract of its base class. The library has no test suite for stores."""

from __future__ import annotations

import asyncio

import pytest

from multibit import Index
from multibit.errors import ConfigError, DataError

pytest.importorskip("llama_index.core")
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores.types import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
)

from multibit.integrations.llama_index import MultibitEmbedding, MultibitVectorStore

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("distinct")]
TEXTS = {"a": "aaaa", "b": "aaab", "c": "zzzz", "d": "zzzy"}


def node(name):
    parent = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id="first" if name in "ab" else "second")}
    metadata = {"year": 2001 + "abcd".index(name), "tags": ["x", name]}
    return TextNode(
        id_=name, text=TEXTS[name], metadata=metadata, relationships=parent, excluded_embed_metadata_keys=list(metadata)
    )


@pytest.fixture
def store(pictured):
    store = MultibitVectorStore(pictured)
    assert store.add([node(name) for name in TEXTS]) == list(TEXTS)
    return store


def asked(store, text="aaaa", k=4, **options):
    return store.query(VectorStoreQuery(query_str=text, similarity_top_k=k, **options))


def chosen(store, *filters, condition=FilterCondition.AND):
    return sorted(asked(store, filters=MetadataFilters(filters=list(filters), condition=condition)).ids)


def test_nodes_come_back_as_they_were(store):
    assert store.get_nodes(["b", "unknown", "a"]) == [node("b"), node("a")]
    assert asked(store, k=1).nodes == [node("a")]
    assert len(store.get_nodes()) == 4


def test_a_query_is_a_search_of_the_index(store, pictured):
    vector = MultibitEmbedding(pictured).get_query_embedding("aaaz")
    for bits in (8, 13, 32):
        result = store.query(VectorStoreQuery(query_embedding=vector, similarity_top_k=3), bits=bits)
        texts = store.query(VectorStoreQuery(query_str="aaaz", similarity_top_k=3), bits=bits)
        hits = store._texts.search("aaaz", 3, bits)
        assert result.ids == texts.ids == [hit.id for hit in hits]
        assert result.similarities == [1 - hit.distance / bits for hit in hits]
    assert asyncio.run(store.aquery(VectorStoreQuery(query_str="aaaz"))).ids == asked(store, "aaaz", 1).ids
    assert asked(MultibitVectorStore(pictured)).ids == []


def test_embeddings_of_nodes_are_used(pictured):
    embedding, store = MultibitEmbedding(pictured), MultibitVectorStore(pictured)
    other = node("a")
    other.embedding = embedding.get_text_embedding("zzzz")
    store.add([other])
    assert asked(store, "zzzz", 1).similarities == [1.0]
    other.embedding = [1.0, 2.0]
    with pytest.raises(DataError) as caught:
        store.add([other])
    assert caught.value.option == "embed_model"


def test_an_index_of_the_library_searches_the_store(pictured):
    store, embedding = MultibitVectorStore(pictured, bits=16), MultibitEmbedding(pictured)
    context = StorageContext.from_defaults(vector_store=store)
    nodes = [node(name) for name in TEXTS]
    index = VectorStoreIndex(nodes, storage_context=context, embed_model=embedding)
    found = index.as_retriever(similarity_top_k=1).retrieve("aaaa")
    assert [(each.node_id, each.score) for each in found] == [("a", 1.0)]
    opened = VectorStoreIndex.from_vector_store(store, embed_model=embedding)
    year = MetadataFilters(filters=[MetadataFilter(key="year", value=2003, operator=FilterOperator.GT)])
    assert [each.node_id for each in opened.as_retriever(filters=year).retrieve("aaaa")] == ["d"]
    index.delete_ref_doc("first")
    assert [each.node_id for each in store.get_nodes()] == ["c", "d"]


@pytest.mark.parametrize(
    ("key", "operator", "value", "expected"),
    [
        ("year", "==", 2002, "b"), ("year", "!=", 2002, "acd"), ("year", ">", 2002, "cd"), ("year", ">=", 2002, "bcd"),
        ("year", "<", 2002, "a"), ("year", "<=", 2002, "ab"), ("year", "in", [2001, 2003], "ac"),
        ("year", "nin", [2001, 2003], "bd"), ("tags", "any", ["a", "b"], "ab"), ("tags", "all", ["a", "x"], "a"),
        ("tags", "contains", "c", "c"), ("tags", "is_empty", None, ""),
    ],
)  # fmt: skip
def test_filters_are_translated(store, key, operator, value, expected):
    condition = MetadataFilter(key=key, operator=FilterOperator(operator), value=value)
    assert "".join(chosen(store, condition)) == expected


def test_filters_are_combined(store):
    first, last = (MetadataFilter(key="year", value=year) for year in (2001, 2004))
    assert chosen(store, first, last) == []
    assert chosen(store, first, last, condition=FilterCondition.OR) == ["a", "d"]
    assert chosen(store, first, last, condition=FilterCondition.NOT) == ["b", "c"]
    inner = MetadataFilters(filters=[first, last], condition=FilterCondition.OR)
    assert chosen(store, inner, MetadataFilter(key="tags", value="x")) == ["a", "d"]
    assert asked(store, doc_ids=["second"]).ids == ["c", "d"] and asked(store, node_ids=["d", "x"]).ids == ["d"]


def test_nodes_are_removed_and_replaced(store):
    store.delete_nodes(filters=MetadataFilters(filters=[MetadataFilter(key="year", value=2001)]))
    store.delete_nodes(["b", "unknown"])
    assert [each.node_id for each in store.get_nodes()] == ["c", "d"]
    changed = TextNode(id_="c", text="mmmm")
    asyncio.run(store.async_add([changed]))
    assert store.get_nodes(["c"]) == [changed]
    store.delete("unknown")
    store.clear()
    assert store.get_nodes() == [] and asked(store).ids == []


def test_a_store_is_saved_and_opened(store, pictured, tmp_path):
    store.persist(str(tmp_path / "text.mbx"))
    opened = MultibitVectorStore(pictured, Index.open(tmp_path / "text.mbx"))
    opened.delete("first")
    assert [each.node_id for each in MultibitVectorStore(pictured, Index.open(tmp_path / "text.mbx")).get_nodes()] == [
        "c",
        "d",
    ]
    with pytest.raises(ConfigError):
        store.persist("x", fs=object())


def test_images_are_nodes_too(pictured):
    store = MultibitVectorStore(pictured, Index.open(pictured.folder / "index" / "image.mbx"))
    (found,) = asked(store, "text 3", 1).nodes
    assert found.text.startswith("text ") and found.metadata["image"].endswith(".png")
    with pytest.raises(ConfigError):
        store.add([node("a")])


def test_what_the_index_does_not_have_is_refused(store):
    for options in ({"mode": VectorStoreQueryMode.MMR}, {"filters": MetadataFilters(filters=[
        MetadataFilter(key="tags", value="x", operator=FilterOperator.TEXT_MATCH)])}):  # fmt: skip
        with pytest.raises(ConfigError):
            asked(store, **options)
    with pytest.raises(DataError):
        store.query(VectorStoreQuery())

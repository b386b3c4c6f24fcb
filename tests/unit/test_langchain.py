"""The vector store for LangChain: its own test suite, and what is special to codes."""

from __future__ import annotations

import asyncio
import shutil

import numpy as np
import pytest

from multibit import Index, Run, build_indices, open_features
from multibit.errors import ConfigError, DataError, MismatchError

pytest.importorskip("langchain_core")
suite = pytest.importorskip("langchain_tests.integration_tests")
from langchain_core.documents import Document  # noqa: E402
from langchain_core.structured_query import Comparator, Comparison, Operation, Operator, StructuredQuery  # noqa: E402

from multibit.integrations.langchain import MultibitEmbeddings, MultibitTranslator, MultibitVectorStore  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("distinct")]
TEXTS = ["aaaa", "aaab", "zzzz", "zzzy"]
YEARS = [{"year": 2001, "tags": ["a"]}, {"year": 2002, "tags": ["a", "b"]}, {"year": 2003}, {"year": 2004}]


class TestStandard(suite.VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self, pictured):
        return MultibitVectorStore(pictured)


@pytest.fixture
def documents(pictured):
    return MultibitVectorStore.from_texts(TEXTS, MultibitEmbeddings(pictured), YEARS, ids=list("abcd"))


def ids(found):
    return [document.id for document in found]


def test_a_search_is_that_of_the_index_at_every_length(documents, pictured):
    from multibit import Codes, encode_text

    for bits in (8, 13, 32):
        found = documents.similarity_search_with_score("aaaz", k=3, bits=bits)
        hits = documents.index.search(Codes.binarize(encode_text(pictured, "aaaz")), 3, bits).hits()
        assert [(document.id, score) for document, score in found] == [(hit.id, hit.distance) for hit in hits]
        assert ids(documents.similarity_search("aaaz", k=3, bits=bits)) == ids(document for document, _ in found)
    vector = documents.embeddings.embed_query("aaaz")
    assert ids(documents.similarity_search_by_vector(vector, k=4)) == ids(documents.similarity_search("aaaz"))
    relevant = documents.similarity_search_with_relevance_scores("aaaz", k=4)
    scores = documents.similarity_search_with_score("aaaz", k=4)
    assert [score for _, score in relevant] == [1 - distance / 32 for _, distance in scores]


def test_documents_come_back_with_their_metadata(documents):
    assert documents.get_by_ids(["b", "unknown"]) == [Document(id="b", page_content="aaab", metadata=YEARS[1])]
    assert ids(documents.get_by_ids(["d", "a"])) == ["d", "a"]


def test_filters(documents):
    assert ids(documents.similarity_search("aaaa", k=4, filter={"year": {"$gte": 2003}})) == ["c", "d"]
    assert documents.as_retriever(search_kwargs={"k": 1, "filter": {"tags": "b"}}).invoke("zzzz")[0].id == "b"
    with pytest.raises(DataError):
        documents.similarity_search("aaaa", filter={"unknown": 1})


def test_structured_filters_are_translated(documents):
    year = Comparison(comparator=Comparator.GT, attribute="year", value=2001)
    tags = Comparison(comparator=Comparator.EQ, attribute="tags", value="b")
    both = Operation(operator=Operator.AND, arguments=[year, Operation(operator=Operator.NOT, arguments=[tags])])
    text, options = MultibitTranslator().visit_structured_query(StructuredQuery(query="aaaa", filter=both))
    assert sorted(ids(documents.similarity_search(text, k=4, **options))) == ["c", "d"]
    unfiltered = MultibitTranslator().visit_structured_query(StructuredQuery(query="aaaa", filter=None))
    assert unfiltered == ("aaaa", {})
    with pytest.raises(ValueError):
        MultibitTranslator().visit_comparison(Comparison(comparator=Comparator.LIKE, attribute="x", value="y"))


def test_a_store_on_the_disk_keeps_its_changes(documents, pictured, tmp_path):
    documents.index.save(tmp_path / "text.mbx")
    opened = MultibitVectorStore(pictured, Index.open(tmp_path / "text.mbx"), bits=16)
    opened.add_texts(["mmmm"], ids=["e"])
    opened.delete(["a", "unknown"])
    assert asyncio.run(opened.adelete(["b"])) is True
    assert sorted(map(str, Index.open(tmp_path / "text.mbx").ids)) == ["c", "d", "e"]
    assert ids(opened.similarity_search("mmmm", k=1)) == ["e"]


def test_images_are_found_by_text_and_cannot_be_added(pictured, tmp_path):
    shutil.copytree(pictured.folder / "index", tmp_path / "index")
    store = MultibitVectorStore(pictured, Index.open(pictured.folder / "index" / "image.mbx"))
    (document,) = store.similarity_search("text 3", k=1)
    assert document.page_content.startswith("text ") and document.metadata["image"].endswith(".png")
    assert document.metadata["image"].startswith(str(pictured.folder.parent))
    with pytest.raises(ConfigError):
        store.add_texts(["a text"])


def test_what_does_not_fit_is_refused(documents, pictured, other_run, split, tmp_path):
    with pytest.raises(DataError) as caught:
        documents.similarity_search("aaaa", bits=33)
    assert caught.value.option == "bits"
    with pytest.raises(DataError):
        MultibitVectorStore(pictured, bits=0)
    with pytest.raises(DataError):
        documents.add_texts(["one"], [{"text": "two"}])
    with pytest.raises(MismatchError):
        MultibitVectorStore(pictured, build_indices(other_run, open_features(other_run))["text"])
    small = {"lengths": (6, 16), "scales": 2, "hidden": 8, "dimension": 8, "epochs": 1, "batch_size": 16}
    features = open_features(other_run)
    with pytest.raises(ConfigError):
        MultibitVectorStore(Run.create(tmp_path / "run", features, split, method="separate", **small))
    with pytest.raises(ConfigError):
        MultibitVectorStore.from_texts(["a"])


def slow_mmr(signs, query, k, fetch, weight):
    """Maximal marginal relevance of signs (n, B), by its definition."""

    def share(a, b):
        return float((a == b).mean())

    left, chosen = sorted(range(len(signs)), key=lambda i: -share(query, signs[i]))[:fetch], []
    while left and len(chosen) < k:
        others = {i: max((share(signs[i], signs[j]) for j in chosen), default=0) for i in left}
        best = max(left, key=lambda i: (weight * share(query, signs[i]) - (1 - weight) * others[i], -left.index(i)))
        chosen.append(best)
        left.remove(best)
    return chosen


@pytest.mark.parametrize("bits", [32, 13])
@pytest.mark.parametrize("weight", [0.0, 0.3, 0.7, 1.0])
def test_diverse_hits_are_those_of_the_definition(pictured, bits, weight):
    texts = [f"{'abcz'[i % 4] * 4}{'mnop'[i // 4] * (i % 3)}" for i in range(16)]
    store = MultibitVectorStore.from_texts(texts, MultibitEmbeddings(pictured), ids=[f"{i:02}" for i in range(16)])
    signs = store.index.codes.to_signs()[:, :bits]
    query = np.where(np.array(store.embeddings.embed_query("aaaz")) >= 0, 1, -1)[:bits]
    expected = [f"{i:02}" for i in slow_mmr(signs, query, 5, 10, weight)]
    options = {"k": 5, "fetch_k": 10, "lambda_mult": weight, "bits": bits}
    assert ids(store.max_marginal_relevance_search("aaaz", **options)) == expected
    vector = store.embeddings.embed_query("aaaz")
    assert ids(store.max_marginal_relevance_search_by_vector(vector, **options)) == expected
    if weight == 1:
        assert expected == ids(store.similarity_search("aaaz", k=5, bits=bits))


def test_a_retriever_of_diverse_hits_takes_filters(documents):
    options = {"k": 2, "fetch_k": 1, "filter": {"year": {"$gte": 2002}}}
    found = documents.as_retriever(search_type="mmr", search_kwargs=options).invoke("aaaa")
    nearest = documents.similarity_search("aaaa", k=1, filter=options["filter"])
    assert len(found) == 2 and found[0] == nearest[0] and set(ids(found)) <= set("bcd")
    assert MultibitVectorStore(documents._texts.run).max_marginal_relevance_search("aaaa") == []


@pytest.mark.parametrize(("options", "error", "option"), [
    ({"lambda_mult": 1.5}, DataError, "lambda_mult"), ({"k": 0}, DataError, "k"), ({"wher": {}}, ConfigError, "wher"),
])  # fmt: skip
def test_wrong_arguments_of_a_diverse_search_are_refused(documents, options, error, option):
    with pytest.raises(error) as caught:
        documents.max_marginal_relevance_search("aaaa", **options)
    assert caught.value.option == option


@pytest.mark.parametrize("search", [
    lambda store: store.similarity_search("aaaa", colour=1), lambda store: store.delete(["a"], colour=1),
    lambda store: store.similarity_search_with_score("aaaa", colour=1),
    lambda store: store.similarity_search_with_relevance_scores("aaaa", colour=1),
    lambda store: store.similarity_search_by_vector([0.0] * 32, colour=1),
    lambda store: store.add_texts(["b"], colour=1),
    lambda store: store.as_retriever(search_kwargs={"colour": 1}).invoke("aaaa"),
])  # fmt: skip
def test_unknown_arguments_are_refused_by_name(documents, search):
    with pytest.raises(ConfigError) as caught:
        search(documents)
    assert caught.value.option == "colour"
    assert len(documents.get_by_ids(list("abcd"))) == 4

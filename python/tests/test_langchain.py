"""The vector store for LangChain, judged by the tests that langchain-tests has for such classes."""

from __future__ import annotations

import asyncio
import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpann

pytest.importorskip("langchain_tests", reason="needs langchain-tests")

from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings
from langchain_tests.integration_tests import VectorStoreIntegrationTests

from warpann.langchain import WarpannVectorStore

# Their own projects set `asyncio_mode`.
for method in vars(VectorStoreIntegrationTests).values():
    if inspect.iscoroutinefunction(method):
        pytest.mark.asyncio(method)


def new_flat(embedding: Embeddings) -> WarpannVectorStore:
    return WarpannVectorStore(embedding, device="cpu")


def new_graph(embedding: Embeddings) -> WarpannVectorStore:
    return WarpannVectorStore(embedding, warpann.GraphIndex(6, metric="l2", device="cpu"))


class TestStandard(VectorStoreIntegrationTests):
    @pytest.fixture(params=[new_flat, new_graph])
    def vectorstore(self, request: Any) -> WarpannVectorStore:
        return request.param(self.get_embeddings())


EMBEDDING = DeterministicFakeEmbedding(size=16)
TEXTS = [f"text {number}" for number in range(50)]


def store(**settings: Any) -> WarpannVectorStore:
    metadatas = [{"number": number, "odd": number % 2 == 1} for number in range(50)]
    ids = [str(number) for number in range(50)]
    return WarpannVectorStore.from_texts(TEXTS, EMBEDDING, metadatas, ids=ids, device="cpu", **settings)


@pytest.mark.parametrize("metric", ["cosine", "ip", "l2"])
def test_scores_and_filters(metric: str) -> None:
    ours = store(metric=metric)
    vectors = np.array(EMBEDDING.embed_documents(TEXTS), np.float32)
    query = np.array(EMBEDDING.embed_query("text 7"), np.float32)
    scores = {
        "cosine": vectors @ query / np.linalg.norm(vectors, axis=1) / np.linalg.norm(query),
        "ip": vectors @ query,
        "l2": ((vectors - query) ** 2).sum(axis=1),
    }[metric]
    for filter, accepted in [
        (None, range(50)),
        ({"odd": True}, range(1, 50, 2)),
        ({"odd": False, "number": 4}, [4]),
        (lambda document: document.metadata["number"] < 3, range(3)),
        ({"number": None}, []),
    ]:
        ranked = sorted(accepted, key=lambda row: scores[row], reverse=metric != "l2")[:5]
        found = ours.similarity_search_with_score("text 7", 5, filter=filter)
        assert [document.id for document, _ in found] == [str(row) for row in ranked]
        np.testing.assert_allclose([score for _, score in found], scores[list(ranked)], rtol=1e-5)
        assert asyncio.run(ours.asimilarity_search_with_score("text 7", 5, filter=filter)) == found
    if metric != "ip":
        relevant = ours.similarity_search_with_relevance_scores("text 7", 5)
        assert relevant[0][1] == pytest.approx(1) and all(0 <= score <= 1 for _, score in relevant)
    retriever = ours.as_retriever(search_type="mmr", search_kwargs={"k": 3, "fetch_k": 10})
    assert len(retriever.invoke("text 7")) == 3


def test_files(tmp_path: Path) -> None:
    ours = store()
    ours.delete(["3", "nothing"])
    ours.add_texts(["another"], [{"number": 99}], ids=["5"])
    ours.save_local(tmp_path / "store")
    again = WarpannVectorStore.load_local(tmp_path / "store", EMBEDDING, device="cpu")
    assert len(again) == 49 and again.get_by_ids(["3"]) == []
    assert again.similarity_search_with_score("another", 3) == ours.similarity_search_with_score("another", 3)
    assert again.similarity_search("another", 1)[0].metadata == {"number": 99}
    # New documents get numbers that no other has.
    again.add_texts(["more"], ids=["more"])
    assert again.similarity_search("more", 1)[0].id == "more" and len(again) == 50
    # Documents of another store, damaged ones, and metadata that is not for JSON.
    again.save_local(tmp_path / "other")
    (tmp_path / "store" / "documents.json").write_bytes((tmp_path / "other" / "documents.json").read_bytes())
    with pytest.raises(ValueError, match="documents of the index"):
        WarpannVectorStore.load_local(tmp_path / "store", EMBEDDING)
    for damaged in ("", "[]", '{"metric": "l2"}', json.dumps({"metric": "l2", "next": 0, "documents": [1]})):
        (tmp_path / "store" / "documents.json").write_text(damaged)
        with pytest.raises(ValueError):
            WarpannVectorStore.load_local(tmp_path / "store", EMBEDDING)
    again.add_texts(["set"], [{"set": {1, 2}}])
    before = (tmp_path / "other" / "documents.json").read_bytes()
    with pytest.raises(TypeError):
        again.save_local(tmp_path / "other")
    assert (tmp_path / "other" / "documents.json").read_bytes() == before
    empty = WarpannVectorStore(EMBEDDING, metric="ip")
    empty.save_local(tmp_path / "other")
    assert len(WarpannVectorStore.load_local(tmp_path / "other", EMBEDDING)) == 0


def test_changes_that_fail_leave_the_store_as_it_was() -> None:
    untrained = WarpannVectorStore(EMBEDDING, warpann.IvfIndex(16, 2, device="cpu"))
    with pytest.raises(warpann.errors.NotTrained):
        untrained.add_texts(["a"])
    ours = store()
    ours._embedding = DeterministicFakeEmbedding(size=3)
    with pytest.raises(warpann.errors.WrongDimension):
        ours.add_texts(["a", "b"], ids=["1", "new"])
    for metadatas, ids in (([{}], None), (None, ["1"])):
        with pytest.raises(ValueError):
            ours.add_texts(["a", "b"], metadatas, ids=ids)
    assert len(untrained) == 0 and len(ours) == 50
    assert ours.get_by_ids(["1", "new"]) == [Document(id="1", page_content="text 1", metadata={"number": 1, "odd": True})]
    with pytest.raises(ValueError, match="50 vectors"):
        WarpannVectorStore(EMBEDDING, ours.index)


def test_what_a_caller_changes_is_a_copy_and_the_last_of_equal_ids_stays() -> None:
    ours = store()
    ours.get_by_ids(["1"])[0].metadata["number"] = -1
    ours.similarity_search("text 1", 1)[0].metadata.clear()
    assert ours.get_by_ids(["1"])[0].metadata["number"] == 1
    assert ours.add_texts(["x", "y", "z"], ids=["a", "b", "a"]) == ["a", "b", "a"]
    assert [document.page_content for document in ours.get_by_ids(["a", "b"])] == ["z", "y"] and len(ours) == 52
    assert ours.delete() and len(ours) == 0 and ours.similarity_search("x") == []

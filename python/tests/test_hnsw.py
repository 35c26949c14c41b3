"""HNSW files: those that FAISS and hnswlib search, and those that they write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpann
from oracles import oracle
from warpann import errors

METRICS = ["l2", "ip", "cosine"]
DIM, K, BEAM = 24, 10, 64


def clusters(rows: int, seed: int) -> Any:
    """Vectors around 40 centres, which no near neighbours connect."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(1).normal(size=(40, DIM)) * 10
    return (centres[rng.integers(0, 40, rows)] + rng.normal(size=(rows, DIM))).astype(np.float32)


BASE, QUERIES = clusters(6_000, 2), clusters(300, 3)
IDS = np.random.default_rng(4).permutation(20_000)[:6_000]


def units(vectors: Any) -> Any:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def walking(metric: str) -> Any:
    index = warpann.GraphIndex(DIM, metric=metric, exact_ratio=0, beam=BEAM, device="cpu")
    index.add(BASE, IDS)
    return index


def recall(metric: str, found: Any) -> float:
    exact = warpann.FlatIndex(DIM, metric=metric, device="cpu")
    exact.add(BASE, IDS)
    return warpann.recall(np.asarray(found, np.int64), exact.search(QUERIES, K).ids)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("format", ["faiss", "hnswlib"])
def test_files_come_back(metric: str, format: str, tmp_path: Path) -> None:
    index = walking(metric)
    index.remove(IDS[:100])
    path = tmp_path / "graph"
    index.save_hnsw(path, format)
    again = warpann.GraphIndex.load_hnsw(path, metric=metric, exact_ratio=0, device="cpu")
    assert (again.ids() == index.ids()).all() and (again.edges() == index.edges()).all()
    assert (again.dtype, again.metric, again.degree) == ("f32", metric, 32)
    expected = units(BASE) if metric == "cosine" else BASE
    np.testing.assert_allclose(again.reconstruct(IDS[100:]), expected[100:], rtol=1e-6)


def test_arguments_and_files_that_do_not_fit(tmp_path: Path) -> None:
    index = warpann.GraphIndex(3, device="cpu")
    index.add(np.eye(3, dtype=np.float32))
    path = tmp_path / "graph"
    with pytest.raises(errors.UnknownName) as unknown:
        index.save_hnsw(path, "annoy")
    assert unknown.value.known == ("faiss", "hnswlib")
    index.save_hnsw(path, "hnswlib")
    with pytest.raises(errors.WrongType):
        warpann.GraphIndex.load_hnsw(path)
    assert len(warpann.GraphIndex.load_hnsw(path, metric="ip")) == 3
    index.save_hnsw(path, "faiss")
    assert warpann.GraphIndex.load_hnsw(path).metric == "l2"
    with pytest.raises(errors.Mismatch):
        warpann.GraphIndex.load_hnsw(path, metric="cosine")
    whole = path.read_bytes()
    for damaged in (b"", whole[:-1], whole + b"\0", index.to_bytes()):
        path.write_bytes(damaged)
        with pytest.raises(errors.BadFile):
            warpann.GraphIndex.load_hnsw(path, metric="l2")


class TestFaiss:
    faiss: Any

    @pytest.fixture(autouse=True)
    def _faiss(self) -> None:
        self.faiss = oracle("faiss")

    def queries(self, metric: str) -> Any:
        return units(QUERIES) if metric == "cosine" else QUERIES

    @pytest.mark.parametrize("metric", METRICS)
    def test_it_searches_ours(self, metric: str, tmp_path: Path) -> None:
        index = walking(metric)
        index.save_hnsw(tmp_path / "graph", "faiss")
        theirs = self.faiss.read_index(str(tmp_path / "graph"))
        hnsw = self.faiss.downcast_index(theirs.index).hnsw
        assert (theirs.ntotal, theirs.d, hnsw.efSearch) == (6_000, DIM, BEAM)
        distances, ids = theirs.search(self.queries(metric), K)
        ours = index.search(QUERIES, K)
        assert recall(metric, ids) >= recall(metric, ours.ids) - 0.01
        same = ids == ours.ids
        np.testing.assert_allclose(distances[same], ours.distances[same], rtol=1e-4)
        # Vectors that FAISS adds to the file's graph are found there.
        more = clusters(500, 7)
        if metric == "cosine":
            more = units(more)
        theirs.add_with_ids(more, np.arange(50_000, 50_500))
        if metric != "ip":
            assert (theirs.search(more, 1)[1][:, 0] == np.arange(50_000, 50_500)).mean() > 0.98

    @pytest.mark.parametrize("metric", METRICS)
    def test_we_search_its_files(self, metric: str, tmp_path: Path) -> None:
        faiss = self.faiss
        inner = faiss.IndexHNSWFlat(DIM, 16, faiss.METRIC_L2 if metric == "l2" else faiss.METRIC_INNER_PRODUCT)
        inner.hnsw.efSearch = BEAM
        theirs = faiss.IndexIDMap2(inner)
        theirs.add_with_ids(units(BASE) if metric == "cosine" else BASE, IDS)
        faiss.write_index(theirs, str(tmp_path / "graph"))
        index = warpann.GraphIndex.load_hnsw(tmp_path / "graph", metric=metric, exact_ratio=0, device="cpu")
        assert (index.beam, index.degree, len(index)) == (BEAM, 32, 6_000)
        found = theirs.search(self.queries(metric), K)[1]
        assert recall(metric, index.search(QUERIES, K).ids) >= recall(metric, found) - 0.01

    @pytest.mark.parametrize("count", [0, 1, 2, 33, 34, 300])
    def test_small_indexes(self, count: int, tmp_path: Path) -> None:
        index = warpann.GraphIndex(DIM, device="cpu")
        index.add(BASE[:count])
        index.save_hnsw(tmp_path / "graph", "faiss")
        theirs = self.faiss.read_index(str(tmp_path / "graph"))
        assert theirs.ntotal == count
        if count > 0:
            self.faiss.downcast_index(theirs).hnsw.efSearch = count
            assert (theirs.search(BASE[:count], 1)[1][:, 0] == np.arange(count)).all()


class TestHnswlib:
    hnswlib: Any

    @pytest.fixture(autouse=True)
    def _hnswlib(self) -> None:
        self.hnswlib = oracle("hnswlib")

    @pytest.mark.parametrize("metric", METRICS)
    def test_it_searches_ours(self, metric: str, tmp_path: Path) -> None:
        index = walking(metric)
        index.save_hnsw(tmp_path / "graph", "hnswlib")
        theirs = self.hnswlib.Index(metric, DIM)
        theirs.load_index(str(tmp_path / "graph"), max_elements=7_000)
        theirs.set_ef(BEAM)
        labels, distances = theirs.knn_query(QUERIES, K)
        ours = index.search(QUERIES, K)
        assert recall(metric, labels) >= recall(metric, ours.ids) - 0.01
        same = labels == ours.ids
        expected = ours.distances if metric == "l2" else 1 - ours.distances
        np.testing.assert_allclose(distances[same], expected[same], rtol=1e-4, atol=1e-4)
        more = clusters(500, 7)
        theirs.add_items(more, np.arange(50_000, 50_500))
        if metric != "ip":
            assert (theirs.knn_query(more, 1)[0][:, 0] == np.arange(50_000, 50_500)).mean() > 0.98

    @pytest.mark.parametrize("metric", METRICS)
    def test_we_search_its_files(self, metric: str, tmp_path: Path) -> None:
        theirs = self.hnswlib.Index(metric, DIM)
        theirs.init_index(7_000, M=16)
        theirs.add_items(BASE, IDS)
        theirs.set_ef(BEAM)
        found = theirs.knn_query(QUERIES, K)[0]
        theirs.save_index(str(tmp_path / "graph"))
        index = warpann.GraphIndex.load_hnsw(tmp_path / "graph", metric=metric, exact_ratio=0, device="cpu")
        assert recall(metric, index.search(QUERIES, K, beam=BEAM).ids) >= recall(metric, found) - 0.01
        for label in IDS[:50]:
            theirs.mark_deleted(label)
        theirs.save_index(str(tmp_path / "graph"))
        index = warpann.GraphIndex.load_hnsw(tmp_path / "graph", metric=metric, device="cpu")
        assert len(index) == 5_950 and not set(IDS[:50].tolist()) & set(index.ids().tolist())

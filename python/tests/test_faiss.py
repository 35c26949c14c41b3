"""Inverted files and bits of FAISS: those that it searches, and those that it writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpann
from oracles import oracle
from warpann import errors

METRICS = ["l2", "ip", "cosine"]
ENCODINGS = ["flat", "pq:6x8", "pq:6x5", "opq:8x6", "sq8", "f16"]
# Codes under cosine do not map.
BOTH = [(metric, encoding) for metric in METRICS for encoding in ENCODINGS if metric != "cosine" or encoding == "flat"]
DIM, K, LISTS, PROBES = 24, 10, 16, 4


def clusters(rows: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(1).normal(size=(60, DIM)) * 2
    return (centres[rng.integers(0, 60, rows)] + rng.normal(size=(rows, DIM))).astype(np.float32)


BASE, QUERIES = clusters(3_000, 2), clusters(200, 3)
IDS = np.random.default_rng(4).permutation(20_000)[: len(BASE)]


def units(vectors: Any) -> Any:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def made(metric: str, encoding: str) -> Any:
    index = warpann.IvfIndex(DIM, LISTS, metric=metric, encoding=encoding, device="cpu", iterations=5)
    index.train(BASE)
    index.add(BASE, IDS)
    index.probes = PROBES
    return index


def recall(metric: str, found: Any) -> float:
    exact = warpann.FlatIndex(DIM, metric=metric, device="cpu")
    exact.add(BASE, IDS)
    return warpann.recall(np.asarray(found, np.int64), exact.search(QUERIES, K).ids)


@pytest.mark.parametrize("metric, encoding", BOTH)
def test_files_come_back(metric: str, encoding: str, tmp_path: Path) -> None:
    index = made(metric, encoding)
    path = tmp_path / "lists"
    index.remove(IDS[:100])
    index.save_faiss(path)
    again = warpann.IvfIndex.load_faiss(path, metric=metric, device="cpu")
    assert (again.ids() == index.ids()).all() and (again.centroids == index.centroids).all()
    assert (again.lists, again.probes, again.encoding, again.metric, again.dtype) == (LISTS, PROBES, encoding, metric, "f32")
    same = index.search(QUERIES, K).ids == again.search(QUERIES, K).ids
    # Ranges of scalar codes are rounded, and so are vectors that are divided by their norms.
    assert same.mean() > 0.999 if encoding == "sq8" or metric == "cosine" else same.all()


def test_what_does_not_map(tmp_path: Path) -> None:
    for encoding in ENCODINGS[1:]:
        with pytest.raises(errors.Mismatch):
            made("cosine", encoding).save_faiss(tmp_path / "lists")
    halves = warpann.IvfIndex(DIM, LISTS, encoding="f16", device="cpu", iterations=1)
    halves.train(units(BASE))
    with pytest.raises(errors.OutOfRange):
        halves.save_faiss(tmp_path / "lists")


def test_arguments_and_files_that_do_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "lists"
    index = warpann.IvfIndex(3, 1, device="cpu")
    with pytest.raises(errors.NotTrained):
        index.save_faiss(path)
    index.train(np.eye(3, dtype=np.float32))
    index.add(np.eye(3, dtype=np.float32))
    index.save_faiss(path)
    assert warpann.IvfIndex.load_faiss(path).metric == "l2"
    with pytest.raises(errors.Mismatch):
        warpann.IvfIndex.load_faiss(path, metric="cosine")
    with pytest.raises(errors.UnknownName):
        warpann.IvfIndex.load_faiss(path, metric="l3")
    whole = path.read_bytes()
    for damaged in (b"", whole[:-1], whole + b"\0", index.to_bytes()):
        path.write_bytes(damaged)
        with pytest.raises(errors.BadFile):
            warpann.IvfIndex.load_faiss(path)


class TestFaiss:
    faiss: Any

    @pytest.fixture(autouse=True)
    def _faiss(self) -> None:
        self.faiss = oracle("faiss")

    def queries(self, metric: str) -> Any:
        return units(QUERIES) if metric == "cosine" else QUERIES

    def check_same(self, metric: str, encoding: str, theirs: Any, ours: Any) -> None:
        """Both found the same, up to the rounding of distances, by which near ones change places."""
        distances, ids = theirs.search(self.queries(metric), K)
        np.testing.assert_allclose(distances, ours.distances, rtol=1e-3, atol=1e-3)
        # Equal codes have equal distances, and vectors of them any order.
        assert (ids == ours.ids).mean() > (0.5 if "pq" in encoding else 0.99)
        assert abs(recall(metric, ids) - recall(metric, ours.ids)) <= 0.005

    @pytest.mark.parametrize("metric, encoding", BOTH)
    def test_it_searches_ours(self, metric: str, encoding: str, tmp_path: Path) -> None:
        index = made(metric, encoding)
        index.save_faiss(tmp_path / "lists")
        theirs = self.faiss.read_index(str(tmp_path / "lists"))
        inner = self.faiss.extract_index_ivf(theirs)
        assert (theirs.ntotal, theirs.d, inner.nlist, inner.nprobe) == (len(BASE), DIM, LISTS, PROBES)
        for probes in (1, PROBES, LISTS):
            inner.nprobe = probes
            self.check_same(metric, encoding, theirs, index.search(QUERIES, K, probes=probes))
        # FAISS adds vectors to the file's lists.
        more = clusters(50, 7)
        theirs.add_with_ids(units(more) if metric == "cosine" else more, np.arange(50_000, 50_050))
        assert theirs.ntotal == len(BASE) + 50

    def trained(self, metric: str, encoding: str, residuals: bool = True) -> Any:
        faiss = self.faiss
        number = faiss.METRIC_L2 if metric == "l2" else faiss.METRIC_INNER_PRODUCT
        flat = faiss.IndexFlatL2(DIM) if metric == "l2" else faiss.IndexFlatIP(DIM)
        base = units(BASE) if metric == "cosine" else BASE
        kind, _, shape = encoding.partition(":")
        if kind == "flat":
            index = faiss.IndexIVFFlat(flat, DIM, LISTS, number)
        elif kind in ("sq8", "f16"):
            qtype = faiss.ScalarQuantizer.QT_8bit if kind == "sq8" else faiss.ScalarQuantizer.QT_fp16
            index = faiss.IndexIVFScalarQuantizer(flat, DIM, LISTS, qtype, number, kind == "sq8" and residuals)
        else:
            sub_quantizers, bits = map(int, shape.split("x"))
            index = faiss.IndexIVFPQ(flat, DIM, LISTS, sub_quantizers, bits, number)
        if kind == "opq":
            opq = faiss.OPQMatrix(DIM, sub_quantizers)
            opq.niter = opq.niter_pq = 2
            index = faiss.IndexPreTransform(opq, index)
        index.train(base)
        index.add_with_ids(base, IDS)
        return index

    @pytest.mark.parametrize("metric, encoding", [*BOTH, ("cosine", "pq:6x8")])
    def test_we_search_its_files(self, metric: str, encoding: str, tmp_path: Path) -> None:
        theirs = self.trained(metric, encoding)
        inner = self.faiss.extract_index_ivf(theirs)
        inner.nprobe = PROBES
        self.faiss.write_index(theirs, str(tmp_path / "lists"))
        index = warpann.IvfIndex.load_faiss(tmp_path / "lists", metric=metric, device="cpu")
        assert (index.probes, index.lists, index.encoding, len(index)) == (PROBES, LISTS, encoding, len(BASE))
        for probes in (1, PROBES, LISTS):
            inner.nprobe = probes
            ours = index.search(QUERIES, K, probes=probes)
            if metric == "cosine" and encoding != "flat":
                # Divided by the norms of decoded vectors, cosines find more than inner products with them.
                found = theirs.search(self.queries(metric), K)[1]
                assert recall(metric, ours.ids) >= recall(metric, found) - 0.005
            else:
                self.check_same(metric, encoding, theirs, ours)

    @pytest.mark.parametrize("metric", ["l2", "ip"])
    def test_bytes_of_vectors(self, metric: str, tmp_path: Path) -> None:
        theirs = self.trained(metric, "sq8", residuals=False)
        self.faiss.write_index(theirs, str(tmp_path / "lists"))
        index = warpann.IvfIndex.load_faiss(tmp_path / "lists", metric=metric, device="cpu")
        theirs.nprobe = index.probes
        self.check_same(metric, "sq8", theirs, index.search(QUERIES, K))
        # Vectors of whole numbers: training prefers their codes, which FAISS reads.
        whole = np.clip(np.rint(BASE * 20), -127, 127).astype(np.float32)
        ours = warpann.IvfIndex(DIM, LISTS, metric=metric, encoding="sq8", device="cpu", iterations=5)
        ours.train(whole)
        ours.add(whole, IDS)
        ours.probes = LISTS
        assert (ours.reconstruct(IDS) == whole).all()
        ours.save_faiss(tmp_path / "whole")
        again = self.faiss.read_index(str(tmp_path / "whole"))
        assert not again.by_residual
        again.nprobe = LISTS
        self.check_same(metric, "sq8", again, ours.search(QUERIES, K))

    def test_files_that_do_not_map(self, tmp_path: Path) -> None:
        faiss = self.faiss
        flat = faiss.IndexFlatL2(DIM)
        qt = faiss.ScalarQuantizer
        mapped = faiss.IndexIVFFlat(flat, DIM, 4)
        mapped.set_direct_map_type(faiss.DirectMap.Hashtable)
        vectors = faiss.IndexIVFPQ(flat, DIM, 4, 4, 8)
        vectors.by_residual = False
        others = [
            (mapped, "a direct map"),
            (vectors, "not of residuals"),
            (faiss.IndexIVFScalarQuantizer(flat, DIM, 4, qt.QT_fp16), "QT_fp16 of FAISS that is of residuals"),
            (faiss.IndexIVFScalarQuantizer(flat, DIM, 4, qt.QT_4bit), "neither QT_8bit nor QT_fp16"),
            (faiss.IndexIVFFlat(faiss.IndexHNSWFlat(DIM, 8), DIM, 4), "no IndexFlat"),
            (faiss.IndexIVFFlat(flat, DIM, 4, faiss.METRIC_L1), "neither L2 nor inner product"),
            (faiss.IndexPreTransform(faiss.PCAMatrix(DIM, 8), faiss.IndexIVFFlat(faiss.IndexFlatL2(8), 8, 4)), "rotation"),
            (faiss.IndexFlatL2(DIM), "no IndexIVFFlat"),
            (faiss.index_factory(DIM, "IVF4,PQ8x4fs"), "no IndexIVFFlat"),
        ]
        for index, reason in others:
            index.train(BASE)
            if index is mapped:
                index.add_with_ids(BASE[:5], IDS[:5])
            faiss.write_index(index, str(tmp_path / "lists"))
            with pytest.raises(errors.BadFile, match=reason):
                warpann.IvfIndex.load_faiss(tmp_path / "lists", metric="l2", device="cpu")
        for ids in ([-1, 5], [5, 5]):
            index = faiss.IndexIVFFlat(flat, DIM, 4)
            index.train(BASE)
            index.add_with_ids(BASE[:2], np.array(ids))
            faiss.write_index(index, str(tmp_path / "lists"))
            with pytest.raises(errors.BadFile, match="a negative id|an id occurs twice"):
                warpann.IvfIndex.load_faiss(tmp_path / "lists", device="cpu")


BITS = np.random.default_rng(5).integers(0, 256, (2_000, 16), np.uint8)
ASKED = BITS[::40] ^ (np.random.default_rng(6).random((50, 16)) < 0.1).astype(np.uint8)


def bits(ids: Any = None) -> Any:
    index = warpann.FlatIndex(16, metric="hamming", dtype="uint8", device="cpu")
    index.add(BITS, ids)
    return index


def lists_of_bits() -> Any:
    index = warpann.IvfIndex(16, 8, metric="hamming", dtype="uint8", device="cpu")
    index.train(BITS)
    index.add(BITS)
    return index


def test_bits_are_found_by_their_hamming_distance(tmp_path: Path) -> None:
    distances, ids = bits().search(ASKED, K)
    apart = np.unpackbits(BITS[None] ^ ASKED[:, None], axis=2).sum(axis=2)
    expected = np.argsort(apart, axis=1, kind="stable")[:, :K]
    assert (ids == expected).all() and (distances == np.take_along_axis(apart, expected, 1)).all()
    with pytest.raises(errors.Mismatch):
        warpann.FlatIndex(16, metric="hamming")
    with pytest.raises(errors.Mismatch):
        warpann.IvfIndex(16, 4, metric="hamming", dtype="uint8", encoding="sq8")
    lists = lists_of_bits()
    assert (lists.search(ASKED, K, probes=8).ids == ids).all()
    assert lists.centroids.shape == (8, 128) and 0 <= lists.centroids.min() and lists.centroids.max() <= 1
    with pytest.raises(errors.Mismatch):
        warpann.GraphIndex(16, metric="hamming")
    graph = warpann.GraphIndex(16, metric="hamming", dtype="uint8", device="cpu", exact_ratio=0)
    graph.add(BITS)
    walked = graph.search(ASKED, K, beam=200)
    assert warpann.recall(walked.ids, ids) > 0.9
    for format in ["faiss", "hnswlib"]:
        with pytest.raises(errors.Mismatch):
            graph.save_hnsw(tmp_path / "bits", format)


@pytest.mark.parametrize("ids", [None, np.arange(2_000) * 3 + 1])
def test_faiss_searches_our_bits_and_we_search_its(ids: Any, tmp_path: Path) -> None:
    faiss = oracle("faiss")
    index, path = bits(ids), tmp_path / "bits"
    index.save_faiss(path)
    theirs = faiss.read_index_binary(str(path))
    ours = index.search(ASKED, K)
    distances, found = theirs.search(ASKED, K)
    assert (distances == ours.distances).all()
    # FAISS gives equal distances in another order.
    farthest = ours.distances[:, -1:]
    assert ((found == ours.ids) | (distances == farthest)).mean() > 0.9
    faiss.write_index_binary(theirs, str(path))
    again = warpann.FlatIndex.load_faiss(path, device="cpu")
    assert again.metric == "hamming" and (again.ids() == index.ids()).all()
    assert (again.search(ASKED, K).ids == ours.ids).all()


def test_faiss_searches_our_lists_of_bits_and_we_search_its(tmp_path: Path) -> None:
    faiss = oracle("faiss")
    index, path = lists_of_bits(), tmp_path / "lists"
    index.save_faiss(path)
    theirs = faiss.read_index_binary(str(path))
    theirs.nprobe = 8
    ours = index.search(ASKED, K, probes=8)
    distances, found = theirs.search(ASKED, K)
    assert (distances == ours.distances).all()
    farthest = ours.distances[:, -1:]
    assert ((found == ours.ids) | (distances == farthest)).mean() > 0.9
    theirs.nprobe = 2
    faiss.write_index_binary(theirs, str(path))
    again = warpann.IvfIndex.load_faiss(path, device="cpu")
    assert (again.metric, again.dtype, again.probes) == ("hamming", "u8", 2)
    # Both probe the two nearest of the same centroids, which are of bits.
    distances, _ = theirs.search(ASKED, K)
    assert (again.search(ASKED, K).distances == distances).mean() > 0.9
    with pytest.raises(errors.Mismatch):
        warpann.IvfIndex.load_faiss(path, metric="l2", device="cpu")

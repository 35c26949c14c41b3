"""Searches and changes against numpy's brute force."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import reference
import warpann

METRICS = ["l2", "ip", "cosine"]
DTYPES = ["float32", "float16", "uint8", "int8"]


def exact_index(kind: str, dim: int, metric: str = "l2", dtype: str = "float32", device: str = "cpu") -> Any:
    """An empty index of a kind whose searches miss nothing."""
    if kind == "flat":
        return warpann.FlatIndex(dim, metric=metric, dtype=dtype, device=device)
    if kind == "graph":
        return warpann.GraphIndex(dim, metric=metric, dtype=dtype, device=device, exact_ratio=2**40)
    index = warpann.IvfIndex(dim, 3, metric=metric, dtype=dtype, device=device, iterations=2)
    # Cosine has centroids of length 1, which vectors of zeros do not have.
    index.train(np.arange(1, 8 * dim + 1).reshape(8, dim) % 7)
    index.probes = 3
    return index


def whole_numbers(rng: np.random.Generator, rows: int, dim: int, dtype: str) -> Any:
    """Vectors of small whole numbers, with many ties. Sums of squares are exact in float64."""
    low = 0 if dtype == "uint8" else -5
    return rng.integers(low, 6, (rows, dim)).astype(dtype)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32),
    kind=st.sampled_from(["flat", "ivf", "graph"]),
    metric=st.sampled_from(["l2", "ip"]),
    dtype=st.sampled_from(DTYPES),
    dim=st.integers(1, 40),
    rows=st.integers(0, 60),
    k=st.integers(1, 70),
)
def test_searches_are_those_of_numpy(
    seed: int, kind: str, metric: str, dtype: str, dim: int, rows: int, k: int
) -> None:
    rng = np.random.default_rng(seed)
    base, queries = whole_numbers(rng, rows, dim, dtype), whole_numbers(rng, 4, dim, dtype)
    index = exact_index(kind, dim, metric, dtype)
    index.add(base)
    expected = reference.search(metric, queries, dict(enumerate(base)), k)
    reference.check_equal(index.search(queries, k), expected)
    single = index.search(queries[0], k)
    assert single.ids.shape == single.distances.shape == (k,)
    np.testing.assert_array_equal(single.ids, expected[1][0])

    accepted = [int(id) for id in range(rows) if rng.random() < 0.4]
    expected = reference.search(metric, queries, dict(enumerate(base)), k, accepted)
    mask = np.isin(np.arange(rows), accepted)
    for filter in [accepted, np.array(accepted, np.int64), mask, set(accepted), set(accepted).__contains__]:
        reference.check_equal(index.search(queries, k, filter=filter), expected)
        reference.check_equal(index.search(queries, k, filter=warpann.Filter(filter)), expected)
    others = set(range(rows)) - set(accepted)
    reference.check_equal(index.search(queries, k, filter=warpann.Filter.excluding(others)), expected)
    reference.check_equal(index.search(queries, k, filter=index.filter(lambda id: id in accepted)), expected)
    within = range(int(rng.integers(0, 30)), int(rng.integers(0, 70)), int(rng.integers(1, 4)))
    reference.check_equal(
        index.search(queries, k, filter=within), reference.search(metric, queries, dict(enumerate(base)), k, within)
    )

    radius = float(rng.integers(0, 200))
    found = index.range_search(queries, radius)
    assert found.limits[0] == 0 and len(found.limits) == len(queries) + 1
    every = reference.search(metric, queries, dict(enumerate(base)), max(rows, 1))
    for row in range(len(queries)):
        part = slice(found.limits[row], found.limits[row + 1])
        near = every[0][row] >= radius if metric == "ip" else every[0][row] <= radius
        np.testing.assert_array_equal(found.ids[part], every[1][row][near])
        np.testing.assert_array_equal(found.distances[part], every[0][row][near])


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), metric=st.sampled_from(METRICS), dim=st.integers(1, 200))
def test_distances_of_any_numbers_are_those_of_numpy(seed: int, metric: str, dim: int) -> None:
    rng = np.random.default_rng(seed)
    scale = 10.0 ** rng.integers(-6, 7)
    base = (rng.normal(size=(50, dim)) * scale).astype(np.float32)
    queries = (rng.normal(size=(3, dim)) * scale).astype(np.float32)
    index = warpann.FlatIndex(dim, metric=metric, device="cpu")
    index.add(base)
    found = index.search(queries, 50)
    expected = reference.distances(metric, queries, base)
    np.testing.assert_array_equal(np.sort(found.ids, axis=1), np.tile(np.arange(50), (3, 1)))
    gathered = np.take_along_axis(expected, found.ids, axis=1)
    # A sum of float64 numbers rounds in another order than numpy's.
    bound = 1e-6 * np.abs(expected).max()
    np.testing.assert_allclose(found.distances, gathered, rtol=1e-6, atol=bound)
    steps = np.diff(found.distances, axis=1)
    assert (steps <= 0).all() if metric != "l2" else (steps >= 0).all()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), kind=st.sampled_from(["flat", "ivf", "graph"]), dtype=st.sampled_from(DTYPES))
def test_changes_are_those_of_a_dictionary(data: st.DataObject, kind: str, dtype: str) -> None:
    dim = data.draw(st.integers(1, 9))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    index, model = exact_index(kind, dim, dtype=dtype), dict[int, Any]()
    for _ in range(data.draw(st.integers(1, 12))):
        change = data.draw(st.sampled_from(["add", "ids", "upsert", "remove", "missing", "clear", "compact", "pickle", "merge"]))
        rows = whole_numbers(rng, int(rng.integers(0, 20)), dim, dtype)
        fresh = sorted(set(rng.integers(0, 10_000, len(rows)).tolist()) - set(model))
        rows_of_fresh = rows[: len(fresh)]
        if change == "add":
            first = max(model, default=-1) + 1
            index.add(rows)
            model.update(enumerate(rows, first))
        elif change == "ids":
            index.add(rows_of_fresh, fresh)
            model.update(zip(fresh, rows_of_fresh))
        elif change == "upsert":
            known = rng.permutation(sorted(model))[:5].tolist()
            ids = known + fresh
            new = whole_numbers(rng, len(ids), dim, dtype)
            assert index.upsert(new, ids) == len(known)
            model.update(zip(ids, new))
        elif change == "remove":
            gone = rng.permutation(sorted(model))[: rng.integers(0, 9)].tolist()
            assert index.remove(gone) == len(gone)
            for id in gone:
                del model[id]
        elif change == "missing":
            gone = sorted(set(rng.integers(0, 60, 5).tolist()))
            assert index.remove(gone, missing_ok=True) == len(set(gone) & set(model))
            for id in gone:
                model.pop(id, None)
        elif change == "clear":
            index.clear()
            model.clear()
        elif change == "compact":
            index.compact()
        elif change == "pickle" and (kind != "ivf" or index.is_trained):
            index = warpann.from_bytes(index.to_bytes(), device="cpu")
        elif change == "merge":
            other = index.snapshot()
            other.clear()
            other.add(rows_of_fresh, fresh)
            index.merge(other)
            model.update(zip(fresh, rows_of_fresh))
        assert len(index) == len(model)
        np.testing.assert_array_equal(index.ids(), sorted(model))
        for id in list(model)[:3]:
            assert id in index
            np.testing.assert_array_equal(index.reconstruct([id])[0], model[id].astype(np.float32))
        queries = whole_numbers(rng, 2, dim, dtype)
        reference.check_equal(index.search(queries, 5), reference.search("l2", queries, model, 5))


def test_bfloat16() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    rng = np.random.default_rng(3)
    base = rng.integers(-9, 9, (40, 12)).astype(ml_dtypes.bfloat16)
    for dtype in ["bfloat16", ml_dtypes.bfloat16, np.dtype(ml_dtypes.bfloat16)]:
        index = warpann.FlatIndex(12, dtype=dtype, device="cpu")
        assert index.dtype == "bf16"
        index.add(base)
        index.add(base.astype(np.float32))
        vectors = dict(enumerate(np.concatenate([base, base]).astype(np.float32)))
        found = index.search(base[:5], 6)
        reference.check_equal(found, reference.search("l2", base[:5].astype(np.float32), vectors, 6))


def test_the_emulator_has_the_bits_of_the_cpu() -> None:
    rng = np.random.default_rng(5)
    base = rng.normal(size=(200, 24)).astype(np.float32)
    found = []
    for device in ["cpu", "emulator", "cpu+cpu", "cpu,emulator"]:
        index = warpann.FlatIndex(24, device=device)
        index.add(base)
        found.append(index.search(base[:4], 7))
    for other in found[1:]:
        reference.check_equal(other, (found[0].distances, found[0].ids))
    moved = warpann.FlatIndex(24, device="cpu")
    moved.add(base)
    moved.move_to("emulator")
    assert "emulator" in moved.device
    reference.check_equal(moved.search(base[:4], 7), (found[0].distances, found[0].ids))


@pytest.mark.parametrize("encoding", ["flat", "f16", "sq8", "pq:8x8", "opq:8x6", "bits:8"])
def test_inverted_files_find_most(encoding: str) -> None:
    rng = np.random.default_rng(7)
    base = (rng.normal(size=(3000, 16)) + 4 * rng.integers(0, 4, (3000, 1))).astype(np.float32)
    index = warpann.IvfIndex(16, 20, encoding=encoding, device="cpu", seed=3)
    assert not index.is_trained
    with pytest.raises(warpann.errors.NotTrained) as caught:
        index.add(base)
    assert caught.value.call == "add"
    index.train(base)
    index.add(base)
    assert (index.encoding, index.lists, index.centroids.shape) == (encoding, 20, (20, 16))
    truth = reference.search("l2", base[:50], dict(enumerate(base)), 10)[1]
    assert warpann.recall(index.search(base[:50], 10, probes=20).ids, truth) > (0.3 if "pq" in encoding else 0.95)
    found, statistics = index.search_refined(base[:50], 10, base, probes=20, refine=20)
    assert statistics.refined == 50 * 200 and warpann.recall(found.ids, truth) > 0.95
    again, _ = index.search_refined(base[:50], 10, base, ids=np.arange(3000), probes=20, refine=20.0)
    reference.check_equal(again, (found.distances, found.ids))
    if encoding == "flat" or encoding.startswith("bits"):
        proved, statistics = index.search_refined(base[:50], 10, base, probes=20, refine=1, prove=True)
        assert 50 * 10 <= statistics.refined < 50 * 3000
        exact = warpann.FlatIndex(16, device="cpu")
        exact.add(base)
        best = exact.search(base[:50], 10)
        reference.check_equal(proved, (best.distances, best.ids))
        probable, fewer = index.search_refined(base[:50], 10, base, probes=20, refine=1, prove="probable")
        reference.check_equal(probable, (best.distances, best.ids))
        assert fewer.refined <= statistics.refined
    else:
        with pytest.raises(warpann.errors.Mismatch):
            index.search_refined(base[:50], 10, base, prove=True)
    with pytest.raises(warpann.errors.UnknownName):
        index.search_refined(base[:50], 10, base, prove="surely")
    with pytest.raises(warpann.errors.WrongType):
        index.search_refined(base[:50], 10, base, prove=0.5)
    with pytest.raises(warpann.errors.BadNumber):
        index.search_refined(base[:50], 10, base, refine=0.9)
    tuned = index.tune(base[100:200], 10, 0.9)
    assert tuned.recall >= 0.9 and index.probes == tuned.effort


def test_graphs_find_most() -> None:
    rng = np.random.default_rng(8)
    base = rng.normal(size=(3000, 16)).astype(np.float32)
    index = warpann.GraphIndex(16, degree=16, exact_ratio=0, device="cpu")
    index.add(base)
    truth = reference.search("l2", base[:50], dict(enumerate(base)), 10)[1]
    found, statistics = index.search_with_statistics(base[:50], 10, beam=100)
    assert warpann.recall(found.ids, truth) > 0.9
    assert (statistics.queries, statistics.beam, statistics.accepted) == (50, 100, 3000)
    edges = index.edges()
    assert edges is not None and edges.shape == (3000, 16) and edges.max() < 3000 and edges.min() >= -1
    assert index.statistics().edges == (edges >= 0).sum()
    index.beam = 33
    assert warpann.from_bytes(index.to_bytes()).beam == 33


def test_radius_cuts_rows() -> None:
    index = warpann.FlatIndex(1, device="cpu")
    index.add(np.float32([[0], [1], [2], [3]]))
    found = index.search(np.float32([0.1]), 4, radius=1.0)
    assert found.ids.tolist() == [0, 1, -1, -1] and found.distances[2] == np.inf

"""Exact answers against FAISS (faiss-cpu), for random shapes and settings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import warpann
from oracles import oracle

faiss = oracle("faiss")

METRICS = {"l2": faiss.METRIC_L2, "ip": faiss.METRIC_INNER_PRODUCT}
#: Sums of f32 in another order differ by this share of the greatest term.
TOLERANCE = 2e-5

several = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
shapes = {
    "seed": st.integers(0, 2**32),
    "metric": st.sampled_from(sorted(METRICS)),
    "dim": st.integers(1, 70),
    "rows": st.integers(1, 300),
}


def vectors(rng: np.random.Generator, rows: int, dim: int) -> Any:
    """Vectors of which some are equal to others, at scales from 10^-3 to 10^3."""
    some = rng.normal(size=(rows, dim)) * 10.0 ** rng.integers(-3, 4)
    return some[rng.integers(0, rows, rows)].astype(np.float32)


def scale(metric: str, queries: Any, base: Any) -> Any:
    """For each query a bound of the terms of its distances."""
    x, y = np.square(queries, dtype=np.float64).sum(1), np.square(base, dtype=np.float64).sum(1).max()
    return (x + y if metric == "l2" else np.sqrt(x * y))[:, None]


def check(found: Any, theirs: Any, tolerance: Any) -> None:
    """The same distances; and the same ids where a distance is apart from those of the neighbouring ranks."""
    their_distances, their_ids = theirs
    filled = their_ids >= 0
    assert ((found.ids >= 0) == filled).all()
    ours, other = np.where(filled, found.distances, 0), np.where(filled, their_distances, 0)
    error = np.abs(ours.astype(np.float64) - other)
    assert (error <= tolerance).all(), (error - tolerance).max()
    # What follows the last rank is not known, so its id may be that of an equal vector.
    gaps = np.abs(np.diff(other.astype(np.float64), axis=1)) > 4 * tolerance
    ends = np.ones((len(gaps), 1), bool)
    apart = np.hstack([ends, gaps]) & np.hstack([gaps, ~ends]) & filled
    assert (found.ids == their_ids)[apart].all()


@several
@given(**shapes, kind=st.sampled_from(["flat", "ivf", "graph"]), k=st.integers(1, 40))
def test_searches_filters_and_changes(seed: int, metric: str, dim: int, rows: int, kind: str, k: int) -> None:
    rng = np.random.default_rng(seed)
    base = vectors(rng, rows, dim)
    queries = np.concatenate([base[:3], vectors(rng, 5, dim)])
    ids = rng.choice(10 * rows, rows, replace=False)
    theirs = faiss.IndexIDMap2(faiss.IndexFlat(dim, METRICS[metric]))
    theirs.add_with_ids(base, ids)
    if kind == "flat":
        index: Any = warpann.FlatIndex(dim, metric=metric, device="cpu")
    elif kind == "graph":
        # So few vectors are compared with each query.
        index = warpann.GraphIndex(dim, metric=metric, device="cpu")
    else:
        index = warpann.IvfIndex(dim, min(rows, 7), metric=metric, device="cpu", iterations=3)
        index.train(base)
        index.probes = min(rows, 7)
    index.add(base, ids)
    tolerance = TOLERANCE * scale(metric, queries, base)
    check(index.search(queries, k), theirs.search(queries, k), tolerance)

    accepted = rng.choice(ids, int(rng.integers(1, rows + 1)), replace=False)
    selector = faiss.SearchParameters(sel=faiss.IDSelectorBatch(accepted))
    found = index.search(queries, k, filter=accepted)
    check(found, theirs.search(queries, k, params=selector), tolerance)

    index.remove(accepted[::2])
    assert theirs.remove_ids(accepted[::2]) == len(accepted[::2])
    assert len(index) == theirs.ntotal
    check(index.search(queries, k), theirs.search(queries, k), tolerance)


@several
@given(**shapes, kind=st.sampled_from(["flat", "graph"]))
def test_ranges(seed: int, metric: str, dim: int, rows: int, kind: str) -> None:
    rng = np.random.default_rng(seed)
    # Distances of whole numbers are exact, and a radius between two of them is not a distance.
    base, queries = (rng.integers(-4, 5, (count, dim)).astype(np.float32) for count in (rows, 6))
    theirs = faiss.IndexFlat(dim, METRICS[metric])
    theirs.add(base)
    classes = {"flat": warpann.FlatIndex, "graph": warpann.GraphIndex}
    index = classes[kind](dim, metric=metric, device="cpu")
    index.add(base)
    radius = float(rng.integers(-dim, 20 * dim)) + 0.5
    limits, distances, ids = index.range_search(queries, radius)
    their_limits, their_distances, their_ids = theirs.range_search(queries, radius)
    np.testing.assert_array_equal(limits, their_limits)
    for row in range(len(queries)):
        part = slice(limits[row], limits[row + 1])
        order = np.argsort(their_ids[part])
        ours = np.argsort(ids[part])
        np.testing.assert_array_equal(ids[part][ours], their_ids[part][order])
        np.testing.assert_array_equal(distances[part][ours], their_distances[part][order])


@several
@given(**shapes, lists=st.integers(1, 20), k=st.integers(1, 20))
def test_inverted_files_with_all_lists_probed(
    seed: int, metric: str, dim: int, rows: int, lists: int, k: int
) -> None:
    """Inverted files with all lists probed, over other centroids, find the same."""
    rng = np.random.default_rng(seed)
    lists = min(lists, rows)
    base, queries = vectors(rng, rows, dim), vectors(rng, 6, dim)
    index = warpann.IvfIndex(dim, lists, metric=metric, device="cpu", iterations=3)
    index.train(base)
    index.add(base)
    index.probes = lists
    quantizer = faiss.IndexFlat(dim, METRICS[metric])
    quantizer.add(warpann.kmeans(base, lists, iterations=3).centroids)
    theirs = faiss.IndexIVFFlat(quantizer, dim, lists, METRICS[metric])
    theirs.is_trained = True
    theirs.add(base)
    theirs.nprobe = lists
    check(index.search(queries, k), theirs.search(queries, k), TOLERANCE * scale(metric, queries, base))


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32), dim=st.integers(2, 40), centroids=st.integers(2, 20))
def test_kmeans_reaches_the_objective_of_faiss(seed: int, dim: int, centroids: int) -> None:
    """One cloud, where all local minima are about as good. Among clusters that lie apart, both depend on their start."""
    data = np.random.default_rng(seed).normal(size=(2000, dim)).astype(np.float32)
    theirs = faiss.Kmeans(dim, centroids, niter=20, nredo=1, seed=1, min_points_per_centroid=1)
    theirs.train(data)
    ours = warpann.kmeans(data, centroids, iterations=20, labels=True)

    def objective(centroids: Any) -> tuple[float, Any]:
        nearest = faiss.IndexFlatL2(dim)
        nearest.add(centroids)
        distances, labels = nearest.search(data, 1)
        return float(distances.sum(dtype=np.float64)), labels[:, 0]

    (least, labels), (their_least, _) = objective(ours.centroids), objective(theirs.centroids)
    assert least <= 1.05 * their_least
    # FAISS computes |x|² + |y|² − 2xy, so a tie may fall to the other side.
    assert (labels == warpann.assign(data, ours.centroids)).mean() > 0.999
    assert (labels == ours.labels).mean() > 0.99


@pytest.mark.parametrize("metric", sorted(METRICS))
def test_larger_sets(metric: str) -> None:
    """Sizes at which other code runs than for a few hundred vectors."""
    rng = np.random.default_rng(5)
    base = rng.normal(size=(30_000, 48)).astype(np.float32)
    queries = rng.normal(size=(300, 48)).astype(np.float32)
    theirs = faiss.IndexFlat(48, METRICS[metric])
    theirs.add(base)
    index = warpann.FlatIndex(48, metric=metric, device="cpu")
    index.add(base)
    tolerance = TOLERANCE * scale(metric, queries, base)
    for k in (1, 10, 200):
        check(index.search(queries, k), theirs.search(queries, k), tolerance)

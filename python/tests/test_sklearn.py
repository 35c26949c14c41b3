"""scikit-learn's own checks of estimators, and its own neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

sklearn = pytest.importorskip("sklearn")
from sklearn import neighbors  # noqa: E402
from sklearn.cluster import DBSCAN  # noqa: E402
from sklearn.datasets import load_digits  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.utils.estimator_checks import parametrize_with_checks  # noqa: E402

from warpann.sklearn import KNeighborsTransformer, NearestNeighbors  # noqa: E402


@parametrize_with_checks(
    [
        KNeighborsTransformer(device="cpu"),
        KNeighborsTransformer(mode="connectivity", index="graph", device="cpu"),
        KNeighborsTransformer(index="ivf", probes=100, device="cpu"),
        NearestNeighbors(metric="cosine", device="cpu"),
    ]
)
def test_checks_of_estimators(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.fixture(scope="module")
def digits() -> Any:
    return load_digits().data


@pytest.mark.parametrize("metric", ["euclidean", "sqeuclidean", "cosine"])
@pytest.mark.parametrize("index", ["flat", "graph"])
def test_neighbours_are_those_of_sklearn(digits: Any, metric: str, index: str) -> None:
    queries = digits[1000:1100]
    ours = NearestNeighbors(7, metric=metric, index=index, device="cpu").fit(digits[:1000])
    theirs = neighbors.NearestNeighbors(n_neighbors=7, metric=metric, algorithm="brute").fit(digits[:1000])
    for X in (queries, None):
        distances, ids = ours.kneighbors(X)
        expected, expected_ids = theirs.kneighbors(X)
        np.testing.assert_allclose(distances, expected, rtol=1e-5, atol=2e-7)
        # The order of equal distances is not defined there.
        assert (ids == expected_ids).mean() > 0.95
        assert distances.dtype == expected.dtype
        if X is None:
            assert not (ids == np.arange(1000)[:, None]).any()
        graph = ours.kneighbors_graph(X, mode="distance")
        their_graph = theirs.kneighbors_graph(X, mode="distance")
        assert graph.shape == their_graph.shape and graph.nnz == their_graph.nnz
    radius = float(np.median(theirs.kneighbors(queries)[0]))
    distances, ids = ours.radius_neighbors(queries, radius)
    their_distances, their_ids = theirs.radius_neighbors(queries, radius, sort_results=True)
    for row in range(100):
        # A distance on the radius may round to either side.
        assert len(set(ids[row]) ^ set(their_ids[row])) <= 1
        assert (np.diff(distances[row]) >= 0).all()


def test_graphs_for_other_estimators(digits: Any) -> None:
    X = digits[:500]
    for mode in ("distance", "connectivity"):
        ours = KNeighborsTransformer(10, mode=mode, device="cpu").fit_transform(X)
        theirs = neighbors.KNeighborsTransformer(n_neighbors=10, mode=mode, algorithm="brute").fit_transform(X)
        assert ours.shape == theirs.shape and ours.nnz == theirs.nnz
        np.testing.assert_allclose(ours.sum(axis=1), theirs.sum(axis=1), rtol=1e-6)
    assert (KNeighborsTransformer(10, device="cpu").fit_transform(X).diagonal() == 0).all()
    labels = [
        make_pipeline(transformer, DBSCAN(eps=20, metric="precomputed")).fit_predict(X)
        for transformer in (KNeighborsTransformer(20, device="cpu"), neighbors.KNeighborsTransformer(n_neighbors=20))
    ]
    np.testing.assert_array_equal(*labels)


def test_refusals(digits: Any) -> None:
    fitted = NearestNeighbors(device="cpu").fit(digits[:10])
    for call in [
        lambda: NearestNeighbors(metric="manhattan").fit(digits),
        lambda: NearestNeighbors(index="tree").fit(digits),
        lambda: KNeighborsTransformer(mode="both").fit(digits),
        lambda: fitted.kneighbors(digits[:2], 11),
        lambda: fitted.kneighbors(None, 10),
        lambda: fitted.kneighbors(digits[:2], 0),
        lambda: fitted.kneighbors(digits[:2, :5]),
        lambda: fitted.kneighbors_graph(digits[:2], mode="x"),
    ]:
        with pytest.raises(ValueError):
            call()

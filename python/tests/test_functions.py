"""k-selection, k-means, k-NN graphs."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import numpy as np
import pytest

import reference
import warpann
from warpann import _warpann, errors


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "uint32"])
@pytest.mark.parametrize("largest", [False, True])
def test_select_k(dtype: str, largest: bool) -> None:
    rng = np.random.default_rng(1)
    keys = rng.integers(0, 50, (5, 300)).astype(dtype)
    for k, device in [(1, "cpu"), (31, "cpu"), (300, "cpu"), (310, "cpu"), (3, "emulator")]:
        found = warpann.select_k(keys, k, largest=largest, device=device)
        assert found.keys.dtype == keys.dtype and found.keys.shape == found.positions.shape == (5, k)
        for row in range(5):
            wide = keys[row].astype(np.float64)
            order = np.lexsort((np.arange(300), -wide if largest else wide))[:k]
            np.testing.assert_array_equal(found.positions[row, :300], order)
            np.testing.assert_array_equal(found.keys[row, :300], keys[row][order])
            assert (found.positions[row, 300:] == -1).all()
    single = warpann.select_k(keys[0, ::2], 3, largest=largest)
    assert single.keys.shape == (3,)
    np.testing.assert_array_equal(keys[0, ::2][single.positions], single.keys)


def test_select_k_refuses() -> None:
    with pytest.raises(errors.WrongType) as caught:
        warpann.select_k(np.zeros((2, 2)), 1)
    assert caught.value.actual == "float64"
    with pytest.raises(errors.WrongShape):
        warpann.select_k(np.zeros((2, 2, 2), np.float32), 1)
    with pytest.raises(errors.Zero):
        warpann.select_k(np.zeros((2, 2), np.float32), 0)
    assert warpann.select_k(np.zeros((0, 4), np.float32), 2).keys.shape == (0, 2)


def lloyd(points: Any, centroids: Any, iterations: int) -> Any:
    """k-means in float64, for clusters that never become empty."""
    centroids = centroids.astype(np.float64)
    for _ in range(iterations):
        labels = reference.distances("l2", points, centroids).argmin(1)
        centroids = np.stack([points[labels == cluster].mean(0) for cluster in range(len(centroids))])
    return centroids


def test_kmeans() -> None:
    rng = np.random.default_rng(2)
    points = (rng.normal(size=(600, 5)) + 20 * rng.integers(0, 2, (600, 5))).astype(np.float32)
    start = points[:8].copy()
    seen: list[Any] = []
    found = warpann.kmeans(
        points, 8, iterations=6, start=start, labels=True, points_per_centroid=None, device="cpu", progress=seen.append
    )
    assert found.labels is not None
    np.testing.assert_allclose(found.centroids, lloyd(points, start, 6), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(found.labels, reference.distances("l2", points, found.centroids).argmin(1))
    np.testing.assert_array_equal(found.sizes, np.bincount(found.labels, minlength=8))
    np.testing.assert_array_equal(warpann.assign(points, found.centroids, device="cpu"), found.labels)
    assert [(now.stage, now.done, now.total, now.unit) for now in seen] == [
        ("training", done, 6, "iterations") for done in range(1, 7)
    ]
    assert len(found.objectives) == 6 and (np.diff(found.objectives) <= 0).all()
    for start_name in ["random", "plusplus"]:
        again = warpann.kmeans(points, 8, seed=4, start=start_name, device="cpu")
        assert again.labels is None
        np.testing.assert_array_equal(again.centroids, warpann.kmeans(points, 8, seed=4, start=start_name).centroids)
    sized = warpann.kmeans(points, 8, balanced=1.2, labels=True, points_per_centroid=None, device="cpu")
    assert sized.sizes.max() <= np.ceil(1.2 * 600 / 8)
    weighted = warpann.kmeans(points[:40], 1, weights=np.arange(40), iterations=1, device="cpu")
    np.testing.assert_allclose(weighted.centroids[0], np.average(points[:40], 0, np.arange(40)), rtol=1e-5)
    bytes_of = rng.integers(0, 200, (50, 3)).astype(np.uint8)
    np.testing.assert_allclose(
        warpann.kmeans(bytes_of, 1, iterations=1, device="cpu").centroids[0], bytes_of.mean(0), rtol=1e-6
    )


def test_kmeans_refuses() -> None:
    points = np.zeros((3, 2), np.float32)
    with pytest.raises(errors.TooFewTrainingVectors) as caught:
        warpann.kmeans(points, 4)
    assert (caught.value.have, caught.value.need) == (3, 4)
    with pytest.raises(errors.UnknownName):
        warpann.kmeans(points, 1, start="somewhere")
    with pytest.raises(errors.WrongLength):
        warpann.kmeans(points, 1, weights=[1.0])
    with pytest.raises(errors.BadWeight):
        warpann.kmeans(points, 1, weights=[1.0, -1, 0])
    with pytest.raises(errors.BadNumber):
        warpann.kmeans(points, 1, balanced=0.5)
    with pytest.raises(errors.WrongLength):
        warpann.kmeans(points, 2, start=np.zeros((1, 2)))
    with pytest.raises(errors.WrongDimension):
        warpann.assign(points, np.zeros((1, 3)))
    with pytest.raises(errors.Zero):
        warpann.assign(points, np.zeros((0, 2)))
    with pytest.raises(errors.Cancelled):
        warpann.kmeans(np.eye(9), 2, progress=lambda progress: progress.done < 2)


def test_knn_graph() -> None:
    rng = np.random.default_rng(3)
    base = rng.integers(0, 9, (60, 4)).astype(np.float32)
    index = warpann.FlatIndex(4, device="cpu")
    index.add(base)
    found = warpann.knn_graph(index, base, 5)
    for row in range(60):
        others = {id: vector for id, vector in enumerate(base) if id != row}
        expected = reference.search("l2", base[row : row + 1], others, 5)
        np.testing.assert_array_equal(found.ids[row], expected[1][0])
        np.testing.assert_array_equal(found.distances[row], expected[0][0])
    with pytest.raises(errors.WrongLength):
        warpann.knn_graph(index, base[:5], 5)
    with pytest.raises(errors.Cancelled):
        warpann.knn_graph(index, base, 5, progress=lambda progress: False)
    assert (warpann.knn_graph(index, base, 70).ids[:, 59:] == -1).all()


def test_recall() -> None:
    assert warpann.recall([[1, 2], [5, 6]], [[1, 3], [5, 6]]) == 0.75
    assert warpann.recall([[1, -1]], [[1, -1]]) == 1.0
    with pytest.raises(errors.WrongShape):
        warpann.recall([[1]], [[1, 2]])


def test_the_build_has_a_version_and_its_kernels() -> None:
    info = warpann.build_info()
    assert info.version == importlib.metadata.version("warpann")
    # Compiler and PTX are there together, and so are assembler and machine code.
    assert (info.compiler is None) == (info.ptx == ()) and (info.assembler is None) == (info.machine_code == ())
    if hasattr(_warpann, "DeviceTensor"):
        assert info.compiler is not None and info.compiler.startswith("rustc ") and "sm_80" in info.ptx


def test_devices_are_listed() -> None:
    for device in warpann.devices():
        assert device.memory_total > 0 and device.name

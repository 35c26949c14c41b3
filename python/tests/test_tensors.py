"""Tensors in GPU memory, on the emulated driver, with a wheel that has the feature `emulated-driver`.

The driver is that of the whole process, so this file runs in a process of its own.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
from typing import Any

import numpy as np
import pytest

import reference
import warpann
from warpann import _warpann, errors

needs_driver = pytest.mark.skipif(
    not hasattr(_warpann, "_use_emulated_driver"), reason="needs a wheel with the feature emulated-driver"
)


# Shapes and types of the results of a range search.
OUT: list[tuple[Any, Any]] = [((3, 5), np.float32), ((3, 5), np.int64), (3, np.uint32)]


class Foreign:
    """A tensor of another library, which records the stream for which it was asked."""

    def __init__(self, tensor: Any, old: bool = False) -> None:
        self.tensor, self.old, self.streams = tensor, old, list[Any]()

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()

    def __dlpack__(self, *, stream: Any, **keywords: Any) -> Any:
        if self.old and keywords:
            raise TypeError("max_version is unknown here")
        self.streams.append(stream)
        return self.tensor.__dlpack__(**keywords)


@pytest.fixture(scope="module")
def driver() -> Any:
    _warpann._use_emulated_driver()
    return warpann


def each_index(base: Any, dtype: str) -> list[Any]:
    flat = warpann.FlatIndex(base.shape[1], dtype=dtype, device="gpu:0")
    ivf = warpann.IvfIndex(base.shape[1], 2, dtype=dtype, device="gpu:0", iterations=2)
    ivf.train(base)
    ivf.probes = 2
    graph = warpann.GraphIndex(base.shape[1], dtype=dtype, device="gpu:0", exact_ratio=2**30)
    return [flat, ivf, graph]


@needs_driver
@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "int8"])
def test_searches_from_gpu_memory_to_gpu_memory(driver: Any, dtype: str) -> None:
    rng = np.random.default_rng(1)
    base = rng.integers(0, 9, (60, 8)).astype(dtype)
    assert [device.number for device in warpann.devices()] == [0, 1]
    for index in each_index(base, dtype):
        assert "emulated" in index.device.lower() or "gpu" in index.device.lower()
        index.add(driver.to_device(base[:40]))
        index.add(Foreign(driver.to_device(base[40:]), old=True), ids=np.arange(100, 120))
        ids = [*range(40), *range(100, 120)]
        np.testing.assert_array_equal(index.ids(), ids)
        vectors = dict(zip(ids, base))
        queries = rng.integers(0, 9, (3, 8)).astype(dtype)
        expected = reference.search("l2", queries, vectors, 5)
        reference.check_equal(index.search(queries, 5), expected)
        workspace = index.device_workspace(4, 5)
        assert workspace.device_bytes > 0
        on_gpu = Foreign(driver.to_device(queries))
        distances, found = workspace.search(on_gpu)
        assert on_gpu.streams == [1] and found.shape == (3, 5) and found.__dlpack_device__() == (2, 0)
        reference.check_equal(warpann.Neighbors(distances.numpy(), found.numpy()), expected)
        out = driver.to_device(np.zeros((3, 5), np.float32)), driver.to_device(np.zeros((3, 5), np.int64))
        again = workspace.search(on_gpu, out=out)
        assert again[0] is out[0] and again[1] is out[1]
        reference.check_equal(warpann.Neighbors(out[0].numpy(), out[1].numpy()), expected)
        odd = index.device_workspace(4, 5, filter=index.ids() % 2 == 1)
        distances, found = odd.search(driver.to_device(queries))
        accepted = [id for id in ids if id % 2]
        expected = reference.search("l2", queries, vectors, 5, accepted)
        reference.check_equal(warpann.Neighbors(distances.numpy(), found.numpy()), expected)


@needs_driver
def test_range_searches_from_gpu_memory_to_gpu_memory(driver: Any) -> None:
    rng = np.random.default_rng(2)
    base = rng.integers(0, 5, (60, 4)).astype(np.float32)
    queries = rng.integers(0, 5, (3, 4)).astype(np.float32)
    everything = reference.search("l2", queries, dict(enumerate(base)), 60)
    for index in each_index(base, "float32"):
        index.add(base)
        # A beam of all vectors: a graph then compares with each.
        beam = 60 if isinstance(index, warpann.GraphIndex) else None
        workspace = index.device_workspace(3, 5, beam=beam)
        distances, ids, counts = workspace.range_search(driver.to_device(queries), 6.0)
        assert counts.shape == (3,)
        within = [sum(distance <= 6.0 for distance in row) for row in everything[0]]
        assert counts.numpy().tolist() == within and max(within) > 5
        for query, count in enumerate(within):
            found = min(count, 5)
            assert ids.numpy()[query].tolist() == [*everything[1][query][:found], *[-1] * (5 - found)]
            assert distances.numpy()[query, :found].tolist() == list(everything[0][query][:found])
        out = tuple(driver.to_device(np.zeros(shape, dtype)) for shape, dtype in OUT)
        again = workspace.range_search(driver.to_device(queries), 6.0, out=out)
        assert all(a is b for a, b in zip(again, out)) and out[2].numpy().tolist() == within
        with pytest.raises(errors.BadNumber):
            workspace.range_search(driver.to_device(queries), np.nan)
        with pytest.raises(errors.BadMemory):
            workspace.range_search(driver.to_device(queries), 6.0, out=(*out[:2], out[1]))
        with pytest.raises(errors.BadMemory):
            workspace.range_search(driver.to_device(queries), 6.0, out=(*out[:2], driver.to_device(np.zeros(3, np.uint32), 1)))
        with pytest.raises(errors.WrongLength):
            workspace.range_search(driver.to_device(queries), 6.0, out=(*out[:2], driver.to_device(np.zeros(2, np.uint32))))


@needs_driver
@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "int8"])
def test_training_by_tensors(driver: Any, dtype: str) -> None:
    rng = np.random.default_rng(3)
    base = rng.integers(0, 9, (60, 6)).astype(dtype)

    def trained(vectors: Any) -> Any:
        index = warpann.IvfIndex(6, 3, dtype=dtype, encoding="pq:2x4", device="cpu", iterations=3)
        index.train(vectors)
        return index.centroids.tobytes(), index.codebooks.tobytes()

    foreign = Foreign(driver.to_device(base, 1), old=True)
    assert trained(foreign) == trained(base) and foreign.streams == [1]
    ours, expected = (warpann.kmeans(vectors, 4, labels=True) for vectors in (driver.to_device(base), base))
    assert ours.centroids.tobytes() == expected.centroids.tobytes() and (ours.labels == expected.labels).all()


@needs_driver
def test_tensors_that_train_nothing(driver: Any) -> None:
    base = np.eye(8, dtype=np.float32)
    index = warpann.IvfIndex(8, 2, device="cpu")
    for vectors, error in [
        (driver.to_device(base[:, :4].copy()), errors.WrongDimension),
        (driver.to_device(base.astype(np.float16)), errors.BadMemory),
        (driver.to_device(base.astype(np.int64)), errors.BadMemory),
        (driver.to_device(np.full((8, 8), np.nan, np.float32)), errors.NotFinite),
        (driver.to_device(base[:1]), errors.TooFewTrainingVectors),
        (driver.to_device(base[:0]), errors.TooFewTrainingVectors),
    ]:
        with pytest.raises(error):
            index.train(vectors)
        assert not index.is_trained
    for vectors, error in [
        (driver.to_device(base.astype(np.int64)), errors.BadMemory),
        (driver.to_device(base[:0]), errors.TooFewTrainingVectors),
    ]:
        with pytest.raises(error):
            warpann.kmeans(vectors, 2)


@needs_driver
def test_refusals(driver: Any) -> None:
    base = np.eye(8, dtype=np.float32)
    index = warpann.FlatIndex(8, device="gpu:0")
    index.add(base)
    workspace = index.device_workspace(2, 3)
    two = driver.to_device(base[:2])
    for queries, error in [
        (driver.to_device(base[:3]), errors.TooMany),
        (driver.to_device(base[:2, :4].copy()), errors.WrongDimension),
        (driver.to_device(base[:2].astype(np.float16)), errors.BadMemory),
        (driver.to_device(base[:2], gpu=1), errors.BadMemory),
        (base[:2], errors.WrongType),
        ([1.0], errors.WrongType),
        (None, errors.WrongType),
    ]:
        with pytest.raises(error):
            workspace.search(queries)
    for out in [
        (driver.to_device(np.zeros((2, 2), np.float32)), driver.to_device(np.zeros((2, 2), np.int64))),
        (driver.to_device(np.zeros((2, 3), np.int64)), driver.to_device(np.zeros((2, 3), np.float32))),
    ]:
        with pytest.raises((errors.WrongLength, errors.BadMemory)):
            workspace.search(two, out=out)
    found = workspace.search(driver.to_device(np.float32([[np.nan] * 8, base[1]])))
    assert found[1].numpy()[0].tolist() == [-1, -1, -1] and found[1].numpy()[1, 0] == 1
    for wrong in [base.astype(np.float64), base[:, ::2], [1.0], np.zeros((2, 2), bool)]:
        with pytest.raises(errors.WrongType):
            driver.to_device(wrong)
    with pytest.raises(errors.Driver):
        driver.to_device(base, gpu=9)
    with pytest.raises(errors.NotFinite):
        index.add(driver.to_device(np.full((1, 8), np.inf, np.float32)))
    index.remove([0])
    with pytest.raises(errors.StaleWorkspace):
        workspace.search(two)
    with pytest.raises(errors.NotInDeviceMemory):
        warpann.FlatIndex(8, device="cpu").device_workspace(1, 1)


@needs_driver
def test_memory_lives_as_long_as_a_tensor_of_it(driver: Any) -> None:
    index = warpann.FlatIndex(4, device="gpu:0")
    index.add(np.eye(4))
    distances, ids = index.device_workspace(1, 2).search(driver.to_device(np.float32([[1, 0, 0, 0]])))
    del index, distances
    gc.collect()
    assert ids.numpy()[0, 0] == 0
    # A capsule that nobody takes gives its tensor back, and one that is taken once cannot be taken again.
    ids.__dlpack__()
    ids.__dlpack__(max_version=(1, 1))
    capsule = driver.to_device(np.float32([[1, 2]])).__dlpack__()

    class Once:
        __dlpack_device__ = ids.__dlpack_device__
        __dlpack__ = staticmethod(lambda **keywords: capsule)

    index = warpann.FlatIndex(2, device="gpu:0")
    index.add(Once())
    with pytest.raises(errors.WrongType):
        index.add(Once())
    with pytest.raises(BufferError):
        ids.__dlpack__(copy=True)


@pytest.mark.skipif(hasattr(_warpann, "DeviceTensor"), reason="is for a wheel without the feature cuda")
def test_a_wheel_without_kernels_says_so() -> None:
    index = warpann.FlatIndex(4, device="auto")
    with pytest.raises(errors.NotInDeviceMemory):
        index.device_workspace(1, 1)
    with pytest.raises(errors.NoDevice) as caught:
        warpann.FlatIndex(4, device="gpu")
    with pytest.raises(errors.NoDevice):
        warpann.to_device(np.zeros((1, 4), np.float32))
    assert "cuda" in caught.value.reason


def test_a_process_without_a_driver_uses_the_cpu() -> None:
    program = "import warpann; print(warpann.FlatIndex(4).device, warpann.devices() or 'none')"
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    assert ended.stdout.startswith("cpu") or "gpu" in ended.stdout.lower()

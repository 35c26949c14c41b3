"""Files, bytes and pickles."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reference
import warpann
from warpann import errors


def each_kind(base: Any, dtype: str) -> list[Any]:
    flat = warpann.FlatIndex(base.shape[1], dtype=dtype, metric="ip", device="cpu")
    ivf = warpann.IvfIndex(base.shape[1], 4, dtype=dtype, device="cpu", memory_budget=2**28)
    ivf.train(base)
    graph = warpann.GraphIndex(base.shape[1], dtype=dtype, exact_ratio=0, metric="cosine", device="cpu")
    for index in (flat, ivf, graph):
        index.add(base, np.arange(len(base)) * 3 + 1)
    return [flat, ivf, graph]


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "int8"])
def test_indexes_come_back_as_what_they_were(dtype: str, tmp_path: Path) -> None:
    base = np.random.default_rng(1).integers(0, 99, (300, 8)).astype(dtype)
    for index in each_kind(base, dtype):
        expected = index.search(base[:20], 5)
        path = tmp_path / "an.index"
        index.save(path)
        assert path.read_bytes() == index.to_bytes()
        for again in [
            warpann.load(path, device="cpu"),
            warpann.load(str(path), device="cpu", mapped=True),
            warpann.load(path, device="cpu", mapped=False),
            warpann.from_bytes(index.to_bytes(), device="cpu"),
            warpann.from_bytes(bytearray(index.to_bytes()), "cpu"),
            pickle.loads(pickle.dumps(index)),
        ]:
            assert (type(again), again.dtype, again.metric) == (type(index), index.dtype, index.metric)
            reference.check_equal(again.search(base[:20], 5), (expected.distances, expected.ids))
            again.add(base[:1])
            assert len(again) == 301 and len(index) == 300


def test_damaged_bytes_are_refused() -> None:
    rng = np.random.default_rng(2)
    for index in each_kind(rng.normal(size=(50, 4)).astype(np.float32), "float32"):
        whole = index.to_bytes()
        for at in rng.integers(0, len(whole), 60):
            damaged = bytearray(whole)
            damaged[at] ^= 1 << int(rng.integers(0, 8))
            with pytest.raises(errors.BadFile):
                warpann.from_bytes(damaged, "cpu")
            with pytest.raises(errors.BadFile):
                warpann.from_bytes(whole[:at], "cpu")


def test_a_save_that_is_cancelled_keeps_the_old_file(tmp_path: Path) -> None:
    index = warpann.FlatIndex(4, device="cpu")
    index.add(np.zeros((3, 4), np.float32))
    path = tmp_path / "an.index"
    index.save(path)
    old = path.read_bytes()
    index.add(np.ones((3, 4), np.float32))
    with pytest.raises(errors.Cancelled):
        index.save(path, progress=lambda progress: False)
    assert path.read_bytes() == old and list(tmp_path.iterdir()) == [path]
    stages = []
    index.save(path, progress=stages.append)
    assert {progress.stage for progress in stages} == {"saving"} and stages[-1].done == stages[-1].total
    assert len(warpann.load(path, device="cpu")) == 6

"""The back end for vicinity. docs/PYTHON.md says how its own tests were run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("vicinity", reason="needs vicinity")

from vicinity import Metric, Vicinity

from warpann import errors
from warpann.vicinity import WarpannBackend

BASE = np.random.default_rng(1).normal(size=(300, 8)).astype(np.float32)
DISTANCES = {
    "cosine": lambda base, query: 1 - base @ query / np.linalg.norm(base, axis=1) / np.linalg.norm(query),
    "euclidean": lambda base, query: np.linalg.norm(base - query, axis=1),
    "l2sq": lambda base, query: ((base - query) ** 2).sum(axis=1),
}


@pytest.mark.parametrize("kind", ["flat", "graph"])
@pytest.mark.parametrize("metric", DISTANCES)
def test_vectors_come_go_and_are_found(metric: str, kind: str, tmp_path: Path) -> None:
    backend = WarpannBackend.from_vectors(BASE, Metric(metric), kind=kind, device="cpu")
    items = [f"item {row}" for row in range(300)]
    vicinity = Vicinity(items, backend)
    base = BASE

    def check() -> None:
        for query in (base[5], base[-1] + 1):
            distances = DISTANCES[metric](base, query)
            nearest = np.argsort(distances)[:7]
            found = vicinity.query(query, k=7)[0]
            assert [item for item, _ in found] == [items[row] for row in nearest]
            np.testing.assert_allclose([distance for _, distance in found], distances[nearest], rtol=1e-4, atol=1e-5)
            limit = float(distances[nearest[3]]) + 1e-4
            assert len(vicinity.query_threshold(query, threshold=limit, max_k=7)[0]) >= 4

    check()
    vicinity.delete(["item 3", "item 299", "item 100"])
    items, base = vicinity.items, np.delete(BASE, [3, 299, 100], axis=0)
    check()
    vicinity.insert(["new", "newer"], BASE[[3, 100]] + 0.5)
    items, base = vicinity.items, np.vstack([base, BASE[[3, 100]] + 0.5])
    check()
    backend.save(tmp_path)
    again = WarpannBackend.load(tmp_path)
    assert again.arguments == backend.arguments and (len(again), again.dim) == (299, 8)
    vicinity = Vicinity(items, again)
    check()


def test_arguments_that_do_not_fit() -> None:
    for arguments in ({"metric": "manhattan"}, {"metric": "inner_product"}, {"kind": "tree"}):
        with pytest.raises(ValueError, match="known are"):
            WarpannBackend.from_vectors(BASE, **arguments)
    backend = WarpannBackend.from_vectors(BASE, device="cpu")
    assert [len(row[0]) for row in backend.query(BASE[:2], 1000)] == [300, 300]
    with pytest.raises(ValueError):
        backend.query(BASE[:2], 0)
    with pytest.raises(IndexError):
        backend.delete([5, 300])
    with pytest.raises(errors.WrongDimension):
        backend.insert(BASE[:, :3])
    assert len(backend) == 300

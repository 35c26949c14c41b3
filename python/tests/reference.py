"""Search by numpy in float64: a reference that shares no code with the library."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np


def similarity(metric: str) -> bool:
    return metric != "l2"


def distances(metric: str, queries: Any, base: Any) -> Any:
    """float64, (queries, base)."""
    x, y = np.asarray(queries, np.float64), np.asarray(base, np.float64)
    if metric == "l2":
        return ((x[:, None, :] - y[None, :, :]) ** 2).sum(-1)
    products = x @ y.T
    if metric == "ip":
        return products
    norms = np.sqrt((x**2).sum(1)[:, None] * (y**2).sum(1)[None, :])
    return np.divide(products, norms, out=np.zeros_like(products), where=norms > 0)


def search(metric: str, queries: Any, vectors: dict[int, Any], k: int, accepted: Iterable[int] | None = None) -> Any:
    """float32 distances and int64 ids of the k best of ``vectors`` by (distance, id)."""
    ids = np.array(sorted(vectors if accepted is None else set(accepted) & set(vectors)), np.int64)
    worst = -np.inf if similarity(metric) else np.inf
    found_distances = np.full((len(queries), k), worst, np.float32)
    found_ids = np.full((len(queries), k), -1, np.int64)
    if len(ids):
        base = np.stack([vectors[int(id)] for id in ids])
        all_distances = distances(metric, queries, base).astype(np.float32)
        for row, of_query in enumerate(all_distances):
            order = np.lexsort((ids, -of_query if similarity(metric) else of_query))[:k]
            found_distances[row, : len(order)] = of_query[order]
            found_ids[row, : len(order)] = ids[order]
    return found_distances, found_ids


def check_equal(found: Any, expected: Any) -> None:
    """The bits of both are equal: for data whose float64 sums are exact."""
    np.testing.assert_array_equal(found.ids, expected[1])
    np.testing.assert_array_equal(found.distances, expected[0])

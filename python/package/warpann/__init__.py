"""Similarity search on GPUs and CPUs: exact search, inverted files, graphs, k-selection, k-means.

>>> import numpy as np, warpann
>>> base = np.random.default_rng(1).normal(size=(1000, 16)).astype(np.float32)
>>> index = warpann.FlatIndex(16)
>>> index.add(base)
>>> distances, ids = index.search(base[:2], k=3)
>>> ids[:, 0].tolist()
[0, 1]
"""

from __future__ import annotations

from warpann._results import (
    BatcherStatistics,
    BuildInfo,
    Clustering,
    DeviceInfo,
    FlatStatistics,
    GraphStatistics,
    IvfStatistics,
    Neighbors,
    Progress,
    RangeNeighbors,
    SearchStatistics,
    Selection,
    Tuned,
)
from warpann._warpann import (
    Batcher,
    Filter,
    FlatIndex,
    GraphIndex,
    Index,
    IndexWriter,
    IvfIndex,
    assign,
    build_info,
    devices,
    from_bytes,
    kmeans,
    knn_graph,
    load,
    recall,
    select_k,
    to_device,
)
from warpann.errors import WarpannError

__all__ = [
    "Batcher",
    "BatcherStatistics",
    "BuildInfo",
    "Clustering",
    "DeviceInfo",
    "Filter",
    "FlatIndex",
    "FlatStatistics",
    "GraphIndex",
    "GraphStatistics",
    "Index",
    "IndexWriter",
    "IvfIndex",
    "IvfStatistics",
    "Neighbors",
    "Progress",
    "RangeNeighbors",
    "SearchStatistics",
    "Selection",
    "Tuned",
    "WarpannError",
    "assign",
    "build_info",
    "devices",
    "from_bytes",
    "kmeans",
    "knn_graph",
    "load",
    "recall",
    "select_k",
    "to_device",
]

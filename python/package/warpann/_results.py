"""Results of calls, as named tuples: ``distances, ids = index.search(..)``, or ``found.ids``."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Neighbors(NamedTuple):
    """The neighbours of queries, best first, equal distances by lower id.

    A place without a neighbour has the id −1 and the distance +∞ (−∞ for similarities); such places come last.
    """

    distances: NDArray[np.float32]
    """float32, (queries, k), or (k,) for a single query: squared distances for the metric ``l2``."""
    ids: NDArray[np.int64]
    """int64, of the same shape."""


class RangeNeighbors(NamedTuple):
    """All vectors within a radius of each query, best first: those of query q stand at ``limits[q]:limits[q + 1]``."""

    limits: NDArray[np.int64]
    """int64, (queries + 1,)."""
    distances: NDArray[np.float32]
    """float32, (limits[-1],)."""
    ids: NDArray[np.int64]
    """int64, (limits[-1],)."""


class Progress(NamedTuple):
    """How far a long call has come."""

    stage: str
    """``training``, ``rotating``, ``quantizing``, ``adding``, ``searching``, ``linking`` or ``saving``."""
    done: int
    """Number of units that are done. It falls only where a stage begins again."""
    total: int
    """Number of units of the stage."""
    unit: str
    """``iterations``, ``rounds``, ``sub-quantizers``, ``vectors`` or ``bytes``."""


class SearchStatistics(NamedTuple):
    """What a search did; sums over all queries of the call."""

    queries: int
    accepted: int
    """Vectors that could be results: those that the filter accepts; without a filter all."""
    exact_queries: int
    """Queries of which no neighbour is missing: they were compared with every accepted vector, or in all lists."""
    lists: int
    """Lists that inverted files read."""
    most_lists: int
    """Most lists that were read for one query in one pass."""
    beam: int
    """Vectors that the walks of a graph kept; 0 without walks."""
    refined: int
    """Candidates that were ranked by the original vectors."""
    passes: int
    """Searches that the call made."""


class FlatStatistics(NamedTuple):
    """The size of a :class:`FlatIndex`."""

    vectors: int
    removed: int
    """Rows that removed vectors left, until ``compact``."""
    host_bytes: int
    device_bytes: int


class IvfStatistics(NamedTuple):
    """The lists of an :class:`IvfIndex`, and its size."""

    vectors: int
    lists: int
    empty_lists: int
    shortest: int
    mean: float
    longest: int
    imbalance: float
    """How many times as many vectors a search reads as with lists of equal length."""
    code_bytes: int
    bytes: int
    clamped_vectors: int
    """Vectors that were added beyond the reach of the codes since training; if they are many, train a new index."""
    clamped_components: int


class GraphStatistics(NamedTuple):
    """The graph of a :class:`GraphIndex`, and its size."""

    vectors: int
    removed: int
    edges: int
    """0 if searches are exact."""
    mean_degree: float
    starts: int
    reachable: int
    equal: int
    codes: bool
    """Whether walks compare codes of one byte a component."""
    outside: int
    host_bytes: int
    device_bytes: int


class BatcherStatistics(NamedTuple):
    """The requests and searches of a :class:`Batcher` until now."""

    answered: int
    failed: int
    expired: int
    cancelled: int
    full: int
    """Requests that were refused because too many waited."""
    searches: int
    waiting: int
    running: int
    limit: int
    """Most requests of the next search."""


class Selection(NamedTuple):
    """The best keys of each row, best first."""

    keys: NDArray[Any]
    """(rows, k), of the type of the keys."""
    positions: NDArray[np.int64]
    """int64, (rows, k): the column of each key, −1 in places without one."""


class Clustering(NamedTuple):
    """Centroids of k-means."""

    centroids: NDArray[np.float32]
    """float32, (clusters, dim)."""
    labels: NDArray[np.uint32] | None
    """uint32, (vectors,): the cluster of each vector, if labels were asked for."""
    sizes: NDArray[np.uint32]
    """uint32, (clusters,)."""
    objectives: NDArray[np.float64]
    """float64, (iterations,): the sum of squared distances (spherical: of inner products)."""


class Tuned(NamedTuple):
    """The least effort that reaches a recall."""

    effort: int
    """Number of probes, width of the beam, or 1 for an exact index."""
    recall: float
    """The recall that it reaches."""


class BuildInfo(NamedTuple):
    """The version of a wheel, and the kernels in it."""

    version: str
    compiler: str | None
    """Compiler of the kernels; None in a wheel for the CPU."""
    ptx: tuple[str, ...]
    """Architectures of the kernels in PTX, which the driver compiles for its GPU."""
    assembler: str | None
    """Assembler of the machine code; None in a wheel without machine code."""
    machine_code: tuple[str, ...]
    """Architectures of the machine code, each for the later GPUs of its generation as well."""


class DeviceInfo(NamedTuple):
    """A GPU of this machine."""

    number: int
    """The number in ``device="gpu:N"``."""
    name: str
    compute_capability: tuple[int, int]
    memory_total: int
    memory_free: int | None
    driver: str

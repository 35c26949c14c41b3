"""A back end for vicinity (the package ``vicinity``)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from vicinity.backends.base import AbstractBackend, BaseArgs
from vicinity.datatypes import Backend
from vicinity.utils import Metric

from warpann._warpann import FlatIndex, GraphIndex, Index, load

__all__ = ["WarpannArgs", "WarpannBackend"]

_INDEX, _ARGUMENTS = "index.warpann", "arguments.json"
_METRICS = {Metric.COSINE: "cosine", Metric.EUCLIDEAN: "l2", Metric.L2_SQUARED: "l2"}
_Found = list[tuple[NDArray[Any], NDArray[Any]]]


@dataclass
class WarpannArgs(BaseArgs):
    """Settings of the back end."""

    metric: Metric = Metric.COSINE
    """Cosine or Euclidean, also squared. A ``Vicinity`` turns negative distances, as of inner products, into 0."""
    kind: str = "flat"
    """The index: "flat" for exact search, "graph" for walks."""
    degree: int = 32
    """Edges of a vector, in a graph."""
    beam: int = 64
    """Vectors that a walk keeps."""
    device: str = "auto"
    """As for an index."""


class WarpannBackend(AbstractBackend[WarpannArgs]):
    """An exact index or a graph, on a GPU or on the CPU: ``Vicinity(items, WarpannBackend.from_vectors(vectors))``.

    Distances are 1 − cosine, or Euclidean distances. Vectors can be added and deleted.
    ``Vicinity.save`` needs a vicinity whose ``Backend`` has ``WARPANN``; :meth:`save` and :meth:`load` do not.
    """

    argument_class = WarpannArgs
    supported_metrics = set(_METRICS)

    def __init__(self, index: Index, arguments: WarpannArgs) -> None:
        super().__init__(arguments)
        self.index = index

    @classmethod
    def from_vectors(
        cls,
        vectors: NDArray[Any],
        metric: str | Metric = Metric.COSINE,
        kind: str = "flat",
        degree: int = 32,
        beam: int = 64,
        device: str = "auto",
        **_: Any,
    ) -> WarpannBackend:
        """Makes the index of some vectors.

        Args:
            vectors: (rows, dim).
            metric, kind, degree, beam, device: as those of :class:`WarpannArgs`.

        Raises:
            ValueError: another metric or kind.
            WarpannError: of the index.
        """
        arguments = WarpannArgs(Metric.from_string(metric), kind, degree, beam, device)
        name = _METRICS.get(arguments.metric)
        if name is None:
            raise ValueError(f"metric {arguments.metric.value!r}; known are {[known.value for known in _METRICS]}")
        index: Index
        if kind == "flat":
            index = FlatIndex(vectors.shape[1], metric=name, device=device)
        elif kind == "graph":
            index = GraphIndex(vectors.shape[1], metric=name, degree=degree, beam=beam, device=device)
        else:
            raise ValueError(f"kind {kind!r}; known are 'flat' and 'graph'")
        index.add(vectors)
        return cls(index, arguments)

    def __len__(self) -> int:
        return len(self.index)

    @property
    def backend_type(self) -> Backend:
        """``Backend.WARPANN``, which a vicinity that knows this back end has."""
        return Backend("warpann")

    @property
    def dim(self) -> int:
        """Number of components of a vector."""
        return self.index.dim

    def query(self, vectors: NDArray[Any], k: int) -> _Found:
        """Places and distances of the k nearest vectors of each query; of all if there are fewer.

        Raises:
            ValueError: k is less than 1.
        """
        if k < 1:
            raise ValueError(f"k should be >= 1, is now {k}")
        found = self.index.search(np.atleast_2d(vectors), k)
        # Graphs and exact searches find k vectors if there are as many.
        return [(ids[ids >= 0], self._distances(scores[ids >= 0])) for scores, ids in zip(*found, strict=True)]

    def threshold(self, vectors: NDArray[Any], threshold: float, max_k: int) -> _Found:
        """As :meth:`query`, of the ``max_k`` nearest those that are at most ``threshold`` away."""
        return [(ids[distances <= threshold], distances[distances <= threshold]) for ids, distances in self.query(vectors, max_k)]

    def insert(self, vectors: NDArray[Any]) -> None:
        """Adds vectors behind the last one."""
        self.index.add(vectors, range(len(self), len(self) + len(vectors)))

    def delete(self, indices: list[int]) -> None:
        """Deletes the vectors at some places; those behind move up, and are added again. O(vectors that move).

        Raises:
            IndexError: a place that no vector has.
        """
        left = np.delete(np.arange(len(self)), indices)
        # Ids are places, so the vectors behind the first that goes get new ones.
        moved = np.flatnonzero(left != np.arange(len(left)))
        if len(moved) > 0:
            self.index.upsert(self.index.reconstruct(left[moved]), moved)
        self.index.remove(np.arange(len(left), len(self)))

    def save(self, path: Path) -> None:
        """Saves the index and the arguments to a folder."""
        self.index.save(path / _INDEX)
        self.arguments.dump(path / _ARGUMENTS)

    @classmethod
    def load(cls, path: Path) -> WarpannBackend:
        """Loads what :meth:`save` has written."""
        arguments = WarpannArgs.load(path / _ARGUMENTS)
        return cls(load(path / _INDEX, device=arguments.device), arguments)

    def _distances(self, scores: NDArray[Any]) -> NDArray[Any]:
        match self.arguments.metric:
            case Metric.COSINE:
                return 1 - scores
            case Metric.EUCLIDEAN:
                return np.sqrt(scores)
            case _:
                return scores

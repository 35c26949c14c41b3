"""Estimators with the interfaces of scikit-learn: nearest neighbours by any index of warpann.

:class:`KNeighborsTransformer` makes the sparse graph of neighbours that estimators with ``metric="precomputed"`` take
(DBSCAN, t-SNE, Isomap, UMAP, scanpy); :class:`NearestNeighbors` has the searches. Both need scikit-learn.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csr_matrix  # type: ignore[import-untyped]
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin  # type: ignore[import-untyped]
from sklearn.utils.validation import check_is_fitted, validate_data  # type: ignore[import-untyped]

import warpann

__all__ = ["KNeighborsTransformer", "NearestNeighbors"]

_METRICS = {"euclidean": "l2", "l2": "l2", "sqeuclidean": "l2", "cosine": "cosine"}


class NearestNeighbors(BaseEstimator):  # type: ignore[misc]
    """Searches for neighbours, as scikit-learn's class of this name.

    Args:
        n_neighbors: neighbours of a query unless a call says otherwise.
        radius: radius of ``radius_neighbors`` unless a call says otherwise.
        metric: "euclidean", "sqeuclidean" or "cosine" (1 − similarity).
        index: "flat" (exact), "ivf" or "graph".
        lists: lists of inverted files; None means 4 √n.
        probes: lists that a search reads; None means the number of the index.
        beam: vectors that a walk in a graph keeps; None means the number of the index.
        device: as for an index.

    Vectors become float32 once, and distances are those of float32 vectors, in the type of the queries.

    Attributes:
        index_: the index.
        n_features_in_: components of a vector.
        n_samples_fit_: number of vectors.
    """

    def __init__(
        self,
        n_neighbors: int = 5,
        radius: float = 1.0,
        *,
        metric: str = "euclidean",
        index: str = "flat",
        lists: int | None = None,
        probes: int | None = None,
        beam: int | None = None,
        device: str = "auto",
    ) -> None:
        self.n_neighbors = n_neighbors
        self.radius = radius
        self.metric = metric
        self.index = index
        self.lists = lists
        self.probes = probes
        self.beam = beam
        self.device = device

    def fit(self, X: Any, y: Any = None) -> Any:
        """Makes the index of the vectors of X, (rows, components)."""
        if self.metric not in _METRICS:
            raise ValueError(f"metric {self.metric!r}: one of {', '.join(_METRICS)} is needed")
        X = validate_data(self, X, dtype=[np.float64, np.float32])
        rows, dim = X.shape
        settings: dict[str, Any] = {"metric": _METRICS[self.metric], "device": self.device}
        made: Any
        if self.index == "flat":
            made = warpann.FlatIndex(dim, **settings)
        elif self.index == "ivf":
            made = warpann.IvfIndex(dim, self.lists or min(rows, round(4 * rows**0.5)), **settings)
            made.train(X)
        elif self.index == "graph":
            made = warpann.GraphIndex(dim, **settings)
        else:
            raise ValueError(f"index {self.index!r}: flat, ivf or graph is needed")
        made.add(X)
        self.index_ = made
        self.n_samples_fit_ = rows
        return self

    def _distances(self, distances: Any, dtype: Any) -> Any:
        """The distances of the metric of scikit-learn."""
        distances = distances.astype(dtype)
        if self.metric == "cosine":
            # Rounding may make a similarity greater than 1.
            return np.maximum(1 - distances, 0)
        return distances if self.metric == "sqeuclidean" else np.sqrt(distances)

    def _count(self, n_neighbors: int | None, available: int) -> int:
        count = self.n_neighbors if n_neighbors is None else n_neighbors
        if not isinstance(count, (int, np.integer)) or count < 1:
            raise ValueError(f"n_neighbors is {count!r}; an integer of at least 1 is needed")
        if count > available:
            raise ValueError(
                f"Expected n_neighbors <= n_samples_fit, but n_neighbors = {count}, n_samples_fit = {available}"
            )
        return int(count)

    def kneighbors(self, X: Any = None, n_neighbors: int | None = None, return_distance: bool = True) -> Any:
        """The nearest vectors of each row of X, best first; of None: of each fitted vector, without itself.

        Returns:
            (distances, ids), both (rows, n_neighbors), or ids.
        """
        check_is_fitted(self, "index_")
        options = {"probes": self.probes, "beam": self.beam}
        if X is None:
            count = self._count(n_neighbors, self.n_samples_fit_ - 1)
            own = np.arange(self.n_samples_fit_)
            found = self.index_.search(self.index_.reconstruct(own), count + 1, **options)
            # Without the vector itself, or the last one if others are equally near.
            keep = found.ids != own[:, None]
            keep[keep.all(axis=1), -1] = False
            distances, ids, dtype = found.distances[keep], found.ids[keep], np.float64
            distances, ids = distances.reshape(-1, count), ids.reshape(-1, count)
        else:
            X = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
            distances, ids = self.index_.search(X, self._count(n_neighbors, self.n_samples_fit_), **options)
            dtype = X.dtype
        return (self._distances(distances, dtype), ids) if return_distance else ids

    def kneighbors_graph(self, X: Any = None, n_neighbors: int | None = None, mode: str = "connectivity") -> Any:
        """The neighbours as a sparse matrix (rows, fitted vectors): ones ("connectivity") or distances ("distance")."""
        if mode not in ("connectivity", "distance"):
            raise ValueError(f"mode {mode!r}: connectivity or distance is needed")
        distances, ids = self.kneighbors(X, n_neighbors)
        return _matrix(distances if mode == "distance" else np.ones_like(distances), ids, self.n_samples_fit_)

    def radius_neighbors(
        self, X: Any, radius: float | None = None, return_distance: bool = True, sort_results: bool = True
    ) -> Any:
        """All vectors within the radius of each row of X, best first.

        Returns:
            (distances, ids), each an array of arrays, or ids.
        """
        check_is_fitted(self, "index_")
        X = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        radius = self.radius if radius is None else radius
        asked = {"cosine": 1 - radius, "sqeuclidean": radius}.get(self.metric, radius * radius)
        limits, distances, ids = self.index_.range_search(X, asked, probes=self.probes)
        rows = [slice(start, end) for start, end in zip(limits, limits[1:])]
        arrays = np.empty(len(rows), object), np.empty(len(rows), object)
        for row, part in enumerate(rows):
            arrays[0][row], arrays[1][row] = self._distances(distances[part], X.dtype), ids[part]
        return arrays if return_distance else arrays[1]

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "index_")


class KNeighborsTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, NearestNeighbors):  # type: ignore[misc]
    """Makes the sparse graph of neighbours, as scikit-learn's class of this name.

    Args:
        n_neighbors: neighbours of each row. With ``mode="distance"`` there is one more, because a fitted vector is its
            own neighbour.
        mode: "distance" or "connectivity".
        metric, index, lists, probes, beam, device: as for :class:`NearestNeighbors`.
    """

    def __init__(
        self,
        n_neighbors: int = 5,
        *,
        mode: str = "distance",
        metric: str = "euclidean",
        index: str = "flat",
        lists: int | None = None,
        probes: int | None = None,
        beam: int | None = None,
        device: str = "auto",
    ) -> None:
        super().__init__(
            n_neighbors, metric=metric, index=index, lists=lists, probes=probes, beam=beam, device=device
        )
        del self.radius
        self.mode = mode

    def fit(self, X: Any, y: Any = None) -> Any:
        """Makes the index of the vectors of X, (rows, components)."""
        if self.mode not in ("distance", "connectivity"):
            raise ValueError(f"mode {self.mode!r}: connectivity or distance is needed")
        super().fit(X)
        self._n_features_out = self.n_samples_fit_
        return self

    def transform(self, X: Any) -> Any:
        """The neighbours of each row of X: a sparse matrix (rows, fitted vectors) in the format CSR, rows best first."""
        check_is_fitted(self, "index_")
        more = self.n_neighbors + (self.mode == "distance")
        return self.kneighbors_graph(X, more, self.mode)

    def fit_transform(self, X: Any, y: Any = None) -> Any:
        """Fits X, and makes the graph of its rows."""
        return self.fit(X).transform(X)


def _matrix(values: Any, ids: Any, columns: int) -> Any:
    """A CSR matrix of the neighbours that were found."""
    found = ids >= 0
    starts = np.concatenate([[0], np.cumsum(found.sum(axis=1))])
    return csr_matrix((values[found], ids[found], starts), shape=(len(ids), columns))

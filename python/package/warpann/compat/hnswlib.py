"""The interface of hnswlib (0.8.0): its programs run with this module in the place of theirs.

::

    from warpann.compat import hnswlib              # in your own program
    sys.modules["hnswlib"] = warpann.compat.hnswlib  # before a program that imports hnswlib

``Index`` is a :class:`warpann.GraphIndex` with at most 2 M edges of a vector, and ef is its beam. ``BFIndex`` is a
:class:`warpann.FlatIndex`. Files are those of hnswlib, in both directions.

Other than in hnswlib:

- A call uses the threads of the library: ``num_threads`` is kept and has no effect. ``ef_construction`` and
  ``random_seed`` have no effect on the graph either; files keep ``ef_construction``.
- An index of at most 8,192 vectors compares all of them.
- A filter function is called once for each vector of the index, not for those that a search meets.
- A call that fails adds nothing. Vectors that are not finite are refused, as are labels above 2**63 - 1.
- Methods before ``init_index`` or ``load_index`` raise RuntimeError.
- ``Index(params)`` is left out; ``Index(index=other)`` and pickle copy an index.
"""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

import warpann

__all__ = ["BFIndex", "Index"]

_SPACES = ("l2", "ip", "cosine")
# The header of an index file, and the places of numbers in it: capacity, nodes, bytes of a node, places of label and
# vector; M and efConstruction.
_HEADER = struct.Struct("<6QiI3QdQ")
_CAPACITY, _NODES, _NODE, _LABEL, _VECTOR, _M, _EF_CONSTRUCTION = 1, 2, 3, 4, 5, 10, 12
# The byte of a node that says by its lowest bit that it is deleted.
_MARK = 2


class _Base:
    """What both kinds of index have."""

    def __init__(self, space: str, dim: int) -> None:
        if space not in _SPACES:
            raise RuntimeError("Space name must be one of l2, ip, or cosine.")
        self.space = space
        self.dim = dim
        self.num_threads = os.cpu_count() or 1
        self._index: Any = None
        self._capacity = 0
        self._next = 0

    def __repr__(self) -> str:
        return f"<hnswlib.{type(self).__name__}(space='{self.space}', dim={self.dim})>"

    def set_num_threads(self, num_threads: int) -> None:
        self.num_threads = num_threads

    def get_max_elements(self) -> int:
        return self._capacity

    def get_current_count(self) -> int:
        return len(self._open())

    def _open(self) -> Any:
        if self._index is None:
            raise RuntimeError("The index is not initiated.")
        return self._index

    def _start(self, index: Any, capacity: int) -> None:
        if self._index is not None:
            raise RuntimeError("The index is already initiated.")
        self._index, self._capacity, self._next = index, capacity, 0

    def _vectors(self, data: Any) -> NDArray[np.float32]:
        vectors = np.ascontiguousarray(data, np.float32)
        if vectors.ndim not in (1, 2):
            raise RuntimeError(
                "Input vector data wrong shape. "
                f"Number of dimensions {vectors.ndim}. Data must be a 1D or 2D array."
            )
        vectors = np.atleast_2d(vectors)
        if vectors.shape[1] != self.dim:
            raise RuntimeError("Wrong dimensionality of the vectors")
        return vectors

    def _stored(self, data: Any) -> NDArray[np.float32]:
        """Vectors as the index keeps them: for cosine divided by their norms."""
        vectors = self._vectors(data)
        if self.space != "cosine":
            return vectors
        norms = np.sqrt(np.einsum("ij,ij->i", vectors, vectors)) + np.float32(1e-30)
        units: NDArray[np.float32] = vectors / norms[:, None]
        return units

    def _labels(self, ids: Any, rows: int) -> NDArray[np.int64]:
        if ids is None:
            return np.arange(self._next, self._next + rows, dtype=np.int64)
        labels = np.asarray(ids)
        if labels.shape != (rows,) and not (labels.ndim == 0 and rows == 1):
            raise RuntimeError(
                f"The input label shape {labels.ndim} does not match the input data vector shape {rows}"
            )
        return np.atleast_1d(labels).astype(np.int64)

    def _found(self, found: Any) -> tuple[NDArray[np.uint64], NDArray[np.float32]]:
        if (found.ids < 0).any():
            raise RuntimeError(
                "Cannot return the results in a contiguous 2D array. Probably ef or M is too small"
            )
        distances = found.distances if self.space == "l2" else 1 - found.distances
        return found.ids.astype(np.uint64), distances


def _last_of_each(labels: NDArray[np.int64]) -> NDArray[np.intp]:
    """The place of the last occurrence of each label: of several vectors with one label the last stays."""
    _, places = np.unique(labels[::-1], return_index=True)
    return len(labels) - 1 - places


class Index(_Base):
    """An approximate index: ``hnswlib.Index``."""

    # Labels that are marked as deleted. Their vectors stay in the index, and searches leave them out.
    _deleted: set[int]

    def __init__(self, space: str | None = None, dim: int | None = None, *, index: Index | None = None) -> None:
        if index is not None:
            # A snapshot shares memory until one of the two changes.
            self.__dict__.update(index.__dict__)
            self._index = None if index._index is None else index._index.snapshot()
            self._deleted = set(index._deleted)
            return
        if space is None or dim is None:
            raise TypeError("Index needs a space and a dim")
        super().__init__(space, dim)
        self._ef = 10
        self._m = self._ef_construction = 0
        self._allow_replace = False
        self._deleted = set()
        self._live: warpann.Filter | None = None

    def init_index(
        self,
        max_elements: int,
        M: int = 16,
        ef_construction: int = 200,
        random_seed: int = 100,
        allow_replace_deleted: bool = False,
    ) -> None:
        degree = min(max(2 * M, 4), 256)
        index = warpann.GraphIndex(self.dim, metric=self.space, degree=degree, seed=random_seed)
        self._start(index, max_elements)
        self._m, self._ef_construction = M, ef_construction
        self._allow_replace = allow_replace_deleted

    def add_items(
        self, data: Any, ids: Any = None, num_threads: int = -1, replace_deleted: bool = False
    ) -> None:
        index, vectors = self._open(), self._stored(data)
        if replace_deleted and not self._allow_replace:
            raise RuntimeError("Replacement of deleted elements is disabled in constructor")
        labels = self._labels(ids, len(vectors))
        rows = len(labels)
        last = _last_of_each(labels)
        vectors, labels = vectors[last], labels[last]
        known = np.array([label in index for label in labels.tolist()], dtype=bool)
        again = self._deleted.intersection(labels.tolist()) if self._deleted else set()
        if again and self._allow_replace:
            raise RuntimeError(
                "Can't use addPoint to update a deleted element. It will be replaced with a new one."
            )
        new = len(labels) - int(known.sum())
        replaced: list[int] = []
        if replace_deleted:
            replaced = sorted(self._deleted)[:new]
        if len(index) + new - len(replaced) > self._capacity:
            raise RuntimeError("The number of elements exceeds the specified limit")
        # The additions come first, because they check the vectors: a call that fails changes nothing.
        if known.any():
            index.upsert(vectors, labels)
        else:
            index.add(vectors, labels)
        index.remove(replaced)
        self._set_deleted(self._deleted - again - set(replaced))
        self._next += rows

    def _set_deleted(self, deleted: set[int]) -> None:
        self._deleted = deleted
        self._live = warpann.Filter.excluding(sorted(deleted)) if deleted else None

    def mark_deleted(self, label: int) -> None:
        label = int(label)
        if label not in self._open():
            raise RuntimeError("Label not found")
        if label in self._deleted:
            raise RuntimeError("The requested to delete element is already deleted")
        self._deleted.add(label)
        self._live = None

    def unmark_deleted(self, label: int) -> None:
        label = int(label)
        if label not in self._open():
            raise RuntimeError("Label not found")
        if label not in self._deleted:
            raise RuntimeError("The requested to undelete element is not deleted")
        self._deleted.remove(label)
        self._live = None

    def _filter(self, accepts: Callable[[int], bool] | None) -> Any:
        if accepts is not None:
            deleted = self._deleted
            return lambda label: label not in deleted and accepts(label)
        if self._live is None and self._deleted:
            self._set_deleted(self._deleted)
        return self._live

    def knn_query(
        self, data: Any, k: int = 1, num_threads: int = -1, filter: Callable[[int], bool] | None = None
    ) -> tuple[NDArray[np.uint64], NDArray[np.float32]]:
        index, queries = self._open(), self._stored(data)
        return self._found(index.search(queries, k, beam=max(self._ef, k), filter=self._filter(filter)))

    def get_items(self, ids: Iterable[int] | None = None, return_type: str = "numpy") -> Any:
        if return_type not in ("numpy", "list"):
            raise ValueError('return_type should be "numpy" or "list"')
        index = self._open()
        labels = np.asarray([] if ids is None else ids)
        if labels.ndim == 0:
            raise ValueError("get_items accepts a list of indices and returns a list of vectors")
        # Of more dimensions, hnswlib takes the first column.
        labels = labels.reshape(len(labels), -1)[:, 0].astype(np.int64) if labels.size else labels
        if any(label in self._deleted or label not in index for label in labels.tolist()):
            raise RuntimeError("Label not found")
        items = index.reconstruct(labels.astype(np.int64)) if labels.size else np.zeros(0, np.float32)
        return items.tolist() if return_type == "list" else items

    def get_ids_list(self) -> list[int]:
        labels: list[int] = self._open().ids().tolist()
        return labels

    def set_ef(self, ef: int) -> None:
        self._ef = ef

    @property
    def ef(self) -> int:
        return self._ef

    @ef.setter
    def ef(self, ef: int) -> None:
        self._ef = ef

    @property
    def M(self) -> int:
        return self._m

    @property
    def ef_construction(self) -> int:
        return self._ef_construction

    @property
    def max_elements(self) -> int:
        return self._capacity

    @property
    def element_count(self) -> int:
        return 0 if self._index is None else len(self._index)

    def resize_index(self, new_size: int) -> None:
        if new_size < len(self._open()):
            raise RuntimeError("Cannot resize, max element is less than the current number of elements")
        self._capacity = new_size

    def save_index(self, path_to_index: str) -> None:
        index = self._open()
        folder = os.path.dirname(os.path.abspath(path_to_index))
        # The file gets its name when it is complete, with the marks.
        with tempfile.TemporaryDirectory(dir=folder) as part_folder:
            part = os.path.join(part_folder, "index")
            index.save_hnsw(part, "hnswlib")
            with open(part, "r+b") as file:
                header = list(_HEADER.unpack(file.read(_HEADER.size)))
                header[_CAPACITY], header[_EF_CONSTRUCTION] = self._capacity, self._ef_construction
                # Additions by hnswlib choose M edges.
                header[_M] = min(self._m, header[_M])
                file.seek(0)
                file.write(_HEADER.pack(*header))
            if self._deleted:
                nodes = _nodes(part, header, "r+")
                labels = nodes[:, header[_LABEL] :].view(np.uint64)[:, 0]
                nodes[np.isin(labels, np.fromiter(self._deleted, np.uint64)), _MARK] |= 1
                nodes.flush()
            os.replace(part, path_to_index)

    def load_index(
        self, path_to_index: str, max_elements: int = 0, allow_replace_deleted: bool = False
    ) -> None:
        index = warpann.GraphIndex.load_hnsw(path_to_index, metric=self.space)
        if index.dim != self.dim:
            raise RuntimeError("Wrong dimensionality of the vectors")
        with open(path_to_index, "rb") as file:
            header = list(_HEADER.unpack(file.read(_HEADER.size)))
        deleted = np.zeros(0, np.uint64)
        if header[_NODES]:
            nodes = _nodes(path_to_index, header, "r")
            marked = nodes[nodes[:, _MARK] & 1 != 0]
            deleted = np.ascontiguousarray(marked[:, header[_LABEL] :]).view(np.uint64)[:, 0]
            if len(deleted):
                vectors = np.ascontiguousarray(marked[:, header[_VECTOR] : header[_LABEL]]).view(np.float32)
                index.add(vectors, deleted.astype(np.int64))
        self._index = index
        # As in hnswlib, a capacity below the number of vectors means that of the file.
        self._capacity = max_elements if max_elements >= header[_NODES] else header[_CAPACITY]
        self._next = header[_NODES]
        self._m, self._ef_construction = header[_M], header[_EF_CONSTRUCTION]
        self._ef = 10
        self._allow_replace = allow_replace_deleted
        self._set_deleted(set(deleted.tolist()))

    def index_file_size(self) -> int:
        # The size depends on the levels, which are chosen when the file is made.
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "index")
            self._open().save_hnsw(path, "hnswlib")
            return os.path.getsize(path)


def _nodes(path: str, header: list[Any], mode: Any) -> Any:
    """The bytes of each node in a file."""
    shape = (header[_NODES], header[_NODE])
    return np.memmap(path, np.uint8, mode, _HEADER.size, shape)


class BFIndex(_Base):
    """An exact index: ``hnswlib.BFIndex``. For the space cosine, queries are not divided by their norms, as there."""

    def init_index(self, max_elements: int) -> None:
        self._start(self._new(), max_elements)

    def _new(self) -> warpann.FlatIndex:
        return warpann.FlatIndex(self.dim, metric="l2" if self.space == "l2" else "ip")

    def add_items(self, data: Any, ids: Any = None) -> None:
        index, vectors = self._open(), self._stored(data)
        labels = self._labels(ids, len(vectors))
        rows = len(labels)
        last = _last_of_each(labels)
        vectors, labels = vectors[last], labels[last]
        new = sum(label not in index for label in labels.tolist())
        if len(index) + new > self._capacity:
            raise RuntimeError("The number of elements exceeds the specified limit")
        index.upsert(vectors, labels)
        self._next += rows

    def delete_vector(self, label: int) -> None:
        self._open().remove([int(label)], missing_ok=True)

    def knn_query(
        self, data: Any, k: int = 1, num_threads: int = -1, filter: Callable[[int], bool] | None = None
    ) -> tuple[NDArray[np.uint64], NDArray[np.float32]]:
        return self._found(self._open().search(self._vectors(data), k, filter=filter))

    def _row(self) -> np.dtype[Any]:
        return np.dtype([("vector", "<f4", (self.dim,)), ("label", "<u8")])

    def save_index(self, path_to_index: str) -> None:
        labels = self._open().ids()
        rows = np.zeros(self._capacity, self._row())
        rows["label"][: len(labels)] = labels
        rows["vector"][: len(labels)] = self._index.reconstruct(labels)
        with open(path_to_index, "wb") as file:
            file.write(struct.pack("<3Q", self._capacity, rows.itemsize, len(labels)))
            rows.tofile(file)

    def load_index(self, path_to_index: str, max_elements: int = 0) -> None:
        with open(path_to_index, "rb") as file:
            header = file.read(24)
            if len(header) < 24:
                raise RuntimeError("Index seems to be corrupted or unsupported")
            capacity, size, count = struct.unpack("<3Q", header)
            if size != self._row().itemsize or count > capacity or os.path.getsize(path_to_index) != 24 + capacity * size:
                raise RuntimeError("Index seems to be corrupted or unsupported")
            rows = np.fromfile(file, self._row(), count)
        index = self._new()
        index.add(rows["vector"], rows["label"].astype(np.int64))
        self._index, self._capacity, self._next = index, capacity, count

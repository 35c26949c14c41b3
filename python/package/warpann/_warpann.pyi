"""The extension module. Docstrings are those of the compiled module."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TypeAlias, TypeVar, final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from typing_extensions import disjoint_base

from warpann._answer import Answer
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

__all__ = [
    "Batcher",
    "DeviceTensor",
    "Filter",
    "FlatIndex",
    "GraphIndex",
    "Index",
    "IndexWriter",
    "IvfIndex",
    "PendingRequest",
    "Ranks",
    "Workspace",
    "arrow_vectors",
    "assign",
    "build_info",
    "devices",
    "from_bytes",
    "kmeans",
    "knn_graph",
    "load",
    "merge_parts",
    "recall",
    "select_k",
    "to_device",
]

_T = TypeVar("_T")

class _ArrowArray(Protocol):
    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]: ...

class _Tensor(Protocol):
    def __dlpack_device__(self) -> tuple[Any, int]: ...
    def __dlpack__(self, *, stream: Any = None) -> Any: ...

class _Communicator(Protocol):
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def bcast(self, value: Any, root: int) -> Any: ...
    def gather(self, value: Any, root: int) -> list[Any] | None: ...

_Vectors: TypeAlias = ArrayLike | _ArrowArray
_Ids: TypeAlias = ArrayLike | Iterable[int]
_Accepts: TypeAlias = Filter | NDArray[np.bool_] | ArrayLike | Iterable[int] | Callable[[int], bool]
_Progress: TypeAlias = Callable[[Progress], bool | None]
_Path: TypeAlias = str | os.PathLike[str]
_Found: TypeAlias = tuple[NDArray[np.float32], NDArray[np.int64]]

@final
class Filter:
    def __new__(cls, accepts: _Accepts, /) -> Self: ...
    @staticmethod
    def excluding(ids: _Ids, /) -> Filter: ...
    def accepted(self) -> int | None: ...
    def __and__(self, other: Filter, /) -> Filter: ...
    def __rand__(self, other: Filter, /) -> Filter: ...
    def __or__(self, other: Filter, /) -> Filter: ...
    def __ror__(self, other: Filter, /) -> Filter: ...
    def __sub__(self, other: Filter, /) -> Filter: ...
    def __rsub__(self, other: Filter, /) -> Filter: ...

@disjoint_base
class Index:
    @property
    def dim(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    @property
    def metric(self) -> str: ...
    @property
    def device(self) -> str: ...
    def __len__(self) -> int: ...
    def __contains__(self, id: object, /) -> bool: ...
    def ids(self) -> NDArray[np.int64]: ...
    def filter(self, accepts: Callable[[int], bool], /) -> Filter: ...
    def reconstruct(self, ids: _Ids, /) -> NDArray[np.float32]: ...
    def add(self, vectors: _Vectors | _Tensor, ids: _Ids | None = None, *, progress: _Progress | None = None) -> None: ...
    def upsert(self, vectors: _Vectors, ids: _Ids) -> int: ...
    def remove(self, ids: _Ids, *, missing_ok: bool = False) -> int: ...
    def clear(self) -> None: ...
    def merge(self, other: Index, /) -> None: ...
    def compact(self) -> None: ...
    def move_to(self, device: str, /) -> None: ...
    def snapshot(self) -> Self: ...
    def search(
        self,
        queries: _Vectors,
        k: int,
        *,
        filter: _Accepts | None = None,
        probes: int | None = None,
        beam: int | None = None,
        radius: float | None = None,
        widen: bool = True,
    ) -> Neighbors: ...
    def search_with_statistics(
        self,
        queries: _Vectors,
        k: int,
        *,
        filter: _Accepts | None = None,
        probes: int | None = None,
        beam: int | None = None,
        radius: float | None = None,
        widen: bool = True,
    ) -> tuple[Neighbors, SearchStatistics]: ...
    def range_search(
        self, queries: _Vectors, radius: float, *, filter: _Accepts | None = None, probes: int | None = None
    ) -> RangeNeighbors: ...
    def device_workspace(
        self,
        queries: int,
        k: int,
        *,
        filter: _Accepts | None = None,
        probes: int | None = None,
        beam: int | None = None,
    ) -> Workspace: ...
    def tune(self, queries: _Vectors, k: int, recall: float) -> Tuned: ...
    def save(self, path: _Path, *, progress: _Progress | None = None) -> None: ...
    def to_bytes(self) -> bytes: ...
    def statistics(self) -> FlatStatistics | IvfStatistics | GraphStatistics: ...
    def __reduce__(self) -> tuple[Any, tuple[bytes, str, int | None]]: ...

@final
class FlatIndex(Index):
    def __new__(
        cls,
        dim: int,
        *,
        metric: str = "l2",
        dtype: object = None,
        device: str = "auto",
        memory_budget: int | None = None,
    ) -> Self: ...
    def statistics(self) -> FlatStatistics: ...
    def save_faiss(self, path: _Path) -> None: ...
    @staticmethod
    def load_faiss(path: _Path, *, device: str = "auto", memory_budget: int | None = None) -> FlatIndex: ...

@final
class IvfIndex(Index):
    def __new__(
        cls,
        dim: int,
        lists: int,
        *,
        metric: str = "l2",
        encoding: str = "flat",
        dtype: object = None,
        device: str = "auto",
        memory_budget: int | None = None,
        seed: int = 1,
        iterations: int = 20,
        points_per_centroid: int = 256,
    ) -> Self: ...
    def statistics(self) -> IvfStatistics: ...
    def train(self, vectors: _Vectors | _Tensor, *, progress: _Progress | None = None) -> None: ...
    @property
    def is_trained(self) -> bool: ...
    @property
    def lists(self) -> int: ...
    @property
    def encoding(self) -> str: ...
    @property
    def centroids(self) -> NDArray[np.float32]: ...
    @property
    def codebooks(self) -> NDArray[np.float32] | None: ...
    @property
    def probes(self) -> int: ...
    @probes.setter
    def probes(self, probes: int, /) -> None: ...
    def search_refined(
        self,
        queries: _Vectors,
        k: int,
        base: _Vectors,
        *,
        ids: _Ids | None = None,
        refine: float = 4.0,
        prove: bool | str | None = None,
        filter: _Accepts | None = None,
        probes: int | None = None,
        radius: float | None = None,
        widen: bool = True,
    ) -> tuple[Neighbors, SearchStatistics]: ...
    def save_faiss(self, path: _Path) -> None: ...
    @staticmethod
    def load_faiss(
        path: _Path,
        *,
        metric: str | None = None,
        device: str = "auto",
        memory_budget: int | None = None,
    ) -> IvfIndex: ...

@final
class GraphIndex(Index):
    def __new__(
        cls,
        dim: int,
        *,
        metric: str = "l2",
        degree: int = 32,
        beam: int = 64,
        exact_ratio: int = 128,
        codes: bool = True,
        dtype: object = None,
        device: str = "auto",
        memory_budget: int | None = None,
        seed: int = 1,
    ) -> Self: ...
    @property
    def degree(self) -> int: ...
    @property
    def beam(self) -> int: ...
    @beam.setter
    def beam(self, beam: int, /) -> None: ...
    def statistics(self) -> GraphStatistics: ...
    def edges(self) -> NDArray[np.int64] | None: ...
    def save_hnsw(self, path: _Path, format: str) -> None: ...
    @staticmethod
    def load_hnsw(
        path: _Path,
        *,
        metric: str | None = None,
        exact_ratio: int = 128,
        codes: bool = True,
        device: str = "auto",
        memory_budget: int | None = None,
    ) -> GraphIndex: ...

@final
class IndexWriter:
    def __new__(cls, index: Index, /) -> Self: ...
    def current(self) -> Any: ...
    @property
    def version(self) -> int: ...
    def change(self, function: Callable[[Any], _T], /) -> _T: ...
    def release(self) -> None: ...

@final
class Batcher:
    def __new__(
        cls, index: Index | IndexWriter, *, waiting: int = 65536, target: float = 0.002, workers: int | None = None
    ) -> Self: ...
    def submit(
        self,
        query: _Vectors,
        k: int,
        *,
        filter: _Accepts | None = None,
        probes: int | None = None,
        beam: int | None = None,
        radius: float | None = None,
        widen: bool = True,
        timeout: float | None = None,
    ) -> Answer: ...
    def statistics(self) -> BatcherStatistics: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, *_exception: type[BaseException] | BaseException | TracebackType | None
    ) -> None: ...

@final
class DeviceTensor:
    @property
    def shape(self) -> tuple[int, ...]: ...
    def numpy(self) -> NDArray[Any]: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...

@final
class Workspace:
    def search(
        self, queries: _Tensor, *, out: tuple[_Tensor, _Tensor] | None = None, stream: int | None = None
    ) -> tuple[Any, Any]: ...
    def range_search(
        self,
        queries: _Tensor,
        radius: float,
        *,
        out: tuple[_Tensor, _Tensor, _Tensor] | None = None,
        stream: int | None = None,
    ) -> tuple[Any, Any, Any]: ...
    @property
    def device_bytes(self) -> int: ...

@final
class PendingRequest:
    def cancel(self) -> None: ...

@final
class Ranks:
    def __new__(cls, communicator: _Communicator, /) -> Self: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def broadcast(self, data: bytes, /) -> bytes: ...
    def gather(self, data: bytes, /) -> list[bytes]: ...
    def agree(self, failed: BaseException | None, /) -> None: ...
    def merge(
        self, metric: str, found: _Found | None, failed: BaseException | None, /
    ) -> Neighbors | None: ...
    def part(self, path: _Path, /) -> Path: ...

def merge_parts(metric: str, parts: list[_Found], /) -> Neighbors: ...
def load(
    path: _Path, *, device: str = "auto", memory_budget: int | None = None, mapped: bool | None = None
) -> Any: ...
def from_bytes(
    data: bytes | bytearray | memoryview, device: str = "auto", memory_budget: int | None = None
) -> Any: ...
def select_k(keys: ArrayLike, k: int, *, largest: bool = False, device: str = "auto") -> Selection: ...
def kmeans(
    vectors: _Vectors | _Tensor,
    clusters: int,
    *,
    iterations: int = 20,
    seed: int = 0,
    start: str | ArrayLike | None = None,
    spherical: bool = False,
    points_per_centroid: int | None = 256,
    balanced: float | None = None,
    weights: ArrayLike | None = None,
    labels: bool = False,
    device: str = "auto",
    memory_budget: int | None = None,
    progress: _Progress | None = None,
) -> Clustering: ...
def assign(
    vectors: _Vectors, centroids: ArrayLike, *, spherical: bool = False, device: str = "auto"
) -> NDArray[np.uint32]: ...
def knn_graph(index: Index, vectors: _Vectors, k: int, *, progress: _Progress | None = None) -> Neighbors: ...
def build_info() -> BuildInfo: ...
def devices() -> list[DeviceInfo]: ...
def to_device(array: NDArray[Any], gpu: int = 0) -> DeviceTensor: ...
def recall(found: ArrayLike, truth: ArrayLike) -> float: ...
def arrow_vectors(value: _ArrowArray, argument: str, /) -> NDArray[Any]: ...

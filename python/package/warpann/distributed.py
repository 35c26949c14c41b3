"""One index on several machines: each rank (a process) holds a shard, and all ranks together search as one index.

The ranks are those of a communicator: mpi4py's (``MPI.COMM_WORLD``), :class:`TorchRanks` for ``torch.distributed``, or
any object with ``rank``, ``size``, ``bcast(value, root)`` and ``gather(value, root)``. The package imports neither
library.

>>> from warpann.distributed import ShardedIndex
>>> class Alone:  # a communicator of one rank
...     rank, size = 0, 1
...     def bcast(self, value, root): return value
...     def gather(self, value, root): return [value]
>>> index = ShardedIndex(Alone(), lambda: warpann.FlatIndex(2), device="cpu")
>>> index.add([[0, 0], [1, 0], [0, 2]])
>>> index.search([[1, 1]], 2).ids.tolist()
[[1, 0]]
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from warpann import _warpann
from warpann._arrays import _to_numpy, as_ids
from warpann._results import Neighbors
from warpann._warpann import Index, from_bytes, load
from warpann.errors import Incompatible, NotEmpty, WrongType

__all__ = ["Communicator", "ShardedIndex", "TorchRanks"]

_Path = str | os.PathLike[str]


class Communicator(Protocol):
    """A group of processes, as those of mpi4py. All ranks call its methods in the same order."""

    @property
    def rank(self) -> int:
        """The number of this process, from 0."""
        ...

    @property
    def size(self) -> int:
        """Number of processes."""
        ...

    def bcast(self, value: Any, root: int) -> Any:
        """The value of the rank ``root``, at every rank."""
        ...

    def gather(self, value: Any, root: int) -> list[Any] | None:
        """The values of all ranks in their order at the rank ``root``, and None at the others."""
        ...


class TorchRanks:
    """The processes of ``torch.distributed`` as a communicator.

    Args:
        group: a process group; None means all processes. The back end "gloo" needs no GPU. With "nccl" the values pass
            through the current GPU of each process.
    """

    def __init__(self, group: Any = None) -> None:
        # By name, because the package is checked without torch.
        self._torch: Any = importlib.import_module("torch.distributed")
        self._group = group
        self.rank: int = self._torch.get_rank(group)
        self.size: int = self._torch.get_world_size(group)

    def _number(self, root: int) -> int:
        """The number of a rank of the group among all processes."""
        group = self._torch.group.WORLD if self._group is None else self._group
        return int(self._torch.get_global_rank(group, root))

    def bcast(self, value: Any, root: int) -> Any:
        """The value of the rank ``root``, at every rank."""
        values = [value]
        self._torch.broadcast_object_list(values, self._number(root), self._group)
        return values[0]

    def gather(self, value: Any, root: int) -> list[Any] | None:
        """The values of all ranks in their order at the rank ``root``, and None at the others."""
        values = [None] * self.size if self.rank == root else None
        self._torch.gather_object(value, values, self._number(root), self._group)
        return values


class ShardedIndex:
    """An index whose vectors are divided among the ranks of a communicator.

    Results have the same bits as those of one index of all vectors, for exact search and inverted files. A search of
    inverted files with a filter needs ``widen=False`` for that: otherwise each shard reads lists until it has k vectors
    itself, so the search finds at least as near vectors. A graph index has a graph for each shard, whose walks find
    other vectors than those in one graph.

    All methods are collective, except ``len``, the attributes and those of ``shard``: every rank calls them in the same
    order, in one thread. Arguments are the same at every rank unless they say otherwise. If a rank fails, it raises its
    exception and all others raise ``RankFailed``; the index is as it was, and the next call works. If the communicator
    itself raises, or Ctrl-C comes while a rank waits for the others, the exception leaves the call, and the ranks are
    out of step: do not use the index any more.

    Args:
        communicator: the ranks; see :class:`Communicator`.
        make: called at rank 0 only. It returns an index without vectors, for inverted files a trained one. Every rank
            gets an index with its settings and its training.
        device, memory_budget: as for :class:`FlatIndex`. Each rank may have another device.

    Raises:
        NotEmpty: the index has vectors.
        NotTrained, NoDevice, OutOfDeviceMemory, RankFailed; the exceptions of ``make``.
    """

    shard: Any
    """The index of this rank. Do not change its vectors: ids of new vectors follow from the additions of all ranks."""

    def __init__(
        self,
        communicator: Communicator,
        make: Callable[[], Index],
        *,
        device: str = "auto",
        memory_budget: int | None = None,
    ) -> None:
        ranks = _warpann.Ranks(communicator)

        def made() -> bytes:
            if ranks.rank > 0:
                return b""
            index = make()
            if not isinstance(index, Index):
                actual = type(index).__name__
                message = f"make returned {actual}; an index is needed"
                raise WrongType(message, kind="wrong_type", argument="make", actual=actual, expected="an index")
            if len(index) > 0:
                message = f"the index has {len(index)} vectors; one without vectors is needed"
                raise NotEmpty(message, kind="not_empty", len=len(index))
            return index.to_bytes()

        template = ranks.broadcast(_agreed(ranks, made))
        self._open(ranks, _agreed(ranks, lambda: from_bytes(template, device, memory_budget)))

    def _open(self, ranks: _warpann.Ranks, shard: Any) -> None:
        """Collective: takes the shard of this rank."""
        self._ranks, self.shard = ranks, shard
        ids = shard.ids()
        table = self._table(len(ids), int(ids[-1]) if len(ids) else -1)
        self._len, self._next = int(table[:, 0].sum()), int(table[:, 1].max()) + 1

    def _table(self, *numbers: int) -> NDArray[np.int64]:
        """Collective: the numbers of all ranks, at every rank: (ranks, numbers)."""
        parts = self._ranks.gather(np.array(numbers, np.int64).tobytes())
        return np.frombuffer(self._ranks.broadcast(b"".join(parts)), np.int64).reshape(self._ranks.size, -1)

    def __len__(self) -> int:
        """Number of vectors of all ranks."""
        return self._len

    @property
    def rank(self) -> int:
        """The number of this rank, from 0. Rank 0 has the results of searches."""
        return self._ranks.rank

    def add(self, vectors: Any, ids: Any = None, *, progress: Any = None) -> None:
        """Adds vectors, each rank its own.

        Args:
            vectors: (rows, dim) or (dim,); (0, dim) at a rank without vectors. Different at each rank.
            ids: integers, (rows,). Different at each rank, and given at all ranks or at none. Without ids the vectors
                are numbered in the order of the ranks, from 0, or from one past the greatest id.
            progress: as for ``add`` of an index.

        Raises:
            As ``add`` of an index. Ids that two ranks have are not found: results may then have an id twice.
            Incompatible: some ranks have ids and some have not.
            RankFailed.
        """

        def read() -> tuple[Any, int, Any]:
            array = _to_numpy(vectors, "vectors")
            return array, len(array) if array.ndim == 2 else array.ndim, None if ids is None else as_ids(ids, "ids")

        array, rows, given = _agreed(self._ranks, read)
        greatest = -1 if given is None or not len(given) else int(given.max())
        table = self._table(rows, greatest, given is not None)
        if table[:, 2].min() != table[:, 2].max():
            # All ranks see the same table, so all of them raise.
            message = "some ranks have ids and some have not"
            raise Incompatible(message, kind="incompatible", what="ids of ranks")
        total, next = int(table[:, 0].sum()), max(self._next, int(table[:, 1].max()) + 1)
        if given is None:
            first = self._next + int(table[: self.rank, 0].sum())
            given, next = np.arange(first, first + rows), self._next + total
        _, failed = _outcome(lambda: self.shard.add(array, given, progress=progress))
        try:
            self._ranks.agree(failed)
        except BaseException:
            if failed is None:
                self.shard.remove(given)
            raise
        self._len, self._next = self._len + total, next

    def search(
        self,
        queries: Any,
        k: int,
        *,
        filter: Any = None,
        probes: int | None = None,
        beam: int | None = None,
        radius: float | None = None,
        widen: bool = True,
    ) -> Neighbors | None:
        """Finds the k nearest vectors of each query among those of all ranks.

        Args:
            queries: (queries, dim), or (dim,) for a single query.
            k, probes, beam, radius, widen: as for ``search`` of an index.
            filter: as for ``search`` of an index, for the vectors of this rank: a mask is different at each rank, the
                other forms need not be.

        Returns:
            At rank 0 Neighbors, as ``search`` of an index; None at the others.

        Raises:
            As ``search`` of an index.
            Incompatible: the ranks have different numbers of queries, or another k.
            RankFailed.
        """
        found, failed = _outcome(
            lambda: self.shard.search(
                queries, k, filter=filter, probes=probes, beam=beam, radius=radius, widen=widen
            )
        )
        single = found is not None and found.ids.ndim == 1
        if single:
            found = Neighbors(*(array[None] for array in found))
        all = self._ranks.merge(self.shard.metric, found, failed)
        return Neighbors(*(array[0] for array in all)) if single and all is not None else all

    def save(self, path: _Path, *, progress: Any = None) -> None:
        """Writes a file for each rank: ``path`` with ``.RANK-of-SIZE`` appended, a complete index file.

        Raises:
            As ``save`` of an index; RankFailed. The files of the other ranks may then be new.
        """
        _agreed(self._ranks, lambda: self.shard.save(self._ranks.part(path), progress=progress))

    @classmethod
    def load(
        cls,
        communicator: Communicator,
        path: _Path,
        *,
        device: str = "auto",
        memory_budget: int | None = None,
        mapped: bool | None = None,
    ) -> ShardedIndex:
        """Collective: opens an index that the same number of ranks has saved.

        Args:
            communicator: the ranks.
            path: that of ``save``.
            device, memory_budget, mapped: as for :func:`load`. Different at each rank if need be.

        Raises:
            As :func:`load`.
            Incompatible: the part of this rank has other settings or another training than that of rank 0.
            RankFailed.
        """
        ranks = _warpann.Ranks(communicator)

        def opened() -> tuple[Any, bytes]:
            part = ranks.part(path)
            index = load(part, device=device, memory_budget=memory_budget, mapped=mapped)
            empty = index.snapshot()
            empty.clear()
            return index, empty.to_bytes()

        shard, template = _agreed(ranks, opened)
        same = ranks.broadcast(template) == template

        def check() -> None:
            if not same:
                what = "training or settings"
                raise Incompatible(f"the {what} differ from those of rank 0", kind="incompatible", what=what)

        _agreed(ranks, check)
        self = cls.__new__(cls)
        self._open(ranks, shard)
        return self


def _outcome(work: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """What work returns, or what it raises: Ctrl-C as well, because the other ranks wait for this one."""
    try:
        return work(), None
    except BaseException as error:
        return None, error


def _agreed(ranks: _warpann.Ranks, work: Callable[[], Any]) -> Any:
    """Collective: what work returns, if it raises at no rank."""
    value, failed = _outcome(work)
    ranks.agree(failed)
    return value

"""One index in the actors of a Ray cluster: each actor holds a shard, and a search goes to all of them.

The package ``ray`` is needed, and for Parquet files ``pyarrow``.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import importlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from warpann._arrays import _to_numpy, _wrong_type
from warpann._results import Neighbors
from warpann._warpann import Filter, Index, from_bytes, load, merge_parts
from warpann.errors import Incompatible, Io, NotEmpty, UnknownName, WarpannError

__all__ = ["ShardedIndex"]

_Path = str | os.PathLike[str]

# Rows of a Parquet file that are in memory at a time.
_BATCH = 1 << 16


class ShardedIndex:
    """An index whose shards are the indexes of Ray actors. It is a context manager, which ends the actors.

    Results have the same bits as those of one index of all vectors, for exact search and inverted files. A search of
    inverted files with a filter needs ``widen=False`` for that: otherwise each shard reads lists until it has k vectors
    itself, so the search finds at least as near vectors. A graph index has a graph for each shard, whose walks find
    other vectors than those in one graph.

    An actor that dies is started again, where Ray has room for it, and opens the file of its shard. Searches that it
    had not answered are repeated, up to three times.

    Args:
        folder: that of :meth:`build`. All machines of the cluster must see it under this name.
        device, memory_budget: as for :class:`FlatIndex`, in each actor.
        resources: options of ``ray.remote`` for each actor, such as ``{"num_gpus": 1}``. None means one GPU for each
            actor if the cluster has as many, and no GPU otherwise.

    Raises:
        Io: the folder does not have all parts of one index.
        Incompatible: the parts have different settings, or another training.
        BadFile, NoDevice, OutOfDeviceMemory; the exceptions of Ray.
    """

    def __init__(
        self,
        folder: _Path,
        *,
        device: str = "auto",
        memory_budget: int | None = None,
        resources: dict[str, Any] | None = None,
    ) -> None:
        ray = _ray()
        self._actors: list[Any] = []
        parts = _parts(Path(folder).absolute())
        options = _options(resources, len(parts))
        actor = ray.remote(**options, max_restarts=-1, max_task_retries=3)(_Shard)
        self._actors = [actor.remote(part, device, memory_budget) for part in parts]
        try:
            lengths, metrics, trainings = zip(*_answers([shard.about.remote() for shard in self._actors]))
            if len(set(trainings)) > 1:
                what = "training or settings"
                raise Incompatible(f"the parts have different {what}", kind="incompatible", what=what)
        except BaseException:
            self.close()
            raise
        self._len: int = sum(lengths)
        self._metric: str = metrics[0]

    @classmethod
    def build(
        cls,
        index: Index,
        sources: Sequence[Any],
        folder: _Path,
        *,
        column: str | None = None,
        ids: str | None = None,
        device: str = "auto",
        memory_budget: int | None = None,
        resources: dict[str, Any] | None = None,
    ) -> Self:
        """Builds the shards in Ray tasks, which write their files, and opens them.

        Args:
            index: an index without vectors, for inverted files a trained one. All shards get its settings and its
                training, through the object store of Ray.
            sources: the vectors of each shard: a Parquet file, a list of them, an array (rows, dim), or a tuple of an
                array and ids. The task of the shard reads the files, so all machines must see them.
            folder: for the files of the shards: new, or empty.
            column: the column of vectors (lists of numbers) in Parquet files. None means the only one of lists.
            ids: the column of ids in Parquet files. Vectors without ids are numbered: all shards from 0, in the order of
                the sources.
            device, memory_budget, resources: as for this class, in each task and in each actor.

        Raises:
            NotEmpty: the index has vectors.
            NotTrained.
            Io: the folder is not empty.
            UnknownName: a file has no such column.
            As ``add`` and ``save`` of an index, by the first shard that failed. The folder is then as it was. Ids that
            two shards have are not found: results may then have an id twice.
        """
        ray = _ray()
        if len(index) > 0:
            message = f"the index has {len(index)} vectors; one without vectors is needed"
            raise NotEmpty(message, kind="not_empty", len=len(index))
        if isinstance(sources, (str, os.PathLike)) or len(sources) == 0:
            raise _wrong_type("sources", repr(sources), "a sequence with the source of each shard")
        template = ray.put(index.to_bytes())
        # Arrays go to the object store once, not with each task that reads them.
        stored = [ray.put(source) if _files(source) is None else source for source in sources]
        options = _options(resources, len(sources))
        count = ray.remote(_count)
        firsts = np.cumsum([0, *_answers([count.remote(source) for source in stored])]).tolist()
        folder = Path(folder).absolute()
        existed = folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            message = f"{folder} is not empty"
            raise Io(message, kind="io", path=str(folder), errno=errno.ENOTEMPTY)
        parts = [folder / f"part.{shard}-of-{len(sources)}" for shard in range(len(sources))]
        build = ray.remote(**options)(_build) if options else ray.remote(_build)
        tasks = [
            build.remote(template, source, column, ids, first, part, device, memory_budget)
            for source, first, part in zip(stored, firsts, parts)
        ]
        try:
            _answers(tasks)
        except BaseException:
            # After Ctrl-C tasks still run.
            for task in tasks:
                ray.cancel(task)
            ray.wait(tasks, num_returns=len(tasks))
            for part in parts:
                part.unlink(missing_ok=True)
            if not existed:
                folder.rmdir()
            raise
        return cls(folder, device=device, memory_budget=memory_budget, resources=resources)

    def __len__(self) -> int:
        """Number of vectors of all shards."""
        return self._len

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
    ) -> Neighbors:
        """Finds the k nearest vectors of each query among those of all shards.

        Args:
            queries: (queries, dim), or (dim,) for a single query.
            k, probes, beam, radius, widen: as for ``search`` of an index.
            filter: ids, a range of ids, or a function of an id, which Ray can pickle. A mask has no meaning, because
                its entries would count the ids of a shard.

        Returns:
            Neighbors, as ``search`` of an index.

        Raises:
            As ``search`` of an index; Io or BadFile if an actor that was started again cannot open its file; the exceptions of
            Ray if it cannot be started.
        """
        if isinstance(filter, Filter) or (filter is not None and getattr(filter, "dtype", None) == bool):
            raise _wrong_type("filter", type(filter).__name__, "ids, a range or a function")
        queries = _to_numpy(queries, "queries")
        options = {"filter": filter, "probes": probes, "beam": beam, "radius": radius, "widen": widen}
        single = queries.ndim == 1
        asked = _ray().put(queries[None] if single else queries)
        found = merge_parts(self._metric, _answers([shard.search.remote(asked, k, options) for shard in self._actors]))
        return Neighbors(found.distances[0], found.ids[0]) if single else found

    def close(self) -> None:
        """Ends the actors. The files of the shards stay."""
        for shard in self._actors:
            _ray().kill(shard)
        self._actors = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()


class _Shard:
    """The index of an actor."""

    def __init__(self, part: Path, device: str, memory_budget: int | None) -> None:
        self._open = functools.partial(load, part, device=device, memory_budget=memory_budget)
        self._index: Any = None
        # Calls raise the error with its class; Ray would make it one of an actor that died.
        with contextlib.suppress(WarpannError):
            self.index()

    def index(self) -> Any:
        """The index; a call tries again what did not work before."""
        if self._index is None:
            self._index = self._open()
        return self._index

    def about(self) -> tuple[int, str, bytes]:
        """The number of vectors, the metric, and what stands for the settings and the training."""
        index = self.index()
        empty = index.snapshot()
        empty.clear()
        return len(index), index.metric, hashlib.sha256(empty.to_bytes()).digest()

    def search(self, queries: Any, k: int, options: dict[str, Any]) -> Neighbors:
        found: Neighbors = self.index().search(queries, k, **options)
        return found


def _build(
    template: bytes,
    source: Any,
    column: str | None,
    ids: str | None,
    first: int,
    part: Path,
    device: str,
    memory_budget: int | None,
) -> None:
    """Builds a shard and writes its file, in a task."""
    index = from_bytes(template, device, memory_budget)
    for vectors, given in _batches(source, column, ids):
        if given is None:
            before = first + len(index)
            given = np.arange(before, before + len(vectors))
        index.add(vectors, given)
    index.save(part)


def _files(source: Any) -> list[Path] | None:
    """The Parquet files that a source names; None if it is an array."""
    files = [source] if isinstance(source, (str, os.PathLike)) else source
    named = isinstance(files, list) and all(isinstance(file, (str, os.PathLike)) for file in files)
    return [Path(file) for file in files] if named else None


def _pair(source: Any) -> tuple[Any, Any]:
    """The vectors and ids of a source that is an array."""
    vectors, ids = source if isinstance(source, tuple) else (source, None)
    vectors = _to_numpy(vectors, "vectors")
    return vectors[None] if vectors.ndim == 1 else vectors, ids


def _count(source: Any) -> int:
    """The number of vectors of a source, in a task."""
    files = _files(source)
    if files is None:
        return len(_pair(source)[0])
    parquet = importlib.import_module("pyarrow.parquet")
    return sum(parquet.read_metadata(file).num_rows for file in files)


def _batches(source: Any, column: str | None, ids: str | None) -> Iterator[tuple[Any, Any]]:
    """The vectors of a source, with their ids if it has some."""
    files = _files(source)
    if files is None:
        yield _pair(source)
    for path in files or []:
        with importlib.import_module("pyarrow.parquet").ParquetFile(path) as file:
            vectors = _column(file.schema_arrow, column, path)
            columns = [vectors] if ids is None else [vectors, _column(file.schema_arrow, ids, path)]
            for batch in file.iter_batches(_BATCH, columns=columns):
                yield (
                    _vectors(batch.column(vectors), path),
                    None if ids is None else batch.column(ids).to_numpy(zero_copy_only=False),
                )


def _column(schema: Any, name: str | None, path: Path) -> str:
    """The name of a column that a file has; of None the only one of lists."""
    known = tuple(schema.names)
    if name is None:
        known = tuple(field.name for field in schema if "list" in str(field.type).split("<")[0])
        name = known[0] if len(known) == 1 else ""
    if name not in known:
        message = f"{path}: {name!r} is not one of its columns {', '.join(known)}"
        raise UnknownName(message, kind="unknown_name", text=name, known=known)
    return name


def _vectors(column: Any, path: Path) -> Any:
    """The vectors in a column of lists."""
    lengths = importlib.import_module("pyarrow.compute").list_value_length(column).unique().to_pylist()
    values = column.flatten()
    if len(lengths) != 1 or lengths == [None] or values.null_count:
        raise _wrong_type("vectors", f"nulls or lists of several lengths in {path}", "lists of one length")
    return values.to_numpy(zero_copy_only=False).reshape(-1, lengths[0])


def _parts(folder: Path) -> list[Path]:
    """The files of the shards in a folder, in their order."""
    found = {path.name: path for path in folder.glob("part.*-of-*") if re.fullmatch(r"part\.\d+-of-\d+", path.name)}
    counts = {name.rpartition("-")[2] for name in found}
    parts = [found.get(f"part.{shard}-of-{count}") for count in counts for shard in range(int(count))]
    complete = [part for part in parts if part is not None]
    if len(counts) != 1 or len(complete) < len(parts):
        message = f"{folder} does not have all parts of one index"
        raise Io(message, kind="io", path=str(folder), errno=errno.ENOENT)
    return complete


def _ray() -> Any:
    """The package ray: by name, because this package is checked without it."""
    return importlib.import_module("ray")


def _options(resources: dict[str, Any] | None, shards: int) -> dict[str, Any]:
    """The options of tasks and actors. Without any, an actor takes no CPU from other work of the cluster."""
    if resources is not None:
        return resources
    return {"num_gpus": 1} if _ray().cluster_resources().get("GPU", 0) >= shards else {}


def _answers(calls: list[Any]) -> list[Any]:
    """The results of all calls, after all have ended. Raises the exception of the first that failed, as the call has
    raised it."""
    ray = _ray()
    ray.wait(calls, num_returns=len(calls))
    try:
        return list(ray.get(calls))
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, Exception):
            raise error.cause from error
        raise

"""Ranks that are threads, against one index of everything."""

from __future__ import annotations

import doctest
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reference
import warpann
import warpann.distributed
from warpann import errors
from warpann.distributed import ShardedIndex

PATIENCE = 30.0


class Threads:
    """A communicator among threads. A collective call that not all ranks make is an error after `PATIENCE` seconds."""

    def __init__(self, rank: int, size: int, shared: Any) -> None:
        self.rank, self.size = rank, size
        self.barrier, self.queues = shared
        self.calls: list[Any] = []

    def bcast(self, value: Any, root: int) -> Any:
        self.calls.append("bcast")
        if self.rank == root:
            for rank in range(self.size):
                self.queues[rank].put(value)
        self.barrier.wait(PATIENCE)
        value = self.queues[self.rank].get(timeout=PATIENCE)
        self.barrier.wait(PATIENCE)
        return value

    def gather(self, value: Any, root: int) -> list[Any] | None:
        self.calls.append("gather")
        self.queues[root].put((self.rank, value))
        self.barrier.wait(PATIENCE)
        values = None
        if self.rank == root:
            values = [value for _, value in sorted(self.queues[root].get(timeout=PATIENCE) for _ in range(self.size))]
        self.barrier.wait(PATIENCE)
        return values


def at_ranks(size: int, work: Callable[[Any], Any], communicator: Any = Threads) -> list[Any]:
    """What `work` returns or raises at each rank. All ranks must have made the same collective calls."""
    shared = threading.Barrier(size), [queue.Queue() for _ in range(size)]
    ranks = [communicator(rank, size, shared) for rank in range(size)]
    results: list[Any] = [None] * size

    def run(rank: int) -> None:
        try:
            results[rank] = work(ranks[rank])
        except BaseException as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(rank.calls == ranks[0].calls for rank in ranks)
    return results


def check_root(results: list[Any], expected: Any) -> None:
    """Rank 0 has the bits of one index, and the others have nothing."""
    assert not isinstance(results[0], BaseException), repr(results[0])
    assert results[1:] == [None] * (len(results) - 1)
    reference.check_equal(results[0], expected)


def integers(rows: int, dim: int, seed: int) -> Any:
    """Many distances are equal, so that ids decide."""
    return np.random.default_rng(seed).integers(0, 7, (rows, dim)).astype(np.float32)


def flat() -> Any:
    return warpann.FlatIndex(3, metric="ip", device="cpu")


def shares(rows: int, size: int) -> list[slice]:
    """Uneven shares; the second rank of several has none."""
    ends = [0, *(rows * (rank + 1) ** 2 // size**2 for rank in range(size))]
    if size > 1:
        ends[2] = ends[1]
    return [slice(start, end) for start, end in zip(ends, ends[1:])]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_ranks_answer_as_one_index(size: int) -> None:
    base, queries = integers(41, 3, 1), integers(6, 3, 2)
    parts = shares(38, size)
    # In the order of the ranks, which is not that of rows when a part is left out.
    kept = np.concatenate([base[part] for part in parts])
    for ids in (None, np.random.default_rng(3).permutation(2**40 - np.arange(len(kept)))):
        given = [None] * size if ids is None else np.split(ids, np.cumsum([len(base[part]) for part in parts])[:-1])
        one = flat()
        one.add(kept, ids)
        one.add(base[38:])
        for k in (1, 5, 50):

            def work(communicator: Any) -> Any:
                index = ShardedIndex(communicator, flat, device="cpu")
                assert len(index) == 0
                index.add(base[parts[communicator.rank]], given[communicator.rank])
                # Only the last rank has vectors: they get the next ids.
                index.add(base[38:] if communicator.rank == size - 1 else base[:0])
                assert (index.rank, len(index)) == (communicator.rank, len(kept) + 3)
                return index.search(queries, k)

            check_root(at_ranks(size, work), one.search(queries, k))


def test_the_other_ways_to_call_it() -> None:
    base = integers(30, 3, 1)
    one = flat()
    one.add(base)
    mask = np.arange(30) % 3 == 0

    def work(communicator: Any) -> Any:
        index = ShardedIndex(communicator, flat, device="cpu")
        mine = slice(communicator.rank * 10, communicator.rank * 10 + 10)
        index.add(base[mine].tolist())
        return [
            index.search(base[3], 4),
            index.search(base[3:4].astype(np.float64), 4, filter=lambda id: id % 3 == 0),
            index.search(base[3:4], 4, filter=mask[mine]),
            index.search(base[3:4], 40, radius=9.0),
            index.search(base[:0], 4),
        ]

    found = at_ranks(3, work)
    assert found[1] == found[2] == [None] * 5
    reference.check_equal(found[0][0], one.search(base[3], 4))
    for filtered in found[0][1:3]:
        reference.check_equal(filtered, one.search(base[3:4], 4, filter=mask))
    reference.check_equal(found[0][3], one.search(base[3:4], 40, radius=9.0))
    assert found[0][4].ids.shape == (0, 4)


def test_shards_may_be_graphs() -> None:
    base = integers(30, 3, 1)
    # So few vectors that searches are exact.
    make = lambda: warpann.GraphIndex(3, device="cpu")  # noqa: E731
    one = make()
    one.add(base)

    def work(communicator: Any) -> Any:
        index = ShardedIndex(communicator, make, device="cpu")
        index.add(base[communicator.rank * 15 :][:15])
        return index.search(base, 5, beam=20)

    check_root(at_ranks(2, work), one.search(base, 5, beam=20))


@pytest.mark.parametrize("encoding", ["flat", "opq:2x4"])
def test_inverted_files_are_trained_once_and_survive_their_files(encoding: str, tmp_path: Path) -> None:
    base, queries = integers(300, 4, 1), integers(9, 4, 2)
    trainings = []

    def make() -> Any:
        index = warpann.IvfIndex(4, 7, encoding=encoding, metric="cosine", device="cpu")
        index.train(base + 1)
        index.probes = 3
        trainings.append(index)
        return index

    one = make()
    one.add(base + 1)
    even = np.arange(300) % 2 == 0
    path = tmp_path / "an.index"

    def searched(index: Any) -> Any:
        assert len(index) == 300
        return [
            index.search(queries + 1, 12),
            index.search(queries + 1, 12, probes=5),
            index.search(queries + 1, 12, filter=lambda id: id % 2 == 0, widen=False),
        ]

    expected = [
        one.search(queries + 1, 12),
        one.search(queries + 1, 12, probes=5),
        one.search(queries + 1, 12, filter=even, widen=False),
    ]

    def build(communicator: Any) -> Any:
        index = ShardedIndex(communicator, make, device="cpu")
        index.add(base[communicator.rank * 100 :][:100] + 1)
        index.save(path)
        return searched(index)

    def load(communicator: Any) -> Any:
        return ShardedIndex.load(communicator, path, device="cpu")

    def load_and_add(communicator: Any) -> Any:
        index = load(communicator)
        found = searched(index)
        # Numbers go on where they were.
        index.add(base[:1])
        assert 300 + communicator.rank in index.shard
        return found

    for found in (at_ranks(3, build), at_ranks(3, load_and_add)):
        for number, expectation in enumerate(expected):
            check_root([at[number] for at in found], expectation)
    assert len(trainings) == 2

    # Saved by three, opened by two.
    assert [type(error) for error in at_ranks(2, load)] == [errors.Io, errors.Io]
    # A part of another index.
    other = warpann.IvfIndex(4, 7, encoding=encoding, metric="cosine", seed=9, device="cpu")
    other.train(base[:200] + 1)
    other.save(f"{path}.1-of-3")
    found = at_ranks(3, load)
    assert [type(error) for error in found] == [errors.RankFailed, errors.Incompatible, errors.RankFailed]
    assert found[0].rank == 1 and "training" in found[0].reason
    (tmp_path / "an.index.2-of-3").write_bytes(b"no index")
    found = at_ranks(3, load)
    assert [type(error) for error in found] == [errors.RankFailed, errors.RankFailed, errors.BadFile]


def test_a_rank_that_fails_stops_all_and_the_next_call_works() -> None:
    base = integers(20, 3, 1)
    nan = np.full((2, 3), np.nan)

    def work(communicator: Any) -> Any:
        index = ShardedIndex(communicator, flat, device="cpu")
        index.add(base)
        bad = communicator.rank == 2

        def cancelled(progress: Any) -> Any:
            raise KeyboardInterrupt

        calls = [
            lambda: index.add(nan if bad else base),
            lambda: index.add("vectors" if bad else base),
            lambda: index.add(base, [0.5] * 20 if bad else range(100, 120)),
            lambda: index.add(base, None if bad else range(100, 120)),
            lambda: index.add(base, progress=cancelled if bad else None),
            lambda: index.search(nan if bad else base[:2], 1),
            lambda: index.search(base[:2], "k" if bad else 1),
            lambda: index.search(base[:2], 1, filter=(lambda id: 1 / 0) if bad else None),
            lambda: index.search(base[:3] if bad else base[:2], 1),
            lambda: index.search(base[:1] if bad else base[:2], 2 if bad else 1),
            lambda: index.save("/no/such/folder/index"),
        ]
        raised = []
        for call in calls:
            with pytest.raises(BaseException) as caught:
                call()
            raised.append(caught.value)
            assert (len(index), len(index.shard)) == (60, 20)
        index.add(base)
        return raised, index.search(base[:2], 3)

    results = at_ranks(3, work)
    one = flat()
    one.add(np.concatenate([base] * 6))
    reference.check_equal(results[0][1], one.search(base[:2], 3))
    incompatible = errors.Incompatible
    own: list[tuple[Any, Any]] = [
        (errors.NotFinite, 2),
        (errors.WrongShape, 2),
        (errors.WrongType, 2),
        (incompatible, None),
        (KeyboardInterrupt, 2),
        (errors.NotFinite, 2),
        (TypeError, 2),
        (ZeroDivisionError, 2),
        (incompatible, 0),
        (incompatible, 0),
        (errors.Io, None),
    ]
    for rank, (raised, _) in enumerate(results):
        for error, (kind, failed) in zip(raised, own, strict=True):
            if failed in (None, rank):
                assert type(error) is kind, error
            else:
                assert type(error) is errors.RankFailed and error.rank == failed, error
                assert kind.__name__ in error.reason or kind is incompatible


def test_an_index_that_cannot_be_made_is_an_error_at_every_rank() -> None:
    def full() -> Any:
        index = flat()
        index.add(np.zeros(3))
        return index

    def fails() -> Any:
        raise ZeroDivisionError

    untrained = lambda: warpann.IvfIndex(4, 7, device="cpu")  # noqa: E731
    for make, kind in [
        (full, errors.NotEmpty),
        (fails, ZeroDivisionError),
        (untrained, errors.NotTrained),
        (dict, errors.WrongType),
    ]:
        found = at_ranks(3, lambda communicator: ShardedIndex(communicator, make, device="cpu"))
        assert [type(error) for error in found] == [kind, errors.RankFailed, errors.RankFailed]
    at = lambda communicator: "gpu:77" if communicator.rank == 1 else "cpu"  # noqa: E731
    found = at_ranks(2, lambda communicator: ShardedIndex(communicator, flat, device=at(communicator)))
    assert [type(error) for error in found] == [errors.RankFailed, errors.NoDevice]


def test_a_communicator_that_fails() -> None:
    class Lost(Threads):
        def gather(self, value: Any, root: int) -> Any:
            if len(self.calls) > 6:
                raise ConnectionError("a wire")
            return super().gather(value, root)

    def work(communicator: Any) -> Any:
        index = ShardedIndex(communicator, flat, device="cpu")
        index.add(np.zeros((2, 3)))
        return index.search(np.zeros(3), 1)

    assert [(type(error), str(error)) for error in at_ranks(2, work, Lost)] == [(ConnectionError, "a wire")] * 2

    class Wrong(Threads):
        def bcast(self, value: Any, root: int) -> Any:
            super().bcast(value, root)
            return "text"

    for error in at_ranks(2, work, Wrong):
        assert type(error) is errors.WrongType and error.argument == "bcast of the communicator"

    class Fixed:
        rank, size = 0, 2

        def __init__(self, reply: Any) -> None:
            self.reply = reply

        def gather(self, value: Any, root: int) -> Any:
            return self.reply

    for reply in (None, [b""], [b"", "text"], b"ab"):
        with pytest.raises(errors.WrongType, match="gather of the communicator"):
            warpann._warpann.Ranks(Fixed(reply)).gather(b"")  # type: ignore[arg-type]
    assert warpann._warpann.Ranks(Fixed([b"a", b"b"])).gather(b"") == [b"a", b"b"]  # type: ignore[arg-type]
    shared = threading.Barrier(1), [queue.Queue()]
    for communicator in (object(), Threads(2, 2, shared), Threads(-1, 2, shared)):
        with pytest.raises(errors.WrongType):
            ShardedIndex(communicator, flat)  # type: ignore[arg-type]


def test_other_threads_run_while_ranks_wait() -> None:
    # Three ranks wait for the last one inside of a call; if they held the interpreter's lock, it would never come.
    started = threading.Event()

    def work(communicator: Any) -> Any:
        index = ShardedIndex(communicator, flat, device="cpu")
        index.add(np.zeros((2, 3)))
        if communicator.rank == 3:
            assert started.wait(PATIENCE)
        if communicator.rank == 0:
            started.set()
        return index.search(np.zeros(3), 1)

    assert at_ranks(4, work)[0].ids.tolist() == [0]


@pytest.mark.parametrize(
    ("kind", "command"),
    [
        ("mpi", [str(Path(sys.executable).with_name("mpiexec")), "-n", "3", sys.executable]),
        ("torch", [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3"]),
    ],
)
def test_ranks_that_are_processes(kind: str, command: list[str]) -> None:
    pytest.importorskip({"mpi": "mpi4py", "torch": "torch"}[kind])
    program = Path(__file__).parents[1] / "several_ranks.py"
    ended = subprocess.run([*command, str(program), kind], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("3 ranks, the bits of one index") == 2


def test_parts_of_other_shapes_are_refused() -> None:
    part = (np.zeros((2, 3), np.float32), np.zeros((2, 3), np.int64))
    for parts in ([], [part, (part[0].reshape(3, 2), part[1].reshape(3, 2))], [part, (part[0][:1], part[1])]):
        with pytest.raises(errors.Incompatible):
            warpann._warpann.merge_parts("l2", parts)


def test_the_example_of_the_module() -> None:
    tests = doctest.DocTestFinder(recurse=False).find(warpann.distributed, globs={"warpann": warpann})
    runner = doctest.DocTestRunner()
    for test in tests:
        runner.run(test)
    assert (runner.failures, runner.tries >= 4) == (0, True)

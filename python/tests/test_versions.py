"""Snapshots, writers and batchers."""

from __future__ import annotations

import asyncio
import concurrent.futures
import subprocess
import sys
import textwrap
import threading
import time
from typing import Any

import numpy as np
import pytest

import reference
import warpann
from warpann import errors


def flat(count: int = 100, dim: int = 4) -> Any:
    index = warpann.FlatIndex(dim, device="cpu")
    index.add(np.random.default_rng(1).normal(size=(count, dim)))
    return index


def test_snapshots_stay_as_they_are() -> None:
    index = flat()
    before = index.snapshot()
    assert type(before) is warpann.FlatIndex
    index.remove(range(50))
    before.add([[9, 9, 9, 9]])
    assert (len(index), len(before)) == (50, 101)


def test_a_writer_publishes_whole_changes() -> None:
    writer = warpann.IndexWriter(flat())
    first = writer.current()

    def fails(next: Any) -> None:
        next.clear()
        raise KeyError("no")

    with pytest.raises(KeyError):
        writer.change(fails)
    assert (writer.version, len(writer.current())) == (0, 100)
    kept: list[Any] = []

    def removes(next: Any) -> int:
        kept.append(next)
        return next.remove([1, 2])

    assert writer.change(removes) == 2
    # The index of the function is its own after the change.
    kept[0].clear()
    assert (writer.version, len(writer.current()), len(first)) == (1, 98, 100)
    assert "version 1" in repr(writer)


def test_a_release_changes_no_version() -> None:
    writer = warpann.IndexWriter(flat())
    first = writer.current()
    writer.change(lambda next: next.remove([1]))
    writer.release()
    assert (writer.version, len(first), len(writer.current())) == (1, 100, 99)
    with pytest.raises(errors.Busy):
        writer.change(lambda next: writer.release())
    assert writer.version == 1


def test_searches_see_whole_versions() -> None:
    """Each version has vectors of one value only."""
    index = warpann.FlatIndex(2, device="cpu")
    index.add(np.zeros((20, 2)))
    writer, stop = warpann.IndexWriter(index), threading.Event()
    mixed: list[Any] = []

    def searches() -> None:
        while not stop.is_set():
            values = writer.current().reconstruct(range(20))[:, 0]
            if len(set(values.tolist())) != 1:
                mixed.append(values)

    threads = [threading.Thread(target=searches) for _ in range(3)]
    for thread in threads:
        thread.start()
    for value in range(1, 200):
        writer.change(lambda next: next.upsert(np.full((20, 2), value), range(20)))
    stop.set()
    for thread in threads:
        thread.join()
    assert not mixed and writer.version == 199


def test_answers_are_those_of_searches() -> None:
    index = flat(500)
    queries = np.random.default_rng(2).normal(size=(200, 4)).astype(np.float32)
    odd = warpann.Filter(index.ids() % 2 == 1)
    with warpann.Batcher(index, workers=2) as batcher:
        plain = [batcher.submit(query, 1 + row % 9) for row, query in enumerate(queries)]
        filtered = [batcher.submit(query, 3, filter=odd, radius=2.0) for query in queries]
        for row, answer in enumerate(plain):
            assert isinstance(answer, concurrent.futures.Future)
            alone = index.search(queries[row], 1 + row % 9)
            reference.check_equal(answer.result(timeout=30), (alone.distances, alone.ids))
        for row, answer in enumerate(filtered):
            alone = index.search(queries[row], 3, filter=odd, radius=2.0)
            reference.check_equal(answer.result(timeout=30), (alone.distances, alone.ids))
        done, waiting = concurrent.futures.wait(plain, timeout=30)
        assert len(done) == 200 and not waiting
        assert batcher.statistics().answered == 400
    with pytest.raises(errors.Refused) as caught:
        batcher.submit(queries[0], 1)
    assert caught.value.reason == "closed"


def test_tasks_await_answers() -> None:
    index = flat(500)
    queries = np.random.default_rng(3).normal(size=(64, 4)).astype(np.float32)

    async def one(batcher: Any, query: Any) -> Any:
        return (await batcher.submit(query, 2)).ids.tolist()

    async def all_of_them() -> list[Any]:
        with warpann.Batcher(index) as batcher:
            return await asyncio.gather(*(one(batcher, query) for query in queries))

    assert asyncio.run(all_of_them()) == index.search(queries, 2).ids.tolist()


def test_a_batcher_follows_a_writer() -> None:
    writer = warpann.IndexWriter(flat())
    with warpann.Batcher(writer) as batcher:
        query = np.float32([9, 9, 9, 9])
        assert batcher.submit(query, 1).result().distances[0] > 0
        writer.change(lambda next: next.add([query], [1000]))
        assert batcher.submit(query, 1).result().ids[0] == 1000


def test_each_request_has_its_own_error() -> None:
    index = flat()
    query = np.zeros(4, np.float32)

    def broken(id: int) -> bool:
        raise KeyError("of one request")

    with warpann.Batcher(index) as batcher:
        answers = [batcher.submit(query, 2), batcher.submit(query, 2, filter=broken), batcher.submit(query, 2)]
        assert answers[0].result().ids.shape == answers[2].result().ids.shape == (2,)
        with pytest.raises(KeyError, match="of one request"):
            answers[1].result()
        stale = index.filter(lambda id: True)
        with pytest.raises(errors.WrongLength):
            batcher.submit(query, 2, filter=np.ones(3, bool)).result()
        assert batcher.submit(query, 2, filter=stale).result().ids.shape == (2,)
        for wrong, error in [
            (lambda: batcher.submit(np.zeros(5), 1), errors.WrongDimension),
            (lambda: batcher.submit(np.full(4, np.nan), 1), errors.NotFinite),
            (lambda: batcher.submit(query, 0), errors.Zero),
            (lambda: batcher.submit(query, 1, radius=float("nan")), errors.BadNumber),
            (lambda: batcher.submit(query, 1, timeout=-1.0), errors.BadNumber),
            (lambda: batcher.submit(np.zeros((2, 4)), 1), errors.WrongDimension),
            (lambda: warpann.Batcher(index, workers=0), errors.Zero),
            (lambda: warpann.Batcher(index, target=float("nan")), errors.BadNumber),
            (lambda: warpann.Batcher("index"), errors.WrongType),  # type: ignore[arg-type]
        ]:
            with pytest.raises(error):
                wrong()


def test_requests_are_cancelled_expire_and_are_refused() -> None:
    query, go = np.zeros(4, np.float32), threading.Event()
    with warpann.Batcher(flat(), workers=1, waiting=3) as batcher:
        # The only worker waits in the filter of the first request.
        blocked = batcher.submit(query, 1, filter=lambda id: go.wait(30))
        while batcher.statistics().running == 0:
            time.sleep(0.001)
        cancelled = batcher.submit(query, 1)
        late = batcher.submit(query, 1, timeout=0.05)
        assert cancelled.cancel() and cancelled.cancelled()
        batcher.submit(query, 1)
        with pytest.raises(errors.Refused) as caught:
            for _ in range(4):
                batcher.submit(query, 1)
        assert caught.value.reason == "full"
        time.sleep(0.1)
        go.set()
        assert blocked.result().ids.shape == (1,)
        with pytest.raises(errors.Refused) as caught:
            late.result()
        assert caught.value.reason == "expired"


def test_callbacks_may_drop_a_batcher_and_not_close_it() -> None:
    batcher: Any = warpann.Batcher(flat())
    closed: list[str] = []
    done = threading.Event()

    def closes(answer: Any) -> None:
        try:
            batcher.close()
        except errors.Busy as error:
            closed.append(error.kind)
        finally:
            done.set()

    batcher.submit(np.zeros(4, np.float32), 1, filter=lambda id: time.sleep(0.001) is None).add_done_callback(closes)
    assert done.wait(30) and closed == ["busy"]
    batcher.close()


def test_a_process_ends_with_open_batchers() -> None:
    program = """
        import numpy as np, warpann
        index = warpann.FlatIndex(8, device="cpu")
        index.add(np.zeros((1000, 8)))
        batcher = warpann.Batcher(index)
        answers = [batcher.submit(np.zeros(8), 3, filter=lambda id: True) for _ in range(50)]
        dropped = warpann.Batcher(index).submit(np.zeros(8), 3)
        print("end")
    """
    for _ in range(5):
        ended = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60)
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "end\n", "")

"""The interpreter's lock, progress, cancellation, Ctrl-C, threads, and calls from inside of calls."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import reference
import warpann
from warpann import errors


def rows(count: int, dim: int, seed: int = 1) -> Any:
    return np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)


def longest_pause_of_another_thread(call: Callable[[], object]) -> tuple[float, float]:
    """The longest time between two steps of a thread that runs Python during a call, and the time of the call."""
    pauses, stop = [0.0], threading.Event()

    def count() -> None:
        last = time.perf_counter()
        while not stop.is_set():
            now = time.perf_counter()
            pauses[0] = max(pauses[0], now - last)
            last = now
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    start = time.perf_counter()
    call()
    taken = time.perf_counter() - start
    stop.set()
    thread.join()
    return pauses[0], taken


def test_other_threads_run_during_calls() -> None:
    base = rows(30_000, 64)
    flat, ivf = warpann.FlatIndex(64, device="cpu"), warpann.IvfIndex(64, 64, device="cpu", iterations=20)
    graph = warpann.GraphIndex(64, device="cpu", exact_ratio=0)
    flat.add(base)
    few = warpann.FlatIndex(64, device="cpu")
    few.add(base[:4000])
    for call in [
        lambda: flat.search(base[:4000], 10),
        lambda: flat.range_search(base[:2000], 30.0),
        lambda: ivf.train(base),
        lambda: graph.add(base[:8000]),
        lambda: warpann.kmeans(base, 256, iterations=10, device="cpu"),
        lambda: warpann.knn_graph(few, base[:4000], 5),
    ]:
        pause, taken = longest_pause_of_another_thread(call)
        # A call that keeps the lock pauses the other thread for its whole time.
        assert pause < max(0.5 * taken, 0.1), (pause, taken)


def long_calls() -> list[tuple[str, Callable[[Any], object], Callable[[], object]]]:
    """Calls that take seconds, with a progress function, and what must be the same after they have failed."""
    base = rows(60_000, 32)
    ivf = warpann.IvfIndex(32, 600, device="cpu", iterations=400)
    trained = warpann.IvfIndex(32, 16, device="cpu", iterations=2)
    trained.train(base[:2000])
    trained.add(base[:100])
    graph = warpann.GraphIndex(32, device="cpu", exact_ratio=0)
    graph.add(base[:100])
    state = lambda index: (len(index), index.search(base[:3], 2).ids.tolist())  # noqa: E731
    return [
        ("training", lambda progress: ivf.train(base, progress=progress), lambda: ivf.is_trained),
        ("adding", lambda progress: trained.add(np.tile(base, (4, 1)), progress=progress), lambda: state(trained)),
        ("graph", lambda progress: graph.add(base, progress=progress), lambda: state(graph)),
        ("kmeans", lambda progress: warpann.kmeans(base, 600, iterations=400, device="cpu", progress=progress), int),
    ]


@pytest.mark.parametrize("call", long_calls(), ids=lambda call: call[0])
def test_a_progress_function_ends_a_call(call: Any) -> None:
    _, run, state = call
    before = state()
    seen: list[warpann.Progress] = []

    def twice(progress: warpann.Progress) -> bool:
        seen.append(progress)
        return len(seen) < 2

    with pytest.raises(errors.Cancelled):
        run(twice)
    assert len(seen) == 2 and state() == before
    assert seen[0].stage in ("training", "adding", "searching", "linking") and 0 <= seen[0].done <= seen[0].total

    class Own(Exception):
        pass

    def raises(progress: warpann.Progress) -> bool:
        raise Own(progress.stage)

    with pytest.raises(Own):
        run(raises)
    assert state() == before


@pytest.mark.parametrize("call", [call for call in long_calls() if call[0] != "adding"], ids=lambda call: call[0])
def test_ctrl_c_ends_a_call(call: Any) -> None:
    _, run, state = call
    before = state()
    for progress in [None, lambda progress: None]:
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        start = time.perf_counter()
        with pytest.raises(KeyboardInterrupt):
            run(progress)
        # Without the signal each call takes many times as long.
        assert time.perf_counter() - start < 10
        timer.join()
        assert state() == before


def test_handlers_of_signals_run_during_calls() -> None:
    heard = []
    before = signal.signal(signal.SIGALRM, lambda *_: heard.append(time.perf_counter()))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        found = warpann.kmeans(rows(30_000, 32), 200, iterations=30, device="cpu")
        assert heard and len(found.objectives) == 30
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_call_on_another_thread_can_be_cancelled() -> None:
    caught: list[BaseException] = []

    def work() -> None:
        try:
            warpann.kmeans(rows(30_000, 32), 200, iterations=300, device="cpu", progress=lambda now: now.done < 3)
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert isinstance(caught[0], errors.Cancelled)


def test_exceptions_of_filters_end_searches() -> None:
    base = rows(500, 4)
    ivf = warpann.IvfIndex(4, 4, device="cpu")
    ivf.train(base)
    for index in [warpann.FlatIndex(4, device="cpu"), ivf, warpann.GraphIndex(4, device="cpu", exact_ratio=0)]:
        index.add(base)
        expected = index.search(base[:5], 3)

        def refuses(id: int) -> bool:
            if id == 77:
                raise KeyError("a filter")
            return True

        for call in (
            lambda: index.search(base[:5], 3, filter=refuses),
            lambda: index.range_search(base[:5], 1.0, filter=refuses),
            lambda: index.filter(refuses),
            lambda: index.search(base[:5], 3, filter=lambda: True),
        ):
            with pytest.raises((KeyError, TypeError)):
                call()
        reference.check_equal(index.search(base[:5], 3), (expected.distances, expected.ids))


def test_calls_from_inside_of_calls_are_refused_or_work() -> None:
    base = rows(20_000, 4)
    index, other = warpann.FlatIndex(4, device="cpu"), warpann.FlatIndex(4, device="cpu")
    index.add(base[:10])
    seen: list[object] = []

    def uses(progress: warpann.Progress) -> bool:
        for call in (lambda: index.add(base[:1]), lambda: index.search(base[:1], 1), lambda: len(index)):
            try:
                seen.append(call())
            except errors.Busy as error:
                seen.append(error.kind)
        other.add(base[:1])
        return True

    index.add(base, progress=uses)
    assert set(seen) == {"busy"} and len(other) > 0 and len(index) == 20_010

    def filters(id: int) -> bool:
        # A search may search, and not change.
        assert len(index) == 20_010
        try:
            index.remove([0])
        except errors.Busy:
            return id < 3
        return False

    assert index.search(base[0], 3, filter=filters).ids.tolist().count(-1) == 0

    writer = warpann.IndexWriter(other)

    def changes(next: Any) -> None:
        with pytest.raises(errors.Busy):
            writer.change(lambda next: None)
        next.clear()

    writer.change(changes)
    assert (writer.version, len(writer.current())) == (1, 0)


def test_many_threads_search_and_change() -> None:
    base = rows(400, 8)
    index = warpann.IvfIndex(8, 4, device="cpu")
    index.train(base)
    index.add(base)
    failed: list[BaseException] = []

    def searches() -> None:
        try:
            for _ in range(100):
                found = index.search(base[:3], 4, filter=lambda id: id < 400 if _ % 10 == 0 else True)
                assert found.ids[0, 0] == 0
        except BaseException as error:
            failed.append(error)

    def changes(first: int) -> None:
        try:
            for turn in range(40):
                ids = range(first + turn * 10, first + turn * 10 + 10)
                index.add(base[:10] + 50, ids)
                index.upsert(base[:10] + 60, ids)
                index.remove(ids)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=searches) for _ in range(4)]
    threads += [threading.Thread(target=changes, args=(1000 * number,)) for number in range(1, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed and len(index) == 400


def test_two_threads_merge_both_ways() -> None:
    one, two = warpann.FlatIndex(2, device="cpu"), warpann.FlatIndex(2, device="cpu")
    one.add([[0, 0]], [0])
    two.add([[1, 1]], [1])

    def merges(into: Any, of: Any) -> None:
        for _ in range(200):
            try:
                into.merge(of)
            except errors.DuplicateId:
                into.remove([0, 1], missing_ok=True)
                into.add([[0, 0]], [0 if into is one else 1])

    threads = [threading.Thread(target=merges, args=pair) for pair in ((one, two), (two, one))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_quick_calls_do_not_wait_for_threads_that_wait_for_python() -> None:
    """A call that made the threads of the library work while it had the interpreter's lock would never end here: they
    wait for the lock, in the filter of another search."""
    base = rows(20_000, 4)
    flat, ivf = warpann.FlatIndex(4, device="cpu"), warpann.IvfIndex(4, 8, device="cpu", iterations=1)
    flat.add(base)
    ivf.train(base)
    ivf.add(base)
    data, stop = ivf.to_bytes(), threading.Event()

    def searches() -> None:
        while not stop.is_set():
            flat.search(base[:2], 1, filter=lambda id: id % 2 == 0)

    threads = [threading.Thread(target=searches, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(30):
        # The first look for an id makes a table of all ids, in parallel.
        fresh = warpann.from_bytes(data, device="cpu")
        assert 7 in fresh and 20_000 not in fresh and len(fresh) == 20_000
        assert "IvfIndex" in repr(fresh) and fresh.device and fresh.statistics().vectors == 20_000
    stop.set()
    for thread in threads:
        thread.join()


def test_a_process_ends_while_daemon_threads_are_in_calls() -> None:
    program = """
        import threading, time, numpy as np, warpann
        base = np.random.default_rng(1).normal(size=(5000, 16)).astype(np.float32)
        index = warpann.FlatIndex(16, device="cpu")
        index.add(base)
        writer = warpann.IndexWriter(index)
        calls = [
            lambda: index.search(base[:200], 5),
            lambda: index.search(base[:2], 5, filter=lambda id: id % 2 == 0),
            lambda: warpann.kmeans(base, 50, iterations=5, progress=lambda progress: True),
            lambda: writer.change(lambda next: next.remove([0], missing_ok=True)),
            lambda: 7 in index,
        ]

        def repeats(call):
            while True:
                call()

        for call in calls * 2:
            threading.Thread(target=repeats, args=(call,), daemon=True).start()
        time.sleep(0.2)
        print("end")
    """
    for _ in range(5):
        ended = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60
        )
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "end\n", "")

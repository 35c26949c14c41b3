"""Random calls with wrong shapes, types, layouts, numbers, and from several threads: exceptions, never a crash, never an
error that means a bug, and never an index that is not what its calls made of it."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path
from typing import Any

import numpy as np

import warpann
from warpann import errors

CALLS = 12_000
# What a wrong argument may raise.
EXPECTED = (errors.WarpannError, TypeError, ValueError, OverflowError, LookupError)


class Odd:
    """An object that does everything wrong."""

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise KeyError("no array")

    def __len__(self) -> int:
        return -1


class Arrow:
    def __arrow_c_array__(self, requested_schema: object = None) -> Any:
        return (1, 2)


# No number of results that fits in memory and fills it.
def numbers(draw: random.Random) -> Any:
    return draw.choice(
        [0, 1, 2, 3, 4, 7, 20, 100, -1, 2**62, 2**64, -(2**70), 1.5, float("nan"), float("inf"), None]
        + ["3", True, np.int64(3), np.float32(2), b"x", Odd()]
    )


def shape(draw: random.Random) -> tuple[int, ...]:
    return tuple(draw.choice([0, 1, 2, 4, 4, 4, 5, 9]) for _ in range(draw.choice([0, 1, 1, 2, 2, 2, 2, 3])))


def vectors(draw: random.Random) -> Any:
    rng = np.random.default_rng(draw.getrandbits(32))
    dtype = draw.choice(["f4", "f4", "f4", "f8", "f2", "u1", "i1", "i8", ">f4", "c8", "?", "O", "S3", "M8[s]", "f4,i4"])
    kind = draw.randrange(12)
    if kind == 0:
        return draw.choice([None, "abc", Odd(), Arrow(), [], [[]], [[1, 2], [3]], {1, 2}, {}, 5, iter([1]), memoryview(b"abcd")])
    dims = (draw.choice([0, 1, 2, 3, 9]), 4) if kind < 8 else shape(draw)
    values = rng.integers(-3, 4, dims) * draw.choice([1, 1, 1, 1e-30, 1e30, 1e200])
    try:
        with np.errstate(all="ignore"):
            array = np.asarray(np.asarray(values).astype(dtype))
    except (TypeError, ValueError):
        array = np.asarray(values)
    layout = draw.randrange(9)
    if layout == 0 and array.ndim:
        array = array[::-1]
    elif layout == 1:
        array = np.asfortranarray(array)
    elif layout == 2 and array.ndim == 2:
        array = np.repeat(array, 2, axis=1)[:, ::2]
    elif layout == 3 and array.dtype.kind == "f" and array.size:
        array.reshape(-1)[draw.randrange(array.size)] = draw.choice([np.nan, np.inf, -np.inf])
    elif layout == 4 and array.dtype == np.float32:
        array = np.frombuffer(b"\1" + array.tobytes(), "u1")[1:].view("f4").reshape(array.shape)
    elif layout == 5:
        array.setflags(write=False)
    elif layout == 6:
        return array.tolist()
    elif layout == 7:
        array = np.ma.masked_array(array)
    return array


def ids(draw: random.Random) -> Any:
    count = draw.choice([0, 1, 2, 3, 9])
    known = [draw.choice([0, 1, 2, 3, 5, 8, 50, 1000]) for _ in range(count)]
    return draw.choice(
        [
            None,
            known,
            list(range(count)),
            np.array(known, np.int64),
            np.array(known, draw.choice(["u1", "i4", "u8", "f8", "?", ">i8"])),
            np.arange(count * 2)[::2],
            range(count),
            set(known),
            [-1],
            [2**63],
            "ids",
            Odd(),
            numbers(draw),
        ]
    )


def a_filter(draw: random.Random, index: Any) -> Any:
    def breaks(id: int) -> bool:
        return [True][id]

    return draw.choice(
        [None, None, None, ids(draw), breaks, lambda id: id % 2, lambda: 1, range(2, 9, 2), range(9, -3, -1)]
        + [np.ones(draw.choice([0, 3, len(index)]), bool), np.ones((2, 2), bool), warpann.Filter([1, 2])]
        + [Odd(), "x", True, 5]
    )


def progress(draw: random.Random) -> Any:
    return draw.choice([None, None, None, lambda now: True, lambda now: False, lambda: 1, 5, "x"])


def an_index(draw: random.Random) -> Any:
    dtype = draw.choice(["float32", "float32", "float16", "uint8", "int8", None])
    settings = {"metric": draw.choice(["l2", "ip", "cosine"]), "dtype": dtype, "device": draw.choice(["cpu", "cpu", "cpu+cpu"])}
    kind = draw.randrange(3)
    if kind == 0:
        return warpann.FlatIndex(4, **settings)
    if kind == 1:
        return warpann.GraphIndex(4, exact_ratio=draw.choice([0, 128]), degree=4, **settings)
    encoding = draw.choice(["flat", "flat", "sq8", "pq:2x4"])
    index = warpann.IvfIndex(4, 2, encoding=encoding, iterations=2, **settings)
    if draw.random() < 0.9:
        index.train(np.arange(80).reshape(20, 4) % 11)
    return index


def one_call(draw: random.Random, indexes: list[Any], writer: Any, batcher: Any, folder: Path) -> object:
    at = draw.randrange(len(indexes))
    index = indexes[at]
    options = {"filter": a_filter(draw, index), "probes": draw.choice([None, None, 1, 2, numbers(draw)])}
    k = draw.choice([1, 2, 5, 5, numbers(draw)])
    call = draw.randrange(26)
    if call < 5:
        return index.add(vectors(draw), ids(draw), progress=progress(draw))
    if call == 5:
        return index.upsert(vectors(draw), ids(draw))
    if call == 6:
        return index.remove(ids(draw), missing_ok=draw.random() < 0.7)
    if call < 10:
        return index.search(vectors(draw), k, radius=draw.choice([None, numbers(draw)]), beam=draw.choice([None, k]), **options)
    if call == 10:
        return index.range_search(vectors(draw), numbers(draw), **options)
    if call == 11:
        return index.search_with_statistics(vectors(draw), k, widen=draw.random() < 0.5, **options)
    if call == 12:
        indexes[at] = an_index(draw)
        return None
    if call == 13:
        return index.merge(draw.choice([*indexes, 5]))
    if call == 14:
        indexes[at] = draw.choice([index.snapshot, lambda: warpann.from_bytes(index.to_bytes())])()
        return None
    if call == 15:
        return index.reconstruct(ids(draw))
    if call == 16:
        path = folder / f"{threading.get_ident()}.index"
        index.save(draw.choice([path, str(path), folder / "no" / "folder", 5]), progress=progress(draw))
        return warpann.load(path)
    if call == 17:
        data = bytearray(index.to_bytes())
        data[draw.randrange(len(data))] ^= 1
        return warpann.from_bytes(draw.choice([data, data[: draw.randrange(len(data))], b"", "x", None]))
    if call == 18:
        return index.tune(vectors(draw), k, draw.choice([0.5, 2.0, numbers(draw)]))
    if call == 19:
        return writer.change(draw.choice([lambda next: next.add(vectors(draw), ids(draw)), lambda: 1, 5]))
    if call == 20:
        answer = batcher.submit(vectors(draw), k, timeout=draw.choice([None, 5.0, numbers(draw)]), **options)
        return draw.choice([answer.cancel, lambda: answer.result(timeout=60)])()
    if call == 21:
        return warpann.select_k(vectors(draw), k, largest=draw.random() < 0.5)
    if call == 22:
        return warpann.kmeans(vectors(draw), draw.choice([1, 2, numbers(draw)]), iterations=2, weights=ids(draw))
    if call == 23:
        return warpann.knn_graph(index, vectors(draw), draw.choice([1, 3, 2**62]), progress=progress(draw))
    if call == 24:
        return draw.choice([index.clear, index.compact, index.ids, index.statistics, lambda: index.move_to("cpu")])()
    wrong = draw.choice([warpann.FlatIndex, warpann.GraphIndex, warpann.Filter, warpann.Batcher, warpann.assign])
    return wrong(*[draw.choice([numbers(draw), vectors(draw), index]) for _ in range(draw.randrange(4))])


def run(seed: int, calls: int, indexes: list[Any], folder: Path, failed: list[str]) -> None:
    draw = random.Random(seed)
    writer = warpann.IndexWriter(warpann.FlatIndex(4, device="cpu"))
    succeeded = 0
    with warpann.Batcher(writer, workers=1) as batcher:
        for number in range(calls):
            try:
                one_call(draw, indexes, writer, batcher, folder)
                succeeded += 1
            except errors.InternalError as error:
                failed.append(f"seed {seed}, call {number}: {error}")
            except EXPECTED:
                pass
            except BaseException as error:
                failed.append(f"seed {seed}, call {number}: {type(error)}: {error}")
    # Most calls have something wrong with them, and enough have not.
    if not 0.1 * calls < succeeded < 0.9 * calls:
        failed.append(f"{succeeded} of {calls} calls succeeded")


def check(indexes: list[Any]) -> None:
    """The indexes still answer: each vector that an exact index has is found."""
    for index in indexes:
        known = index.ids()
        assert len(known) == len(index) and (np.diff(known) > 0).all()
        if isinstance(index, warpann.FlatIndex) and len(index) and index.metric == "l2":
            # Decoded vectors are float32, which an index of bytes does not take.
            whole = {"i8": np.int8, "u8": np.uint8}.get(index.dtype, np.float32)
            found = index.search(index.reconstruct(known[:20]).astype(whole), 1)
            assert (found.distances == 0).all()


def test_random_calls_of_one_thread(tmp_path: Path) -> None:
    seed, failed = int(os.environ.get("WARPANN_PROPERTY_BASE", "1")), list[str]()
    for part in range(10):
        indexes = [an_index(random.Random(seed + part)) for _ in range(4)]
        run(seed + part, CALLS // 20, indexes, tmp_path, failed)
        check(indexes)
    assert not failed, failed[:5]


def test_random_calls_of_four_threads(tmp_path: Path) -> None:
    seed, failed = int(os.environ.get("WARPANN_PROPERTY_BASE", "1")), list[str]()
    indexes = [an_index(random.Random(seed + part)) for part in range(6)]
    work = [(seed + 100 + part, CALLS // 8, indexes, tmp_path, failed) for part in range(4)]
    threads = [threading.Thread(target=run, args=arguments) for arguments in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check(indexes)
    assert not failed, failed[:5]

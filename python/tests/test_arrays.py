"""How arguments are read: without a copy where none is needed, once where numbers become others, or refused."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import tracemalloc
from array import array
from typing import Any

import numpy as np
import pytest

import warpann
from warpann import errors


def flat(dim: int = 3, **settings: Any) -> warpann.FlatIndex:
    return warpann.FlatIndex(dim, device="cpu", **settings)


ROWS = [[1, 2, 3], [4, 5, 6], [7, 8, 10]]


@pytest.mark.parametrize(
    "rows",
    [
        ROWS,
        tuple(map(tuple, ROWS)),
        np.array(ROWS),
        np.array(ROWS, np.float64),
        np.array(ROWS, np.float16),
        np.array(ROWS, ">f4"),
        np.array(ROWS, np.int8),
        np.asfortranarray(np.array(ROWS, np.float32)),
        np.repeat(np.array(ROWS, np.float32), 2, axis=1)[:, ::2],
        np.array(ROWS, np.float32)[::-1][::-1],
        np.frombuffer(b"\0" + np.array(ROWS, np.float32).tobytes(), np.uint8)[1:].view(np.float32).reshape(3, 3),
        memoryview(np.array(ROWS, np.float32)),
        np.array(ROWS, np.float32).view(np.matrix),
    ],
    ids=lambda rows: f"{type(rows).__name__}-{getattr(rows, 'dtype', '')}",
)
@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_any_array_of_numbers_is_read(rows: Any) -> None:
    index = flat()
    index.add(rows)
    np.testing.assert_array_equal(index.reconstruct([0, 1, 2]), ROWS)
    assert index.search(rows, 1).ids.tolist() == [[0], [1], [2]]


def test_a_single_vector_has_one_axis() -> None:
    index = flat()
    index.add(np.float32([1, 2, 3]))
    index.add(array("f", [4, 5, 6]))
    found = index.search(np.float32([4, 5, 5]), 1)
    assert (found.ids.tolist(), found.distances.tolist()) == ([1], [1.0])
    assert index.search(np.empty((0, 3), np.float32), 2).ids.shape == (0, 2)


@pytest.mark.parametrize("value", [300, -1, 1.5])
def test_an_index_of_bytes_takes_no_other_numbers(value: float) -> None:
    index = flat(dtype="uint8")
    index.add([[1, 2, 255]])
    with pytest.raises(errors.WrongType) as caught:
        index.add(np.array([[1, 2, value]]))
    assert caught.value.argument == "vectors" and caught.value.expected == "uint8"
    assert len(index) == 1


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (np.zeros((2, 2, 3), np.float32), errors.WrongShape),
        (np.float32(1), errors.WrongShape),
        (np.zeros((2, 4), np.float32), errors.WrongDimension),
        (np.zeros(4, np.float32), errors.WrongDimension),
        ([], errors.WrongDimension),
        (np.zeros((2, 3), np.complex64), errors.WrongType),
        (np.zeros((2, 3), bool), errors.WrongType),
        (np.array([["a", "b", "c"]]), errors.WrongType),
        (np.array([[None, 1, 2]]), errors.WrongType),
        (np.zeros((2, 3), "M8[s]"), errors.WrongType),
        (np.ma.masked_array(np.zeros((2, 3), np.float32)), errors.WrongType),
        ([[1, 2], [3]], errors.WrongType),
        ("abc", errors.WrongShape),
        (None, errors.WrongShape),
        (object(), errors.WrongShape),
        ([[1e300, 0, 0]], errors.NotFinite),
        ([[float("nan"), 0, 0]], errors.NotFinite),
    ],
    ids=repr,
)
def test_other_arguments_are_refused(value: Any, error: type[Exception]) -> None:
    index = flat()
    for call in (index.add, lambda value: index.search(value, 1), lambda value: index.range_search(value, 1.0)):
        with pytest.raises(error):
            call(value)
    assert len(index) == 0


@pytest.mark.parametrize("dtype", ["float32", "f32", np.float32, np.dtype("f4"), "float16", "uint8", np.int8, None])
def test_names_of_element_types(dtype: Any) -> None:
    index = flat(dtype=dtype)
    assert index.dtype == ("f32" if dtype is None else warpann._arrays.element_name(dtype))


@pytest.mark.parametrize("dtype", ["float64", np.float64, int, "f4", "", object(), 3])
def test_other_element_types_are_refused(dtype: Any) -> None:
    with pytest.raises(errors.UnknownName) as caught:
        flat(dtype=dtype)
    assert "float32" in caught.value.known


@pytest.mark.parametrize(
    "ids",
    [[5, 7, 9], (5, 7, 9), np.array([5, 7, 9]), np.array([5, 7, 9], np.uint64), np.array([5, 7, 9], np.int8),
     np.array([5, 0, 7, 0, 9, 0])[::2], range(5, 10, 2), {5, 7, 9}, iter([5, 7, 9]), np.array([5, 7, 9], ">i8")],
    ids=lambda ids: type(ids).__name__,
)  # fmt: skip
def test_any_integers_are_ids(ids: Any) -> None:
    index = flat()
    index.add(ROWS, ids)
    assert sorted(index.ids()) == [5, 7, 9]


@pytest.mark.parametrize(
    ("ids", "error"),
    [
        ([1, 2], errors.WrongLength),
        ([1, 2, 2], errors.DuplicateId),
        ([1, 2, -1], errors.IdOutOfRange),
        ([1, 2, 2**63], errors.IdOutOfRange),
        (np.array([1, 2, -(2**63)]), errors.IdOutOfRange),
        (np.array([1, 2, 2**64 - 1], np.uint64), errors.IdOutOfRange),
        ([1, 2, 2**70], errors.IdOutOfRange),
        ([1.0, 2.0, 3.0], errors.WrongType),
        (np.array([True, False, True]), errors.WrongType),
        (np.array([[1, 2, 3]]), errors.WrongShape),
        ("abc", errors.WrongType),
        (5, errors.WrongShape),
    ],
    ids=repr,
)
def test_other_ids_are_refused(ids: Any, error: type[Exception]) -> None:
    index = flat()
    with pytest.raises(error):
        index.add(ROWS, ids)
    assert len(index) == 0


@pytest.mark.parametrize(
    ("filter", "error"),
    [
        ("abc", errors.WrongType),
        (True, errors.WrongType),
        (1.5, errors.WrongType),
        (np.zeros(4, bool), errors.WrongLength),
        (np.zeros((3, 1), bool), errors.WrongShape),
        ([-1], errors.IdOutOfRange),
        (np.float32([1]), errors.WrongType),
    ],
    ids=repr,
)
def test_other_filters_are_refused(filter: Any, error: type[Exception]) -> None:
    index = flat()
    index.add(ROWS)
    with pytest.raises(error):
        index.search(ROWS, 1, filter=filter)


def test_masks_of_any_layout() -> None:
    index = flat()
    index.add(ROWS)
    mask = np.array([True, False, False, False, True, False])
    assert index.search([1, 2, 3], 3, filter=mask[::2]).ids.tolist() == [0, 2, -1]
    # A byte other than 0 and 1 is true.
    assert index.search([1, 2, 3], 3, filter=np.uint8([0, 2, 0]).view(bool)).ids.tolist() == [1, -1, -1]


def test_masks_combine_and_become_stale() -> None:
    index = flat()
    index.add(ROWS)
    low, odd = index.filter(lambda id: id < 2), index.filter(lambda id: id % 2 == 1)
    ids = lambda filter: index.search([0, 0, 0], 3, filter=filter).ids.tolist()  # noqa: E731
    assert (ids(low & odd), ids(low | odd), ids(low - odd)) == ([1, -1, -1], [0, 1, -1], [0, -1, -1])
    assert ((low | odd).accepted(), warpann.Filter([1]).accepted()) == (2, None)
    with pytest.raises(errors.WrongType):
        low & warpann.Filter([1])
    index.remove([0])
    index.add([[0, 0, 0]])
    with pytest.raises(errors.StaleFilter) as caught:
        ids(low)
    assert caught.value.vectors == 3


def traced_peak(call: Any) -> int:
    """Bytes that numpy and Python allocate during a call, at most."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_arrays_of_the_right_type_are_not_copied() -> None:
    base = np.zeros((20_000, 64), np.float32)
    index = flat(64)
    assert traced_peak(lambda: index.add(base)) < 10_000
    assert traced_peak(lambda: index.upsert(base, np.arange(20_000))) < 200_000
    index.remove(np.arange(1, 20_000))
    assert traced_peak(lambda: index.search(base, 1)) < 10_000
    # One copy of other numbers: this shows that the measurement sees copies.
    assert base.nbytes < traced_peak(lambda: index.search(base.astype(np.float64), 1)) < 3.2 * base.nbytes
    wide = base.astype(np.float64)
    assert base.nbytes < traced_peak(lambda: index.search(wide, 1)) < 1.2 * base.nbytes


def test_results_are_the_memory_of_the_library() -> None:
    index = flat()
    index.add(ROWS)
    found = index.search(ROWS, 2)
    for result in found:
        assert result.base is not None and not result.flags.owndata and result.flags.writeable


def test_queries_are_read_in_place() -> None:
    """The resident memory of a process does not grow by a copy of the queries."""
    program = """
        import numpy as np, re, warpann
        index = warpann.FlatIndex(256, device="cpu")
        index.add(np.zeros((1, 256), np.float32))
        queries = np.ones((100_000, 256), np.float32)
        index.search(queries[:1000], 1)
        peak = lambda: int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]) * 1024
        before = peak()
        index.search(queries, 1)
        print((peak() - before) / queries.nbytes)
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    assert float(ended.stdout) < 0.5


def test_arrow() -> None:
    pa = pytest.importorskip("pyarrow")
    rng = np.random.default_rng(1)
    for dtype, element in [("float32", "float32"), ("float16", "float16"), ("uint8", "uint8"), ("int8", "int8"), ("float64", "float32")]:
        rows = rng.integers(0, 9, (50, 6)).astype(dtype)
        arrow = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), 6)
        index = flat(6, dtype=element)
        index.add(arrow)
        np.testing.assert_array_equal(index.reconstruct(range(50)), rows)
        part = arrow[10:20]
        np.testing.assert_array_equal(index.search(part, 1).distances, np.zeros((10, 1)))
        view = warpann._warpann.arrow_vectors(part, "part")
        np.testing.assert_array_equal(view, rows[10:20])
        assert not view.flags.writeable
        memory = np.frombuffer(arrow.values.buffers()[1], dtype)
        assert np.shares_memory(view, memory)
        del arrow, part
        np.testing.assert_array_equal(view, rows[10:20])


def test_other_arrow_arrays_are_refused() -> None:
    pa = pytest.importorskip("pyarrow")
    lists = pa.FixedSizeListArray.from_arrays
    numbers = pa.array(np.arange(6, dtype=np.float32))
    whole = lists(numbers, 3)
    empty = lists(numbers[:0], 3)
    index = flat()
    index.add(empty)
    index.add(whole)
    assert len(index) == 2
    for other in [
        numbers,
        pa.array([[1.0, 2.0, 3.0]]),
        pa.array([[1.0, 2.0, 3.0], None], pa.list_(pa.float32(), 3)),
        pa.array([[1.0, None, 3.0]], pa.list_(pa.float32(), 3)),
        lists(pa.array(["a", "b", "c"]), 3),
        lists(pa.array(range(6), pa.int32()), 3),
    ]:
        with pytest.raises(errors.WrongType):
            index.add(other)
    with pytest.raises(errors.WrongDimension):
        index.add(lists(numbers, 2))
    # A null outside of the slice is none of its vectors.
    index.add(pa.array([None, [1.0, 2.0, 3.0]], pa.list_(pa.float32(), 3))[1:])
    assert len(index) == 3

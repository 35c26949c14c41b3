"""The module in the place of hnswlib. hnswlib's own tests pass with it, too; they are run by hand (docs/PYTHON.md)."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oracles import oracle
from warpann import errors
from warpann.compat import hnswlib

DATA = np.random.default_rng(1).normal(size=(400, 12)).astype(np.float32)


def filled(space: str = "l2", replace: bool = False) -> Any:
    index = hnswlib.Index(space=space, dim=12)
    index.init_index(max_elements=500, M=8, ef_construction=77, allow_replace_deleted=replace)
    index.add_items(DATA, np.arange(400) * 3)
    return index


def distances(space: str, queries: Any) -> Any:
    x, y = queries.astype(np.float64), DATA.astype(np.float64)
    if space == "cosine":
        x, y = (z / np.linalg.norm(z, axis=1, keepdims=True) for z in (x, y))
    return ((x[:, None] - y[None]) ** 2).sum(-1) if space == "l2" else 1 - x @ y.T


@pytest.mark.parametrize("space", ["l2", "ip", "cosine"])
def test_distances_and_labels_are_those_of_hnswlib(space: str) -> None:
    index, exact = filled(space), hnswlib.BFIndex(space=space, dim=12)
    exact.init_index(max_elements=400)
    exact.add_items(DATA, np.arange(400) * 3)
    expected = distances(space, DATA[:20])
    labels, found = index.knn_query(DATA[:20], k=5)
    assert labels.dtype == np.uint64 and found.dtype == np.float32 and labels.shape == (20, 5)
    np.testing.assert_array_equal(labels, np.argsort(expected, axis=1)[:, :5] * 3)
    np.testing.assert_allclose(found, np.sort(expected, axis=1)[:, :5], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(exact.knn_query(DATA[:20], k=5)[0], labels)
    even, _ = index.knn_query(DATA[:20], k=5, filter=lambda label: label % 2 == 0)
    assert (even % 2 == 0).all()
    assert repr(index) == f"<hnswlib.Index(space='{space}', dim=12)>"


def test_deletions_updates_and_capacity() -> None:
    index = filled(replace=True)
    index.mark_deleted(0)
    for call in (lambda: index.mark_deleted(0), lambda: index.unmark_deleted(3), lambda: index.get_items([0])):
        with pytest.raises(RuntimeError):
            call()
    assert index.knn_query(DATA[0])[0][0, 0] != 0 and index.element_count == 400
    index.unmark_deleted(0)
    assert index.knn_query(DATA[0])[0][0, 0] == 0
    # Of two vectors with one label the last stays, also if the label is known.
    index.add_items(np.stack([DATA[1], DATA[1] + 50]), [3, 3])
    np.testing.assert_array_equal(index.get_items([3]), DATA[1:2] + 50)
    with pytest.raises(RuntimeError, match="exceeds the specified limit"):
        index.add_items(DATA[:101], np.arange(1, 304, 3))
    assert index.element_count == 400
    index.resize_index(501)
    index.add_items(DATA[:101], np.arange(1, 304, 3))
    with pytest.raises(RuntimeError):
        index.add_items(DATA[0], 5_000)
    index.mark_deleted(6)
    index.add_items(DATA[0] + 9, 5_000, replace_deleted=True)
    assert index.element_count == 501 and 6 not in index.get_ids_list() and 5_000 in index.get_ids_list()
    with pytest.raises(RuntimeError, match="disabled"):
        filled().add_items(DATA[:1], [1], replace_deleted=True)


def test_a_call_that_fails_changes_nothing() -> None:
    index = filled(replace=True)
    index.mark_deleted(0)
    bad = DATA[:5].copy()
    bad[3, 4] = np.nan
    with pytest.raises(errors.NotFinite):
        index.add_items(bad, [1, 2, 4, 5, 7], replace_deleted=True)
    with pytest.raises(RuntimeError, match="dimensionality"):
        index.add_items(DATA[:, :5])
    with pytest.raises(RuntimeError):
        index.knn_query(DATA[:1], k=400)
    assert index.element_count == 400 and len(index.knn_query(DATA[:1], k=399)[0][0]) == 399
    for call in ("get_current_count", "get_ids_list", "index_file_size"):
        with pytest.raises(RuntimeError, match="not initiated"):
            getattr(hnswlib.Index("l2", 3), call)()
    with pytest.raises(RuntimeError):
        index.init_index(5)
    with pytest.raises(RuntimeError):
        hnswlib.Index("manhattan", 3)


def test_files_copies_and_pickles(tmp_path: Path) -> None:
    index = filled()
    for label in (0, 30):
        index.mark_deleted(label)
    path = str(tmp_path / "an.index")
    index.save_index(path)
    assert Path(path).stat().st_size == index.index_file_size()
    assert [entry.name for entry in tmp_path.iterdir()] == ["an.index"]
    loaded = hnswlib.Index("l2", 12)
    loaded.load_index(path)
    for other in (loaded, hnswlib.Index(index=index), copy.deepcopy(index), pickle.loads(pickle.dumps(index))):
        assert (other.M, other.ef_construction, other.max_elements, other.element_count) == (8, 77, 500, 400)
        np.testing.assert_array_equal(other.knn_query(DATA, k=3)[0], index.knn_query(DATA, k=3)[0])
        other.unmark_deleted(30)
        assert other.knn_query(DATA[10])[0][0, 0] == 30 and index.knn_query(DATA[10])[0][0, 0] != 30
        other.add_items(DATA[:1] + 1)
        assert other.element_count == 401 and index.element_count == 400
    exact = hnswlib.BFIndex("ip", 12)
    exact.init_index(50)
    exact.add_items(DATA[:40])
    exact.delete_vector(7)
    exact.save_index(path)
    again = hnswlib.BFIndex("ip", 12)
    again.load_index(path)
    np.testing.assert_array_equal(again.knn_query(DATA, k=3)[0], exact.knn_query(DATA, k=3)[0])
    assert (again.get_current_count(), again.get_max_elements()) == (39, 50)
    Path(path).write_bytes(Path(path).read_bytes()[:-1])
    with pytest.raises(RuntimeError):
        again.load_index(path)


def test_files_are_those_of_hnswlib(tmp_path: Path) -> None:
    theirs = oracle("hnswlib")
    path = str(tmp_path / "an.index")
    ours = filled()
    ours.mark_deleted(3)
    for write, read in ((ours, theirs.Index("l2", 12)), (None, hnswlib.Index("l2", 12))):
        if write is None:
            write = theirs.Index("l2", 12)
            write.init_index(500, M=8, ef_construction=77)
            write.add_items(DATA, np.arange(400) * 3)
            write.mark_deleted(3)
        write.save_index(path)
        read.load_index(path)
        assert (read.M, read.ef_construction, read.max_elements, read.element_count) == (8, 77, 500, 400)
        read.set_ef(399)
        assert 3 not in read.knn_query(DATA[1:2], k=399)[0]
        read.unmark_deleted(3)
        assert read.knn_query(DATA[1])[0][0, 0] == 3
        exact = write_exact = hnswlib.BFIndex("l2", 12)
        write_exact.init_index(410)
        write_exact.add_items(DATA)
        exact.save_index(path)
        other = theirs.BFIndex("l2", 12)
        other.load_index(path)
        np.testing.assert_array_equal(other.knn_query(DATA, k=1)[0], exact.knn_query(DATA, k=1)[0])

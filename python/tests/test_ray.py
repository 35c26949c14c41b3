"""Shards in actors of Ray, against one index of everything."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ray = pytest.importorskip("ray")
pa = pytest.importorskip("pyarrow")
from pyarrow import parquet  # noqa: E402

import reference  # noqa: E402
import warpann  # noqa: E402
from warpann import errors  # noqa: E402
from warpann.ray import ShardedIndex  # noqa: E402

# Warnings of Ray itself.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def integers(rows: int, dim: int, seed: int) -> Any:
    """Many distances are equal, so that ids decide."""
    return np.random.default_rng(seed).integers(0, 7, (rows, dim)).astype(np.float32)


def write(path: Path, vectors: Any, ids: Any = None, form: str = "fixed") -> Path:
    flat = pa.array(vectors.reshape(-1))
    if form == "fixed":
        column = pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
    else:
        column = pa.ListArray.from_arrays(np.arange(len(vectors) + 1, dtype=np.int32) * vectors.shape[1], flat)
    columns = {"text": ["a"] * len(vectors), "embedding": column}
    if ids is not None:
        columns["number"] = pa.array(ids)
    parquet.write_table(pa.table(columns), path, row_group_size=50)
    return path


def trained(base: Any) -> Any:
    index = warpann.IvfIndex(4, 7, encoding="pq:2x4", device="cpu")
    index.train(base)
    index.probes = 3
    return index


def test_an_actor_that_is_killed_comes_back_from_its_part(tmp_path: Path) -> None:
    base, queries = integers(300, 4, 1), integers(9, 4, 2)
    one = trained(base)
    one.add(base)
    expected = one.search(queries, 12)
    # A file, several files of another form, and an array.
    sources = [
        write(tmp_path / "a.parquet", base[:120]),
        [write(tmp_path / "b.parquet", base[120:121], form="list"), write(tmp_path / "c.parquet", base[121:250])],
        base[250:],
    ]
    folder = tmp_path / "index"
    with ShardedIndex.build(trained(base), sources, folder, device="cpu") as index:
        assert len(index) == 300
        reference.check_equal(index.search(queries, 12), expected)
        for path in [*tmp_path.glob("*.parquet")]:
            path.unlink()
        # Searches go on while actors die: one after the other, and the last one twice.
        for shard in (0, 1, 2, 2):
            ray.kill(index._actors[shard], no_restart=False)
            reference.check_equal(index.search(queries, 12), expected)
        reference.check_equal(index.search(queries[0], 12, probes=7), one.search(queries[0], 12, probes=7))
        found = index.search(queries, 5, filter=range(0, 300, 2), widen=False)
        reference.check_equal(found, one.search(queries, 5, filter=range(0, 300, 2), widen=False))
        found = index.search(queries, 5, filter=lambda id: id > 200, radius=9.0, widen=False)
        reference.check_equal(found, one.search(queries, 5, filter=range(201, 300), radius=9.0, widen=False))
        assert index.search(queries[:0], 5).ids.shape == (0, 5)
    with ShardedIndex(folder, device="cpu") as index:
        reference.check_equal(index.search(queries, 12), expected)
        # An actor that cannot come back, until its file does.
        part = folder / "part.1-of-3"
        whole = part.read_bytes()
        part.unlink()
        ray.kill(index._actors[1], no_restart=False)
        with pytest.raises(errors.Io) as caught:
            index.search(queries, 12)
        assert type(caught.value) is errors.Io and caught.value.path == str(part)
        part.write_bytes(whole)
        reference.check_equal(index.search(queries, 12), expected)
        # An actor that is ended for good.
        ray.kill(index._actors[1])
        with pytest.raises(ray.exceptions.RayActorError):
            index.search(queries, 12)
    for content, kind in ((whole[:-9], errors.BadFile), (None, errors.Io)):
        part.unlink() if content is None else part.write_bytes(content)
        with pytest.raises(kind) as caught:
            ShardedIndex(folder, device="cpu")
        assert type(caught.value) is kind


def test_exact_shards_with_ids(tmp_path: Path) -> None:
    base = integers(90, 4, 1)
    ids = np.random.default_rng(3).permutation(2**40 - np.arange(90))
    one = warpann.FlatIndex(4, metric="ip", device="cpu")
    empty = one.snapshot()
    one.add(base, ids)
    sources = [
        write(tmp_path / "a.parquet", base[:50].astype(np.float64), ids[:50]),
        [],
        (base[50:], ids[50:]),
    ]
    with ShardedIndex.build(empty, sources, tmp_path / "index", column="embedding", ids="number", device="cpu") as index:
        assert len(index) == 90
        # More than a shard has, and more than all have.
        for k in (1, 60, 100):
            reference.check_equal(index.search(base[:5], k), one.search(base[:5], k))
        for filter in (np.ones(30, bool), warpann.Filter([1])):
            with pytest.raises(errors.WrongType):
                index.search(base[:5], 1, filter=filter)
        with pytest.raises(errors.NotFinite) as caught:
            index.search([[np.nan] * 4], 1)
        assert type(caught.value) is errors.NotFinite and caught.value.input == "queries"
        with pytest.raises(errors.WrongShape):
            index.search(base[None], 1)


def test_builds_that_fail_leave_nothing(tmp_path: Path) -> None:
    base = integers(30, 4, 1)
    flat = warpann.FlatIndex(4, device="cpu")
    full = flat.snapshot()
    full.add(base)
    good = write(tmp_path / "a.parquet", base)
    two = tmp_path / "two.parquet"
    parquet.write_table(pa.table({"a": [[1.0]], "b": [[2.0]]}), two)
    uneven, null, empty = (tmp_path / name for name in ("uneven.parquet", "null.parquet", "empty.parquet"))
    parquet.write_table(pa.table({"a": [[1.0, 2, 3, 4], [2.0, 3, 4]]}), uneven)
    parquet.write_table(pa.table({"a": [[1.0, 2, 3, 4], None]}), null)
    parquet.write_table(pa.table({"a": [[1.0, None, 3, 4]]}), empty)
    cases: list[tuple[Any, Any, Any, dict[str, Any]]] = [
        (errors.NotEmpty, full, [base], {}),
        (errors.NotTrained, warpann.IvfIndex(4, 3, device="cpu"), [base], {}),
        (errors.WrongType, flat, [], {}),
        (errors.WrongType, flat, str(good), {}),
        (errors.UnknownName, flat, [good], {"column": "no"}),
        (errors.UnknownName, flat, [good], {"ids": "no"}),
        (errors.UnknownName, flat, [two], {}),
        (errors.WrongType, flat, [good, uneven], {}),
        (errors.WrongType, flat, [good, null], {}),
        (errors.WrongType, flat, [good, empty], {}),
        (errors.WrongDimension, flat, [good, base[:, :3]], {}),
        (errors.NotFinite, flat, [good, base / 0], {}),
        (errors.DuplicateId, flat, [(base[:2], [1, 1])], {}),
        (FileNotFoundError, flat, [tmp_path / "no.parquet"], {}),
    ]
    folder = tmp_path / "index"
    with np.errstate(all="ignore"):
        for kind, index, sources, options in cases:
            with pytest.raises(kind) as caught:
                ShardedIndex.build(index, sources, folder, device="cpu", **options)
            assert type(caught.value) is kind and not folder.exists()
    folder.mkdir()
    (folder / "mine").write_text("text")
    with pytest.raises(errors.Io):
        ShardedIndex.build(flat, [base], folder, device="cpu")
    assert [path.name for path in folder.iterdir()] == ["mine"]
    # Parts of two indexes.
    flat.save(folder / "part.0-of-2")
    warpann.FlatIndex(4, metric="ip", device="cpu").save(folder / "part.1-of-2")
    with pytest.raises(errors.Incompatible):
        ShardedIndex(folder, device="cpu")
    flat.save(folder / "part.0-of-1")
    with pytest.raises(errors.Io):
        ShardedIndex(folder, device="cpu")


def test_closing_ends_the_actors(tmp_path: Path) -> None:
    base = integers(30, 4, 1)
    index = ShardedIndex.build(warpann.FlatIndex(4, device="cpu"), [base], tmp_path / "index", device="cpu")
    actor = index._actors[0]
    index.close()
    index.close()
    for _ in range(100):
        try:
            ray.get(actor.about.remote(), timeout=5)
        except ray.exceptions.RayActorError:
            break
        time.sleep(0.1)
    else:
        pytest.fail("the actor lives")

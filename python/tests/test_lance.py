"""Lance's own search, with its training and with ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

lance = pytest.importorskip("lance")
import pyarrow as pa  # noqa: E402

import warpann  # noqa: E402
from warpann import errors  # noqa: E402
from warpann.lance import train  # noqa: E402

# Warnings of Lance itself.
pytestmark = pytest.mark.filterwarnings("ignore")

SAMPLE = Path(__file__).parents[2] / "tests/data/sift-sample"
LISTS, SUBVECTORS = 12, 16


def bvecs(path: Path) -> Any:
    rows = np.fromfile(path, np.uint8).reshape(-1, 4 + 128)
    return rows[:, 4:].astype(np.float32)


@pytest.fixture(scope="module")
def sift() -> tuple[Any, Any]:
    return bvecs(SAMPLE / "sample_base.bvecs")[:5000], bvecs(SAMPLE / "sample_query.bvecs")


def dataset(vectors: Any, kind: Any, path: Path) -> Any:
    """A dataset with a null between its vectors."""
    values = pa.array(vectors.reshape(-1)).cast(kind)
    column = pa.FixedSizeListArray.from_arrays(values, vectors.shape[1])
    column = pa.concat_arrays([column[:100], pa.nulls(1, column.type), column[100:]])
    ids = np.concatenate([np.arange(100), [-1], np.arange(100, len(vectors))])
    return lance.write_dataset(pa.table({"id": ids, "vector": column}), str(path))


def recall(found: Any, queries: Any, truth: Any) -> float:
    hits = 0
    for query, expected in zip(queries, truth):
        nearest = {"column": "vector", "q": query, "k": 10, "nprobes": 3}
        ids = found.to_table(columns=["id", "_distance"], nearest=nearest)["id"].to_numpy()
        hits += len(set(ids) & set(expected))
    return hits / truth.size


@pytest.mark.parametrize("metric", ["l2", "cosine"])
@pytest.mark.parametrize("kind", ["float", "halffloat", "double"])
def test_lance_finds_as_much_with_our_training(sift: Any, metric: str, kind: str, tmp_path: Path) -> None:
    base, queries = sift
    exact = warpann.FlatIndex(128, metric=metric, device="cpu")
    exact.add(base)
    truth = exact.search(queries, 10).ids
    types = {"float": pa.float32(), "halffloat": pa.float16(), "double": pa.float64()}
    recalls = []
    for ours in (False, True):
        data = dataset(base, types[kind], tmp_path / str(ours))
        arguments = {}
        if ours:
            training = train(data, "vector", LISTS, SUBVECTORS, metric=metric, device="cpu")
            assert training.ivf_centroids.shape == (LISTS, 128)
            assert training.pq_codebook.shape == (SUBVECTORS, 256, 128 // SUBVECTORS)
            assert training.pq_codebook.dtype == training.ivf_centroids.dtype == types[kind].to_pandas_dtype()
            arguments = training._asdict()
        data.create_index(
            "vector", "IVF_PQ", metric=metric, num_partitions=LISTS, num_sub_vectors=SUBVECTORS, **arguments
        )
        typed = queries.astype(types[kind].to_pandas_dtype())
        recalls.append(recall(data, typed, truth))
    # Lance draws another sample each time: its recall varies by about .01.
    assert recalls[0] > 0.5 and recalls[1] > recalls[0] - 0.03, recalls


def test_samples_and_refusals(sift: Any, tmp_path: Path) -> None:
    base, _ = sift
    data = dataset(base, pa.float32(), tmp_path / "a")
    # A sample of 256 · 16 of 5,000 vectors.
    first, again, other = (train(data, "vector", 4, 8, bits=4, seed=seed, device="cpu") for seed in (1, 1, 2))
    assert first.pq_codebook.shape == (8, 16, 16)
    assert (first.pq_codebook == again.pq_codebook).all() and (first.ivf_centroids == again.ivf_centroids).all()
    assert (first.ivf_centroids != other.ivf_centroids).any()
    few = dataset(base[:101], pa.float32(), tmp_path / "b")
    for call, kind in [
        (lambda: train(data, "vector", 4, 8, metric="dot"), errors.UnknownName),
        (lambda: train(data, "vector", 4, 7), errors.NotDivisible),
        (lambda: train(data, "vector", 0, 8), errors.Zero),
        (lambda: train(data, "id", 4, 8), errors.WrongType),
        (lambda: train(few, "vector", 4, 8), errors.TooFewTrainingVectors),
        (lambda: train(data, "vector", 4, 8, progress=lambda progress: False), errors.Cancelled),
    ]:
        with pytest.raises(kind):
            call()
    nothing = lance.write_dataset(few.to_table(filter="id < 0"), str(tmp_path / "c"))
    with pytest.raises(errors.TooFewTrainingVectors):
        train(nothing, "vector", 4, 8)

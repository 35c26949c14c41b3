"""Training of vector indexes for Lance (the package ``pylance``), on a GPU or on the CPU."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpann._arrays import _to_numpy
from warpann._warpann import IvfIndex
from warpann.errors import TooFewTrainingVectors, UnknownName

__all__ = ["Training", "train"]

_METRICS = ("l2", "euclidean", "cosine")


class Training(NamedTuple):
    """Arguments of ``create_index`` of a Lance dataset, for the index type ``IVF_PQ``."""

    ivf_centroids: NDArray[Any]
    """(lists, dim), of the type of floats that the column has."""
    pq_codebook: NDArray[Any]
    """(subvectors, 2**bits, dim / subvectors), of the same type."""


def train(
    dataset: Any,
    column: str,
    lists: int,
    subvectors: int,
    *,
    metric: str = "l2",
    bits: int = 8,
    seed: int = 1,
    device: str = "auto",
    memory_budget: int | None = None,
    progress: Any = None,
) -> Training:
    """Finds the centroids and the codebook of an ``IVF_PQ`` index by a sample of the vectors of a Lance dataset.

    Lance's codes are of residuals without a rotation, as those of an :class:`IvfIndex` with the encoding "pq". The
    sample has at most 256 vectors for each list and each codeword; nulls in it are left out.

    Args:
        dataset: a ``lance.LanceDataset``.
        column: the column of vectors.
        lists: number of lists (``num_partitions``).
        subvectors: number of parts of a vector (``num_sub_vectors``), which divides its dimension.
        metric: "l2" or "cosine", as for ``create_index``.
        bits: bits of the code of a part (``num_bits``), 4 or 8.
        seed: of the sample and of the training. The same seed and dataset give the same result.
        device, memory_budget: as for :class:`FlatIndex`.
        progress: as for ``train`` of an :class:`IvfIndex`.

    Returns:
        Training: ``dataset.create_index(column, "IVF_PQ", metric=metric, num_partitions=lists,
        num_sub_vectors=subvectors, **training._asdict())``.

    Raises:
        UnknownName: another metric. Lance codes for "dot" the vectors themselves and not residuals.
        TooFewTrainingVectors, NotDivisible, OutOfRange; as ``train`` of an :class:`IvfIndex`.
    """
    if metric not in _METRICS:
        message = f"metric {metric!r} is not one of {', '.join(_METRICS)}"
        raise UnknownName(message, kind="unknown_name", text=metric, known=_METRICS)
    rows = dataset.count_rows()
    most = 256 * max(lists, 2**bits)
    chosen = np.arange(rows)
    if rows > most:
        chosen = np.sort(np.random.default_rng(seed).choice(rows, most, replace=False))
    chunks = dataset.take(chosen, columns=[column]).column(column).drop_null().chunks
    if not chunks:
        message = f"no vectors to train with; {lists} are needed"
        raise TooFewTrainingVectors(message, kind="too_few_training_vectors", have=0, need=lists)
    sample = np.concatenate([_to_numpy(chunk, "vectors") for chunk in chunks])
    kind = sample.dtype if sample.dtype.kind == "f" else np.dtype(np.float32)
    if metric == "cosine":
        # Lance then codes unit vectors by Euclidean distances.
        sample = sample.astype(np.float32)
        lengths = np.linalg.norm(sample, axis=1, keepdims=True)
        sample = sample / np.where(lengths > 0, lengths, 1)
    index = IvfIndex(
        sample.shape[1],
        lists,
        encoding=f"pq:{subvectors}x{bits}",
        seed=seed,
        device=device,
        memory_budget=memory_budget,
    )
    index.train(sample, progress=progress)
    codebook = index.codebooks
    assert codebook is not None  # the encoding has codebooks
    return Training(index.centroids.astype(kind), codebook.astype(kind))

"""Nearest neighbours of embeddings where they are: tensors of PyTorch or CuPy on a GPU, or arrays of numpy.

    python embeddings.py torch | cupy | numpy

On a GPU no vector and no result passes through the host, except for the sample of the training. Without a GPU the same
program runs on the CPU; CuPy has no arrays there.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import warpann

DIM, K, PROBES = 64, 10, 16


def embeddings(count: int, seed: int) -> np.ndarray:
    """In place of a model: vectors of norm 1 around 500 centres, the same for every seed."""
    centres = np.random.default_rng(0).normal(size=(500, DIM))
    rng = np.random.default_rng(seed)
    rows = centres[rng.integers(len(centres), size=count)] + 0.6 * rng.normal(size=(count, DIM))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def tensor(library: str, array: np.ndarray) -> Any:
    """The array as a tensor of the library, on a GPU if the library has one."""
    match library:
        case "torch":
            import torch

            return torch.as_tensor(array, device="cuda" if torch.cuda.is_available() else "cpu")
        case "cupy":
            import cupy

            return cupy.asarray(array)
        case _:
            return array


def searched(library: str, index: warpann.IvfIndex, queries: Any) -> tuple[Any, Any]:
    """Distances and ids of the neighbours, as tensors of the library where the queries are."""
    if "cuda" not in str(queries.device).lower():
        distances, ids = index.search(queries, K, probes=PROBES)
        return tensor(library, distances), tensor(library, ids)
    module = __import__(library)
    workspace = index.device_workspace(queries=len(queries), k=K, probes=PROBES)
    distances, ids = map(module.from_dlpack, workspace.search(queries))
    return distances, ids


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", choices=["torch", "cupy", "numpy"])
    parser.add_argument("--vectors", type=int, default=100_000)
    arguments = parser.parse_args()
    base = tensor(arguments.library, embeddings(arguments.vectors, 1))
    queries = tensor(arguments.library, embeddings(1_000, 2))

    index = warpann.IvfIndex(DIM, lists=256, metric="ip", device="auto")
    index.train(base[:20_000])
    index.add(base)
    distances, ids = searched(arguments.library, index, queries)

    # The products of all pairs, by the library: what an exact search of some queries finds.
    few = queries[:100]
    products = few @ base.T
    kth = products.sort(1)[0][:, -K] if arguments.library == "torch" else np.sort(products, axis=1)[:, -K]
    found = float(((distances[:100] >= kth[:, None] - 1e-5).sum()) / (100 * K))
    print(f"{len(index)} vectors on {index.device}, recall {found:.3f}, the first neighbours {ids[0, :3].tolist()}")
    assert found > 0.8


if __name__ == "__main__":
    main()

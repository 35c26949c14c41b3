"""One index on several ranks, which finds the bits of one index of all vectors.

    mpiexec -n 4 python python/several_ranks.py mpi                        # pip install mpi4py mpich
    torchrun --nproc-per-node 4 python/several_ranks.py torch              # pip install torch
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import warpann
from warpann.distributed import Communicator, ShardedIndex, TorchRanks

DIM = 32
rng = np.random.default_rng(1)
# Small integers: many distances are equal, so that ids decide.
base = rng.integers(0, 9, (20_000, DIM)).astype(np.float32)
queries = base[:200] + np.float32(0.5)


def exact() -> warpann.FlatIndex:
    return warpann.FlatIndex(DIM, device="cpu")


def trained() -> warpann.IvfIndex:
    index = warpann.IvfIndex(DIM, 64, encoding="pq:8x8", device="cpu")
    index.train(base)
    index.probes = 8
    return index


def run(ranks: Communicator, folder: str) -> None:
    mine = slice(len(base) * ranks.rank // ranks.size, len(base) * (ranks.rank + 1) // ranks.size)
    for make in (exact, trained):
        index = ShardedIndex(ranks, make, device="cpu")
        index.add(base[mine])
        index.save(Path(folder) / make.__name__)
        again = ShardedIndex.load(ranks, Path(folder) / make.__name__, device="cpu")
        # The last rank fails. All ranks hear of it, and go on.
        bad = np.full((1, DIM), np.nan) if ranks.rank == ranks.size - 1 else queries
        try:
            index.search(bad, 10)
            raise SystemExit("a rank that failed was not noticed")
        except (warpann.errors.NotFinite, warpann.errors.RankFailed):
            pass
        found = [index.search(queries, 10), again.search(queries, 10)]
        if ranks.rank == 0:
            one = make()
            one.add(base)
            expected = one.search(queries, 10)
            for distances, ids in found:
                assert (ids == expected.ids).all() and distances.tobytes() == expected.distances.tobytes()
            print(f"{make.__name__}: {len(index)} vectors on {ranks.size} ranks, the bits of one index", flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["torch"]:
        from torch import distributed

        distributed.init_process_group("gloo")
        communicator = TorchRanks()
    elif sys.argv[1:] == ["mpi"]:
        from mpi4py import MPI

        communicator = MPI.COMM_WORLD
    else:
        raise SystemExit(__doc__)
    with TemporaryDirectory() as own:
        run(communicator, communicator.bcast(own, 0))
        # The folder is that of rank 0, and goes when all ranks have read it.
        communicator.gather(None, 0)
    if sys.argv[1:] == ["torch"]:
        distributed.destroy_process_group()

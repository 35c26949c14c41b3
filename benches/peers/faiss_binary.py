"""FAISS on the CPU beside `warpann-grid hamming`: IndexBinaryFlat on the same files, the same grid, the same record.

    python3 -m pip install faiss-cpu
    python3 faiss_binary.py --base base.u8bin --query query.u8bin --date YYYY-MM-DD --out record.csv [--threads 2]
    python3 faiss_binary.py --make 1000000 --bits 1024 --base base.u8bin --query query.u8bin

The second form makes the files: the signs of clustered vectors, and 10,000 queries. Give warpann-grid on the CPU as many
threads: RAYON_NUM_THREADS=2.
"""
import argparse, os

p = argparse.ArgumentParser()
for name in ("base", "query"):
    p.add_argument(f"--{name}", required=True)
for name in ("date", "out"):
    p.add_argument(f"--{name}")
p.add_argument("--make", type=int, help="make files of this many base vectors, and stop")
p.add_argument("--bits", type=int, default=1_024)
p.add_argument("--queries", type=int, default=10_000)
p.add_argument("--threads", type=int, default=2)
p.add_argument("--repeat", type=int, help="timed runs of each case instead of 5 (large batches) and 20 (small ones)")
o = p.parse_args()
os.environ["OMP_NUM_THREADS"] = str(o.threads)

import numpy as np

import rows


def signs(rows, bits, seed=1):
    """The signs of clustered vectors: one of 2,000 centres, and a point of 24 dimensions around it, with noise."""
    random = np.random.default_rng(seed)
    centres = random.standard_normal((2_000, bits), np.float32)
    bases = random.standard_normal((16, 24, bits), np.float32) / np.sqrt(np.float32(24))
    for first in range(0, rows, 20_000):
        count = min(20_000, rows - first)
        cluster = random.integers(0, 2_000, count)
        x = 0.7 * centres[cluster] + 0.1 * random.standard_normal((count, bits), np.float32)
        inner = random.standard_normal((count, 24), np.float32)
        for basis in range(16):
            own = cluster % 16 == basis
            x[own] += inner[own] @ bases[basis]
        yield np.packbits(x > 0, axis=1, bitorder="little")


if o.make:
    all_rows = np.concatenate(list(signs(o.make + o.queries, o.bits)))
    rows.write_bin(o.base, all_rows[: o.make])
    rows.write_bin(o.query, all_rows[o.make :])
    raise SystemExit

import faiss

faiss.omp_set_num_threads(o.threads)
base, query = (np.ascontiguousarray(rows.read_bin(path)) for path in (o.base, o.query))
query = query[: o.queries]
n, width = base.shape
index = faiss.IndexBinaryFlat(8 * width)
index.add(base)
record = rows.Record(o.out, o.date, "faiss", faiss.__version__, rows.cpu(o.threads), "")
for batch, k, repeat in rows.search_grid(len(query)):
    times = rows.milliseconds(lambda: index.search(query[:batch], k), o.repeat or repeat)
    record.add(f"hamming {n}x{8 * width} bits nq={batch}", k, times, None, "")

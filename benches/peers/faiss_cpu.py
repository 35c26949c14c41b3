"""FAISS on the CPU beside `warpann-grid exact --device cpu`: IndexFlatL2 on the same files, the same grid, the same record.

    python3 -m pip install faiss-cpu
    python3 faiss_cpu.py --base base.fbin --query query.fbin [--gt gt.ibin] --date YYYY-MM-DD --out record.csv [--threads 2]

Give warpann-grid as many threads: RAYON_NUM_THREADS=2. IndexFlatL2 computes in f32; u8 and i8 files are widened before the
clock starts.
"""
import argparse, os

p = argparse.ArgumentParser()
for name in ("base", "query", "date", "out"):
    p.add_argument(f"--{name}", required=True)
p.add_argument("--gt")
p.add_argument("--queries", type=int, default=10_000)
p.add_argument("--threads", type=int, default=2)
p.add_argument("--repeat", type=int, help="timed runs of each case instead of 5 (large batches) and 20 (small ones)")
o = p.parse_args()
# Read by the matrix library when it is loaded.
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = str(o.threads)

import faiss
import numpy as np
import rows

faiss.omp_set_num_threads(o.threads)
base, query = rows.read_bin(o.base), rows.read_bin(o.query)[: o.queries]
truth = rows.read_bin(o.gt) if o.gt else None
kind, (n, d) = rows.element(base), base.shape
probes = np.array(query, dtype=np.float32)
index = faiss.IndexFlatL2(d)
index.add(np.array(base, dtype=np.float32))
record = rows.Record(o.out, o.date, "faiss", faiss.__version__, rows.cpu(o.threads), "")
for batch, k, repeat in rows.search_grid(len(query)):
    part = probes[:batch]
    distances, found = np.empty((batch, k), np.float32), np.empty((batch, k), np.int64)
    times = rows.milliseconds(lambda: index.search(part, k, D=distances, I=found), o.repeat or repeat)
    share = rows.recall(found, truth, k)
    verified = "" if share is None else "yes" if share >= 0.999 else "no"
    record.add(f"exact {n}x{d} {kind} nq={batch}", k, times, share, verified)

"""FlashLib beside `warpann-grid ivf` and `warpann-grid kmeans`: IVF-Flat, IVF-PQ and k-means on the same files, on a GPU.

    python3 -m pip install flashlib
    python3 flashlib_ivf.py --data FOLDER --date YYYY-MM-DD --out record.csv [--seconds 120]

Vectors, queries and results are PyTorch tensors on the GPU. FlashLib compiles its kernels for each k when they are first run:
that is in the warm-ups, not in the times, but it takes long, so `--seconds` ends the grid. A build has one time, of a second
build, for it trains and adds in one call. IVF-PQ of 64 bytes is left out: it was not offered at this size.
"""
import argparse
import numpy as np

import rows

p = argparse.ArgumentParser()
rows.ivf_arguments(p, ["flat", "pq32", "pq16"])
p.set_defaults(k=(100, 10))  # What it must be compared at comes first.
o = p.parse_args()

import flashlib, torch

base, query, truth = rows.read_set(o.data)
data, probes = (torch.from_numpy(np.array(part, dtype=np.float32)).cuda() for part in (base, query))
record = rows.Record(o.out, o.date, "flashlib", flashlib.__version__, torch.cuda.get_device_name(), rows.driver())
grid = rows.Ivf(o, record, base, probes, truth, torch.cuda.synchronize, lambda found: found.cpu().numpy())

grid.kmeans(
    lambda count, iterations: flashlib.flash_kmeans(data, count, max_iters=iterations)[1],
    lambda centroids: rows.objective(data, centroids),
)
for encoding in o.encodings:
    name = "ivf-" + encoding
    if grid.late(grid.case(name)):
        continue
    if encoding == "flat":
        build = lambda: flashlib.flash_ivf_flat_build(data, o.lists)
        search = lambda queries, k, probes: flashlib.flash_ivf_flat_search(index, queries, k, nprobe=probes)[1]
    else:
        build = lambda: flashlib.flash_ivf_pq_build(data, o.lists, m=int(encoding.removeprefix("pq")))
        search = lambda queries, k, probes: flashlib.flash_ivf_pq_search(index, queries, k, nprobe=probes)[1]
    build()  # Compiles.
    index, _ = grid.timed("build", name, build)
    grid.sweep(name, search)
    del index

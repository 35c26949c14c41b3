"""cuVS beside `warpann-grid ivf` and `warpann-grid kmeans`: IVF-Flat, IVF-PQ and k-means on the same files, on a GPU.

    python3 -m pip install cuvs-cu13
    python3 cuvs_ivf.py --data FOLDER --date YYYY-MM-DD --out record.csv

Vectors, queries and results are PyTorch tensors on the GPU; device memory comes from a pool of RMM that the warm-ups have
filled. Product codes are searched with f16 tables. A build has one time, for it trains and adds in one call; what else an
index can be told is left as it is by default.
"""
import argparse
import numpy as np

import rows

p = argparse.ArgumentParser()
rows.ivf_arguments(p, ["flat", "pq16", "pq32", "pq64"])
o = p.parse_args()

# Before PyTorch, whose older libnvJitLink would be the one in the process: cuVS links kernels of IVF-Flat when they run.
import cuvs, rmm
from cuvs.cluster import kmeans
from cuvs.common import Resources
from cuvs.neighbors import ivf_flat, ivf_pq
import torch

rmm.reinitialize(pool_allocator=True, initial_pool_size=4 << 30)
base, query, truth = rows.read_set(o.data)
data, probes = (torch.from_numpy(np.array(part, dtype=np.float32)).cuda() for part in (base, query))
record = rows.Record(o.out, o.date, "cuvs", cuvs.__version__, torch.cuda.get_device_name(), rows.driver())
grid = rows.Ivf(o, record, base, probes, truth, torch.cuda.synchronize, lambda found: found.cpu().numpy())
resources = Resources()
places = {}


def search(module, settings, queries, k):
    """Into the same tensors for each size: allocating them is the caller's matter with every library here."""
    size = (len(queries), k)
    if size not in places:
        places[size] = [torch.empty(size, dtype=kind, device="cuda") for kind in (torch.int64, torch.float32)]
    ids, distances = places[size]
    module.search(settings, index, queries, k, neighbors=ids, distances=distances, resources=resources)
    return ids


def train(count, iterations):
    settings = kmeans.KMeansParams(n_clusters=count, max_iter=iterations, init_method="Random", tol=0.0, n_init=1)
    return torch.as_tensor(kmeans.fit(settings, data)[0], device="cuda")


for encoding in o.encodings:
    name = "ivf-" + encoding
    if grid.late(grid.case(name)):
        continue
    if encoding == "flat":
        settings = ivf_flat.IndexParams(n_lists=o.lists)
        build = lambda: ivf_flat.build(settings, data)
        run = lambda queries, k, probes: search(ivf_flat, ivf_flat.SearchParams(n_probes=probes), queries, k)
    else:
        settings = ivf_pq.IndexParams(n_lists=o.lists, pq_dim=int(encoding.removeprefix("pq")), pq_bits=8)
        build = lambda: ivf_pq.build(settings, data)
        half = lambda probes: ivf_pq.SearchParams(n_probes=probes, lut_dtype=np.float16)
        run = lambda queries, k, probes: search(ivf_pq, half(probes), queries, k)
    build()  # Loads kernels, fills the pool.
    index, _ = grid.timed("build", name, build)
    grid.sweep(name, run)
    del index
grid.kmeans(train, lambda centroids: rows.objective(data, centroids))

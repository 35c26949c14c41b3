"""FAISS beside `warpann-grid ivf` and `warpann-grid kmeans`: IVF-Flat, IVF-PQ and k-means on the same files, on a GPU or the CPU.

    python3 faiss_ivf.py --device gpu --data FOLDER --date YYYY-MM-DD --out record.csv

Queries and results are on the device (PyTorch tensors on a GPU, arrays on the CPU). Indexes are trained on the first
200,000 rows, FAISS's usual sample at 4096 lists. On a GPU product codes are searched with f16 tables, and up to 32 bytes
with precomputed ones: the settings of FAISS's own measurements, and the fastest. k-means sees all rows.
"""
import argparse, os

p = argparse.ArgumentParser()
p.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
p.add_argument("--threads", type=int, help="on the CPU; all unless given")
p.add_argument("--train", type=int, default=200_000, help="rows to train indexes on")

import rows

rows.ivf_arguments(p, ["flat", "pq16", "pq32", "pq64"])
o = p.parse_args()
if o.threads:
    # Read by the matrix library when it is loaded.
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = str(o.threads)

import faiss
import numpy as np

base, query, truth = rows.read_set(o.data)
data, probes = np.array(base, dtype=np.float32), np.array(query, dtype=np.float32)
dim = data.shape[1]
if o.device == "gpu":
    import faiss.contrib.torch_utils, torch

    probes, resources = torch.from_numpy(probes).cuda(), faiss.StandardGpuResources()
    about = (torch.cuda.get_device_name(), rows.driver())
    drain, host = torch.cuda.synchronize, lambda found: found.cpu().numpy()
else:
    if o.threads:
        faiss.omp_set_num_threads(o.threads)
    about = (rows.cpu(faiss.omp_get_max_threads()), "")
    drain, host = lambda: None, lambda found: found
record = rows.Record(o.out, o.date, "faiss", faiss.__version__, *about)
grid = rows.Ivf(o, record, base, probes, truth, drain, host)


def empty(encoding):
    """An untrained index; `flat`, or `pq` and the bytes of a code."""
    code_bytes = int(encoding.removeprefix("pq")) if encoding != "flat" else None
    if o.device == "cpu":
        coarse = faiss.IndexFlatL2(dim)
        if code_bytes is None:
            return faiss.IndexIVFFlat(coarse, dim, o.lists, faiss.METRIC_L2)
        return faiss.IndexIVFPQ(coarse, dim, o.lists, code_bytes, 8, faiss.METRIC_L2)
    if code_bytes is None:
        return faiss.GpuIndexIVFFlat(resources, dim, o.lists, faiss.METRIC_L2)
    settings = faiss.GpuIndexIVFPQConfig()
    settings.useFloat16LookupTables = True
    settings.usePrecomputedTables = code_bytes <= 32
    return faiss.GpuIndexIVFPQ(resources, dim, o.lists, code_bytes, 8, faiss.METRIC_L2, settings)


def search(index, queries, k, probes):
    index.nprobe = probes
    return index.search(queries, k)[1]


def train(count, iterations):
    kmeans = faiss.Kmeans(
        dim, count, niter=iterations, gpu=o.device == "gpu", max_points_per_centroid=10**9, min_points_per_centroid=1, seed=1
    )
    kmeans.train(data)
    return kmeans.centroids


def objective(centroids):
    """Squared distances to the nearest centroid in f32, summed in float64."""
    index = faiss.IndexFlatL2(dim)
    if o.device == "gpu":
        index = faiss.GpuIndexFlatL2(resources, dim)
    index.add(centroids)
    return float(index.search(data, 1)[0].sum(dtype=np.float64))


for encoding in o.encodings:
    name = "ivf-" + encoding
    if grid.late(grid.case(name)):
        continue
    index = empty(encoding)
    _, training = grid.timed("train", name, lambda: index.train(data[: o.train]))
    _, adding = grid.timed("add", name, lambda: index.add(data))
    record.add(f"build {grid.case(name)}", 0, [training + adding])
    grid.sweep(name, lambda queries, k, probes: search(index, queries, k, probes))
    del index
grid.kmeans(train, objective, warm=0)

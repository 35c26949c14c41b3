"""FAISS on a GPU beside `warpann-grid exact`: GpuIndexFlatL2 on the same files, the same grid, appended to the same record.

    python3 faiss_gpu.py --base base.fbin --query query.fbin [--gt gt.ibin] --date YYYY-MM-DD --out record.csv

Queries and results are PyTorch tensors on the GPU: FAISS copies nothing over the bus in the time measured.
"""
import argparse
import faiss, faiss.contrib.torch_utils, torch
import numpy as np
import rows

p = argparse.ArgumentParser()
for name in ("base", "query", "date", "out"):
    p.add_argument(f"--{name}", required=True)
p.add_argument("--gt")
p.add_argument("--queries", type=int, default=10_000)
o = p.parse_args()

base, query = rows.read_bin(o.base), rows.read_bin(o.query)[: o.queries]
truth = rows.read_bin(o.gt) if o.gt else None
kind, (n, d) = rows.element(base), base.shape
probes = torch.from_numpy(np.array(query, dtype=np.float32)).cuda()
resources = faiss.StandardGpuResources()
index = faiss.GpuIndexFlatL2(resources, d)
index.add(np.array(base, dtype=np.float32))
record = rows.Record(o.out, o.date, "faiss", faiss.__version__, torch.cuda.get_device_name(), rows.driver())
for batch, k, repeat in rows.search_grid(len(query)):
    part = probes[:batch]
    times = rows.milliseconds(lambda: index.search(part, k), repeat, torch.cuda.synchronize)
    found = index.search(part, k)[1].cpu().numpy()
    share = rows.recall(found, truth, k)
    verified = "" if share is None else "yes" if share >= 0.999 else "no"
    record.add(f"exact {n}x{d} {kind} nq={batch}", k, times, share, verified)

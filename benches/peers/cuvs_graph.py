"""cuVS's CAGRA beside `warpann-grid kinds`: the same files, on a GPU.

    python3 -m pip install cuvs-cu13
    python3 cuvs_graph.py --data FOLDER --date YYYY-MM-DD --out record.csv [--seconds 120]

Vectors, queries and results are PyTorch tensors on the GPU; device memory comes from a pool of RMM that the warm-ups have filled. A beam
is `itopk_size`, a multiple of 32; everything else is as by default.
"""
import argparse
import numpy as np

import rows

p = argparse.ArgumentParser()
rows.graph_arguments(p)
p.set_defaults(beams=(32, 64, 128, 256))
o = p.parse_args()

# Before PyTorch, whose older libnvJitLink would be the one in the process.
import cuvs, rmm
from cuvs.common import Resources
from cuvs.neighbors import cagra
import torch

rmm.reinitialize(pool_allocator=True, initial_pool_size=4 << 30)
base, query, truth = rows.read_set(o.data)
data, probes = (torch.from_numpy(np.array(part, dtype=np.float32)).cuda() for part in (base, query))
record = rows.Record(o.out, o.date, "cuvs", cuvs.__version__, torch.cuda.get_device_name(), rows.driver())
grid = rows.GraphGrid(o, record, base, probes, truth, torch.cuda.synchronize, lambda found: found.cpu().numpy())
resources, places = Resources(), {}
index = grid.built(lambda: cagra.build(cagra.IndexParams(graph_degree=o.degree, intermediate_graph_degree=2 * o.degree), data))


def search(queries, k, beam):
    """Into the same tensors for each size: allocating them is the caller's matter with every library here."""
    size = (len(queries), k)
    if size not in places:
        places[size] = [torch.empty(size, dtype=kind, device="cuda") for kind in (torch.uint32, torch.float32)]
    ids, distances = places[size]
    settings = cagra.SearchParams(itopk_size=beam)
    cagra.search(settings, index, queries, k, neighbors=ids, distances=distances, resources=resources)
    return ids


grid.sweep(search)

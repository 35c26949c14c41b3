"""FlashLib's CAGRA beside `warpann-grid kinds`: the same files, on a GPU.

    python3 -m pip install flashlib
    python3 flashlib_graph.py --data FOLDER --date YYYY-MM-DD --out record.csv [--seconds 120]

Vectors, queries and results are PyTorch tensors on the GPU. A beam is FlashLib's `itopk_size`, which must be at least k; its walks read bf16
copies and its results are ranked again in f32, as by default.
"""
import argparse
import numpy as np

import rows

p = argparse.ArgumentParser()
rows.graph_arguments(p)
o = p.parse_args()

import flashlib, torch

base, query, truth = rows.read_set(o.data)
data, probes = (torch.from_numpy(np.array(part, dtype=np.float32)).cuda() for part in (base, query))
record = rows.Record(o.out, o.date, "flashlib", flashlib.__version__, torch.cuda.get_device_name(), rows.driver())
grid = rows.GraphGrid(o, record, base, probes, truth, torch.cuda.synchronize, lambda found: found.cpu().numpy())
index = grid.built(lambda: flashlib.flash_cagra_build(data, graph_degree=o.degree))
grid.sweep(lambda queries, k, beam: flashlib.flash_cagra_search(index, queries, k, itopk_size=beam)[1])

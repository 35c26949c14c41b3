"""torch.topk beside `warpann-grid select`: random keys on the GPU, the k smallest of each row, appended to the same record.

    python3 torch_topk.py --date YYYY-MM-DD --out record.csv

Device events, the L2 cache overwritten before each run, as warpann-grid does. FAISS's k-selection kernels have no Python
interface, so FAISS stands beside us in exact search only.
"""
import argparse
import torch
import rows

p = argparse.ArgumentParser()
for name in ("date", "out"):
    p.add_argument(f"--{name}", required=True)
p.add_argument("--repeat", type=int, default=9)
o = p.parse_args()

record = rows.Record(o.out, o.date, "torch", torch.__version__, torch.cuda.get_device_name(), rows.driver())
flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
for count, columns, ks in rows.SELECT_SHAPES:
    generator = torch.Generator(device="cuda").manual_seed(1)
    keys = torch.rand(count, columns, generator=generator, device="cuda")
    for k in ks:
        run = lambda: torch.topk(keys, k, largest=False, sorted=True)
        run(), run()
        times = []
        for _ in range(o.repeat):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            flush.zero_()
            start.record()
            result = run()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
            del result
        record.add(f"select {count}x{columns} random", k, sorted(times))
    del keys

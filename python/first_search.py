"""Times the first search of a process on a GPU, for each kind of index: `python first_search.py [DEVICE] [PROCESSES]`.

Every process loads an index of 20,000 vectors of 128 components from a file and searches for one query. The driver's cache
is off, so a wheel without machine code shows how long the driver compiles kernels.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def child(path: str, device: str) -> None:
    """Prints the seconds of import, load, first search and second search."""
    times = [time.perf_counter()]
    import numpy as np

    import warpann

    times.append(time.perf_counter())
    index = warpann.load(path, device=device)
    times.append(time.perf_counter())
    query = np.ones((1, 128), np.float32)
    for _ in range(2):
        index.search(query, 10)
        times.append(time.perf_counter())
    print(*(later - earlier for earlier, later in zip(times, times[1:])))


def main(device: str = "gpu:0", processes: str = "5") -> None:
    import numpy as np

    import warpann

    info = warpann.build_info()
    print(f"warpann {info.version}; machine code: {', '.join(info.machine_code) or 'none'} ({info.assembler})")
    for gpu in warpann.devices():
        print(f"gpu:{gpu.number} is {gpu.name}, compute capability {gpu.compute_capability}, CUDA {gpu.driver}")
    base = np.random.default_rng(1).normal(size=(20_000, 128)).astype(np.float32)
    indexes = {
        "flat": warpann.FlatIndex(128, device="cpu"),
        "ivf-flat": warpann.IvfIndex(128, 256, device="cpu", iterations=2),
        "ivf-sq8": warpann.IvfIndex(128, 256, encoding="sq8", device="cpu", iterations=2),
        "graph": warpann.GraphIndex(128, device="cpu", exact_ratio=0),
    }
    print(f"medians of {processes} processes, ms: import, load, first search, second search")
    with tempfile.TemporaryDirectory() as folder:
        for name, index in indexes.items():
            if isinstance(index, warpann.IvfIndex):
                index.train(base)
            index.add(base)
            path = Path(folder) / name
            index.save(path)
            lines = [
                subprocess.run(
                    [sys.executable, __file__, "--child", path, device],
                    env={**os.environ, "CUDA_CACHE_DISABLE": "1"},
                    check=True,
                    stdout=subprocess.PIPE,
                    text=True,
                ).stdout
                for _ in range(int(processes))
            ]
            columns = zip(*(map(float, line.split()) for line in lines))
            print(f"{name:9}", *(f"{1e3 * statistics.median(column):9.1f}" for column in columns))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], sys.argv[3])
    else:
        main(*sys.argv[1:])

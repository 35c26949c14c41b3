import numpy as np
import warpann

base = np.random.default_rng(1).normal(size=(100_000, 64)).astype(np.float32)
index = warpann.FlatIndex(64, metric="l2", device="auto")
index.add(base)
distances, ids = index.search(base[:3], k=5)
assert ids[:, 0].tolist() == [0, 1, 2]
print(f"{ids} on {index.device}")

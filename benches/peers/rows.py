"""Rows of a record in the columns of warpann-grid (../record/README.md), for peers."""
import csv, pathlib, re, statistics, sys, time

COLUMNS = (
    "date implementation version revision device driver case k ms_median ms_min ms_max memory_floor_ms matrix_floor_ms "
    "floor_ms ratio recall verified objective bytes"
).split()

# The shapes of warpann-grid's select: rows, columns, every k.
SELECT_SHAPES = (
    (10_000, 1_000, (10, 100)),
    (10_000, 10_000, (10, 100, 1000)),
    (10_000, 128_000, (1, 10, 32, 100, 256, 1000, 2048)),
    (1, 262_144, (2048,)),
    (256, 65_536, (2048,)),
    (1_024, 131_072, (2048,)),
    (2_048, 131_072, (1024,)),
    (100, 1_000_000, (100,)),
    (1, 100_000_000, (100,)),
)


def driver():
    """Version of NVIDIA's kernel module, as warpann-grid tells it; empty where the system does not."""
    try:
        text = pathlib.Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return ""
    found = re.search(r"(?<!\S)\d+(\.\d+)+(?!\S)", text)
    return found.group() if found else ""


def cpu(threads):
    """The CPU in the words of warpann-grid."""
    model = "CPU"
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    return f"{model}, {threads} threads"


def read_bin(path):
    """An fbin, u8bin, i8bin, ibin or bin file (u32 rows, u32 columns, rows; `bin` is ids with distances behind them) as a
    numpy array, mapped."""
    import numpy as np

    kinds = {"fbin": np.float32, "u8bin": np.uint8, "i8bin": np.int8, "ibin": np.int32, "bin": np.int32}
    suffix = pathlib.Path(path).suffix.lstrip(".")
    if suffix not in kinds:
        sys.exit(f"{path}: expected one of {', '.join(kinds)}")
    rows, columns = (int(number) for number in np.fromfile(path, dtype=np.uint32, count=2))
    return np.memmap(path, dtype=kinds[suffix], mode="r", offset=8, shape=(rows, columns))


def write_bin(path, array):
    """Writes an array in the form that `read_bin` reads."""
    import numpy as np

    with open(path, "wb") as file:
        np.array(array.shape, np.uint32).tofile(file)
        array.tofile(file)


def read_set(folder):
    """(base, query, ground truth) of a folder: base and query as fbin, u8bin or i8bin, and gt.ibin or gt.bin if there is one."""

    def first(name, suffixes):
        paths = [pathlib.Path(folder) / f"{name}.{suffix}" for suffix in suffixes]
        return next((read_bin(path) for path in paths if path.exists()), None)

    base, query = (first(name, ("fbin", "u8bin", "i8bin")) for name in ("base", "query"))
    if base is None or query is None:
        sys.exit(f"{folder}: no base or no query (fbin, u8bin or i8bin)")
    return base, query, first("gt", ("ibin", "bin"))


def element(array):
    """The element type in the words of warpann-grid."""
    return {"float32": "f32", "uint8": "u8", "int8": "i8"}[str(array.dtype)]


def recall(found, truth, k):
    """Share of the first k true neighbours that were found, by id, over the queries that have truth; None without truth."""
    if truth is None:
        return None
    depth = min(k, truth.shape[1])
    pairs = list(zip(found, truth))
    return sum(len(set(f[:depth].tolist()) & set(t[:depth].tolist())) for f, t in pairs) / (depth * len(pairs))


def milliseconds(work, repeat, drain=lambda: None, warm=2):
    """Wall time of each of `repeat` runs after `warm` more, ascending, each with the device drained before and after."""
    for _ in range(warm):
        work()
    times = []
    for _ in range(repeat):
        drain()
        start = time.perf_counter()
        work()
        drain()
        times.append(1e3 * (time.perf_counter() - start))
    return sorted(times)


class Record:
    """A CSV file to append to, and lines on standard output."""

    def __init__(self, path, date, implementation, version, device, driver, revision=""):
        self.about = dict(date=date, implementation=implementation, version=version, device=device, driver=driver)
        self.about["revision"] = revision
        self.path = pathlib.Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self.path.exists() or self.path.stat().st_size == 0:
            with self.path.open("w", newline="") as file:
                csv.writer(file, lineterminator="\n").writerow(COLUMNS)
        # A record from before the last columns goes on without them.
        with self.path.open(newline="") as file:
            self.columns = next(csv.reader(file))
        print(f"{implementation} {version} on {device}")

    def add(self, case, k, times, recall=None, verified="", digits=6, objective=None):
        """`times` in milliseconds, ascending; `verified` is yes, no or empty (not checked)."""
        row = dict.fromkeys(COLUMNS, "") | self.about | dict(case=case, k=k, verified=verified)
        row |= dict(ms_median=round(statistics.median_low(times), digits), ms_min=round(times[0], digits))
        row |= dict(ms_max=round(times[-1], digits))
        if recall is not None:
            row["recall"] = round(recall, digits)
        if objective is not None:
            row["objective"] = round(objective, 1)
        with self.path.open("a", newline="") as file:
            csv.DictWriter(file, self.columns, extrasaction="ignore", lineterminator="\n").writerow(row)
        shown = "" if recall is None else f" recall {recall:.5f}"
        shown += "" if objective is None else f" objective {objective:.6g}"
        print(f"{case:<58} {k:>5} {row['ms_median']:>11.4f} ms{shown} {verified}", flush=True)


def search_grid(queries):
    """(batch, k, repeat) of warpann-grid exact: large batches by k, small ones by size."""
    yield from ((queries, k, 5) for k in (1, 10, 100, 1000))
    yield from ((batch, 10, 20) for batch in (1, 16, 256) if batch < queries)


# Of the inverted-file grid: lists probed, results, batches.
PROBES, DEPTHS, BATCHES = (8, 16, 32, 64), (10, 100), (1, 16, 256)
# Probes of the small batches.
FEW_QUERIES_PROBES = 32
# k-means: centroids, iterations.
CENTROIDS, ITERATIONS = (256, 4096), 20


def ivf_arguments(parser, encodings):
    """The options that the inverted-file programs share."""
    numbers = lambda text: tuple(int(number) for number in text.split(","))
    for name in ("data", "date", "out"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--encodings", type=lambda text: [name for name in text.split(",") if name], default=encodings)
    parser.add_argument("--lists", type=int, default=4096)
    parser.add_argument("--probes", type=numbers, default=PROBES)
    parser.add_argument("--k", type=numbers, default=DEPTHS)
    parser.add_argument("--batches", type=numbers, default=BATCHES)
    parser.add_argument("--centroids", type=numbers, default=CENTROIDS, help="of k-means; 0 leaves it out")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1e9, help="start no case after so many")


class Ivf:
    """The inverted-file grid of one library: a row for each part of the build, each step of the sweep, each small batch."""

    def __init__(self, options, record, base, query, truth, drain=lambda: None, host=lambda found: found):
        """`drain` waits for the device; `host` makes a numpy array of what a search returns."""
        self.options, self.record, self.query, self.truth = options, record, query, truth
        self.shape = "{}x{} {}".format(*base.shape, element(base))
        self.drain, self.host = drain, host
        self.end = time.monotonic() + options.seconds

    def case(self, name):
        """What is searched, in the words of warpann-grid."""
        return f"{name} {self.shape} lists={self.options.lists}"

    def late(self, what):
        """Whether the time is up; says what is left out then."""
        if time.monotonic() < self.end:
            return False
        print(f"{what}: left out, {self.options.seconds:.0f} seconds are over", flush=True)
        return True

    def timed(self, part, name, work):
        """Records one run of `work`, a part of the build; its result and milliseconds. The device is drained."""
        self.drain()
        start = time.perf_counter()
        result = work()
        self.drain()
        taken = 1e3 * (time.perf_counter() - start)
        self.record.add(f"{part} {self.case(name)}", 0, [taken])
        return result, taken

    def sweep(self, name, search):
        """A row for each step with all queries, and for the first few of them: `search(queries, k, probes)`."""
        o, case = self.options, self.case(name)
        small = [(batch, 10, FEW_QUERIES_PROBES, 20) for batch in o.batches if batch < len(self.query)]
        for batch, k, probes, repeat in [(len(self.query), k, p, o.repeat) for k in o.k for p in o.probes] + small:
            case_and_batch = f"{case} nq={batch} probes={probes}"
            if self.late(f"{case_and_batch} k={k}"):
                continue
            part, found = self.query[:batch], []

            def work():
                found[:] = [search(part, k, probes)]

            times = milliseconds(work, repeat, self.drain, warm=1)
            self.record.add(case_and_batch, k, times, recall(self.host(found[0]), self.truth, k))

    def kmeans(self, train, objective, warm=1):
        """`train(centroids, iterations)` returns centroids; `objective(centroids)` what they cost."""
        for count in filter(None, self.options.centroids):
            case = f"kmeans {self.shape} centroids={count} iterations={ITERATIONS}"
            if self.late(case):
                continue
            found = []

            def work():
                found[:] = [train(count, ITERATIONS)]

            times = milliseconds(work, self.options.repeat, self.drain, warm)
            self.record.add(case, 0, times, objective=objective(found[0]))


# Of the graph's grid: widths of the beam, results, batches below all queries.
BEAMS, GRAPH_BATCHES = (16, 32, 64, 128, 256), (1, 10, 100)


def graph_arguments(parser):
    """The options that the programs of graphs share."""
    numbers = lambda text: tuple(int(number) for number in text.split(","))
    for name in ("data", "date", "out"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--degree", type=int, default=32)
    parser.add_argument("--beams", type=numbers, default=BEAMS)
    parser.add_argument("--k", type=numbers, default=DEPTHS)
    parser.add_argument("--batches", type=numbers, default=GRAPH_BATCHES)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1e9, help="start no case after so many")


class GraphGrid:
    """The graph's grid of one library: a row for the build, and one for each beam with all queries and with a few."""

    def __init__(self, options, record, base, query, truth, drain, host):
        """`drain` waits for the device; `host` makes a numpy array of what a search returns."""
        self.options, self.record, self.query, self.truth = options, record, query, truth
        self.case = "graph {}x{} {} degree={}".format(*base.shape, element(base), options.degree)
        self.drain, self.host = drain, host
        self.end = time.monotonic() + options.seconds

    def built(self, build):
        """Records the second run of `build`; the first one loads or compiles kernels."""
        build()
        self.drain()
        start = time.perf_counter()
        index = build()
        self.drain()
        self.record.add(f"build {self.case}", 0, [1e3 * (time.perf_counter() - start)])
        return index

    def sweep(self, search):
        """`search(queries, k, beam)` for every batch, k and beam that is at least k."""
        o = self.options
        small = [(batch, 10, 50) for batch in o.batches if batch < len(self.query)]
        for batch, k, repeat in [(len(self.query), k, o.repeat) for k in o.k] + small:
            for beam in o.beams:
                name = f"{self.case} nq={batch} beam={beam}"
                if beam < k:
                    continue
                if time.monotonic() > self.end:
                    print(f"{name} k={k}: left out, {o.seconds:.0f} seconds are over", flush=True)
                    continue
                part, found = self.query[:batch], []

                def work():
                    found[:] = [search(part, k, beam)]

                times = milliseconds(work, repeat, self.drain, warm=2)
                self.record.add(name, k, times, recall(self.host(found[0]), self.truth, k))


def objective(data, centroids):
    """What centroids cost, both tensors: the nearest found in f32, its squared distances in float64, summed."""
    norms, total = (centroids * centroids).sum(1), 0.0
    for part in data.split(50_000):
        nearest = centroids[(norms[None] - 2 * part @ centroids.T).argmin(1)]
        total += float(((part - nearest).double() ** 2).sum())
    return total

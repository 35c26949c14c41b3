"""Rows of a record in the columns of warpann-grid (../record/README.md), for peers."""
import csv, pathlib, re, statistics, sys, time

COLUMNS = (
    "date implementation version revision device driver case k ms_median ms_min ms_max memory_floor_ms matrix_floor_ms "
    "floor_ms ratio recall verified"
).split()

# The shapes of warpann-grid's select: rows, columns, every k.
SELECT_SHAPES = (
    (10_000, 1_000, (10, 100)),
    (10_000, 10_000, (10, 100, 1000)),
    (10_000, 128_000, (1, 10, 32, 100, 256, 1000, 2048)),
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
    """An fbin, u8bin, i8bin or ibin file (u32 rows, u32 columns, rows) as a numpy array, mapped."""
    import numpy as np

    kinds = {"fbin": np.float32, "u8bin": np.uint8, "i8bin": np.int8, "ibin": np.int32}
    suffix = pathlib.Path(path).suffix.lstrip(".")
    if suffix not in kinds:
        sys.exit(f"{path}: expected one of {', '.join(kinds)}")
    rows, columns = (int(number) for number in np.fromfile(path, dtype=np.uint32, count=2))
    return np.memmap(path, dtype=kinds[suffix], mode="r", offset=8, shape=(rows, columns))


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


def milliseconds(work, repeat, drain=lambda: None):
    """Wall time of each of `repeat` runs after two more, ascending, each with the device drained before and after."""
    work(), work()
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

    def __init__(self, path, date, implementation, version, device, driver):
        self.about = dict(date=date, implementation=implementation, version=version, device=device, driver=driver)
        self.path = pathlib.Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self.path.exists() or self.path.stat().st_size == 0:
            with self.path.open("w", newline="") as file:
                csv.writer(file, lineterminator="\n").writerow(COLUMNS)
        print(f"{implementation} {version} on {device}")

    def add(self, case, k, times, recall=None, verified="", digits=6):
        """`times` in milliseconds, ascending; `verified` is yes, no or empty (not checked)."""
        row = dict.fromkeys(COLUMNS, "") | self.about | dict(case=case, k=k, verified=verified)
        row |= dict(ms_median=round(statistics.median_low(times), digits), ms_min=round(times[0], digits))
        row |= dict(ms_max=round(times[-1], digits))
        if recall is not None:
            row["recall"] = round(recall, digits)
        with self.path.open("a", newline="") as file:
            csv.DictWriter(file, COLUMNS, lineterminator="\n").writerow(row)
        shown = "" if recall is None else f" recall {recall:.5f}"
        print(f"{case:<34} {k:>5} {row['ms_median']:>11.4f} ms{shown} {verified}", flush=True)


def search_grid(queries):
    """(batch, k, repeat) of warpann-grid exact: large batches by k, small ones by size."""
    yield from ((queries, k, 5) for k in (1, 10, 100, 1000))
    yield from ((batch, 10, 20) for batch in (1, 16, 256) if batch < queries)

"""RAFT's select_k, its own choice of algorithm, beside `warpann-grid select`: random keys on the GPU, the k smallest of
each row with their positions, sorted, appended to the same record.

    python3 raft_select.py --wheels FOLDER --date YYYY-MM-DD --out record.csv

RAFT's select_k is a C++ template without a Python interface: this compiles raft_select.cu for the GPU at hand with the
headers and libraries out of the wheels in FOLDER (README.md), in a temporary folder, and runs it. Needs PyTorch and CUDA's
nvcc, 13.0 or newer, on the path or in /usr/local/cuda.
"""
import argparse, os, pathlib, shutil, subprocess, sys, tempfile, zipfile
import torch
import rows

p = argparse.ArgumentParser()
for name in ("wheels", "date", "out"):
    p.add_argument(f"--{name}", required=True)
p.add_argument("--repeat", type=int, default=9)
o = p.parse_args()


def unpack(wheels, into):
    """Unpacks RAFT and what it is built on."""
    for name in ("libraft_cu13", "librmm_cu13", "rapids_logger"):
        found = list(pathlib.Path(wheels).glob(f"{name}-*.whl"))
        if len(found) != 1:
            sys.exit(f"{wheels}: {len(found)} wheels of {name}, expected one")
        zipfile.ZipFile(found[0]).extractall(into)


def build(folder):
    """Compiles the program with what was unpacked in `folder`."""
    nvcc = shutil.which("nvcc", path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/local/cuda/bin")))
    if nvcc is None:
        sys.exit("nvcc is neither on the path nor in /usr/local/cuda")
    program = folder / "raft_select"
    # The wheels' own CCCL comes first: it is newer than the toolkit's.
    includes = ("libraft/include/rapids", "libraft/include", "librmm/include", "rapids_logger/include")
    libraries = [folder / name / "lib64" for name in ("librmm", "rapids_logger")]
    command = [nvcc, "-std=c++20", "-O3", "-DNDEBUG", "--expt-relaxed-constexpr", "--expt-extended-lambda"]
    command += ["-arch=sm_{}{}".format(*torch.cuda.get_device_capability()), "--split-compile=0"]
    command += [f"-I{folder / include}" for include in includes]
    command += [word for path in libraries for word in (f"-L{path}", "-Xlinker", f"-rpath={path}")]
    command += [pathlib.Path(__file__).with_suffix(".cu"), "-lrmm", "-lrapids_logger", "-o", program]
    subprocess.run(command, check=True)
    return program


right = True
with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    unpack(o.wheels, folder)
    version = (folder / "libraft/VERSION").read_text().strip()
    record = rows.Record(o.out, o.date, "raft", version, torch.cuda.get_device_name(), rows.driver())
    shapes = [(count, columns, k) for count, columns, ks in rows.SELECT_SHAPES for k in ks]
    command = [build(folder), str(o.repeat), *(str(number) for shape in shapes for number in shape)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        for line in program.stdout:
            count, columns, k, verdict, *times = line.split()
            verified = "yes" if verdict == "ok" else "no"
            right &= verdict == "ok"
            record.add(f"select {count}x{columns} random", k, [float(time) for time in times], verified=verified)
if program.returncode != 0:
    sys.exit(f"raft_select ended with {program.returncode}")
if not right:
    sys.exit("raft: wrong results")

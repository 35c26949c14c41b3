"""FlashInfer's top-k beside `warpann-grid select`: random keys on the GPU, the k largest of each row with their positions,
sorted, the same in every run, appended to the same record.

    python3 flashinfer_select.py --wheel FOLDER/flashinfer_python-*.whl --date YYYY-MM-DD --out record.csv

The Python package compiles its kernels where it runs. This compiles flashinfer_select.cu with the headers out of the wheel
(README.md), in a temporary folder, and runs it: no package but PyTorch is needed, and CUDA's nvcc, 13.0 or newer, on the path
or in /usr/local/cuda. `--program` runs a program that was compiled before.
"""
import argparse, os, pathlib, re, shutil, subprocess, sys, tempfile, zipfile
import torch
import rows

p = argparse.ArgumentParser()
for name in ("wheel", "date", "out"):
    p.add_argument(f"--{name}", required=name != "wheel")
p.add_argument("--program", help="flashinfer_select, compiled")
p.add_argument("--version", default="", help="with --program: the version of FlashInfer")
p.add_argument("--repeat", type=int, default=9)
o = p.parse_args()


def build(folder):
    """Compiles the program with what is unpacked into `folder`."""
    nvcc = shutil.which("nvcc", path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/local/cuda/bin")))
    if nvcc is None:
        sys.exit("nvcc is neither on the path nor in /usr/local/cuda")
    with zipfile.ZipFile(o.wheel) as wheel:
        wheel.extractall(folder, [name for name in wheel.namelist() if re.match("flashinfer/data/(include/flashinfer|cccl)/", name)])
    data, program = folder / "flashinfer/data", folder / "flashinfer_select"
    command = [nvcc, "-std=c++17", "-O3", "-DNDEBUG", "--expt-relaxed-constexpr", "-cudart", "static"]
    command += ["-arch=sm_{}{}a".format(*torch.cuda.get_device_capability())]
    command += [f"-I{data / part}" for part in ("cccl/cub", "cccl/libcudacxx/include", "cccl/thrust", "include")]
    subprocess.run([*command, pathlib.Path(__file__).with_suffix(".cu"), "-o", program], check=True)
    return program


if o.program is None and o.wheel is None:
    sys.exit("--wheel or --program is needed")
version = o.version or re.search(r"flashinfer_python-([0-9.]+)", o.wheel or "flashinfer_python-0").group(1)
shapes = [(count, columns, k) for count, columns, ks in rows.SELECT_SHAPES for k in ks]
right = True
with tempfile.TemporaryDirectory() as name:
    record = rows.Record(o.out, o.date, "flashinfer", version, torch.cuda.get_device_name(), rows.driver())
    program = o.program or build(pathlib.Path(name))
    command = [program, str(o.repeat), *(str(number) for shape in shapes for number in shape)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        for line in running.stdout:
            count, columns, k, verdict, *times = line.split()
            if verdict == "refused":
                print(f"select {count}x{columns} random k={k}: refused")
                continue
            right &= verdict == "ok"
            record.add(f"select {count}x{columns} random", int(k), list(map(float, times)), None, "yes" if verdict == "ok" else "no")
    if running.returncode or not right:
        sys.exit(f"flashinfer_select: {running.returncode or 'wrong results'}")

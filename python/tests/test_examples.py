"""The examples for Python run, on the CPU where there is no GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "python"


@pytest.mark.parametrize("library", ["numpy", "torch", "cupy"])
def test_embeddings(library: str) -> None:
    pytest.importorskip(library)
    if library == "cupy":
        import cupy

        if not cupy.is_available():
            pytest.skip("CuPy has no arrays without a GPU")
    command = [sys.executable, EXAMPLES / "embeddings.py", library, "--vectors", "20000"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("20000 vectors on "), run.stdout

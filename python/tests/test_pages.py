"""The code of the pages runs, and the examples of docstrings are true."""

from __future__ import annotations

import doctest
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import warpann
from warpann import _warpann

REPOSITORY = Path(__file__).parents[2]


def blocks(page: str) -> list[str]:
    return re.findall(r"(?ms)^```python\n(.*?)^```", (REPOSITORY / page).read_text())


@pytest.mark.parametrize(("page", "least"), [("docs/PYTHON.md", 12), ("README.md", 1)])
def test_the_code_of_a_page_runs(page: str, least: int) -> None:
    pytest.importorskip("pyarrow")
    pytest.importorskip("sklearn")
    found = blocks(page)
    assert len(found) >= least
    names: dict[str, Any] = {"__name__": "page"}
    for number, block in enumerate(found, 1):
        exec(compile(block, f"{page}, block {number}", "exec"), names)


def test_examples_of_docstrings() -> None:
    finder, runner = doctest.DocTestFinder(recurse=False), doctest.DocTestRunner()
    for name in ["warpann", *warpann.__all__]:
        thing = warpann if name == "warpann" else getattr(warpann, name)
        for test in finder.find(thing, name, globs={}):
            runner.run(test)
    assert (runner.failures, runner.tries > 20) == (0, True)


def test_everything_public_has_a_docstring() -> None:
    for name in [*warpann.__all__, *_warpann.__all__]:
        thing = getattr(warpann, name, None) or getattr(_warpann, name)
        assert thing.__doc__, name
        if isinstance(thing, type) and thing.__module__ == "warpann":
            for member in vars(thing):
                if not member.startswith("_"):
                    assert getattr(thing, member).__doc__, f"{name}.{member}"


def test_the_readme_shows_the_example() -> None:
    assert blocks("README.md") == [(REPOSITORY / "python/example.py").read_text()]


def test_importing_the_package_imports_little() -> None:
    program = "import sys, warpann; print([name for name in ('asyncio', 'concurrent.futures', 'ml_dtypes') if name in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"

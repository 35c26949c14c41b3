"""The modules for VIBE and ann-benchmarks find the true neighbours, in the folder layout of these suites."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reference

BENCHES = Path(__file__).parents[2] / "benches"
# Suite, package of its algorithms, arguments before those of an index, and its metrics with ours.
SUITES: list[tuple[str, str, list[str], dict[str, str]]] = [
    ("vibe", "vibe.algorithms", ["cpu"], {"euclidean": "l2", "cosine": "cosine", "ip": "ip", "normalized": "ip"}),
    ("ann-benchmarks", "ann_benchmarks.algorithms", [], {"euclidean": "l2", "angular": "cosine"}),
]
# Class, its arguments, and arguments of a search that miss nothing.
INDEXES: list[tuple[str, list[Any], list[Any]]] = [
    ("Flat", [], []),
    ("Ivf", [8, "flat"], [8, 0]),
    ("Ivf", [8, "sq8"], [8, 4]),
    ("Graph", [16], [300]),
]


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The module of each suite, in a package as the suite has it, with an empty base class."""
    found = {}
    monkeypatch.syspath_prepend(str(tmp_path))
    for suite, package, _, _ in SUITES:
        folder = tmp_path / Path(*package.split("."))
        (folder / "base").mkdir(parents=True)
        (folder / "base" / "module.py").write_text("class BaseANN:\n    pass\n")
        (folder / "warpann").symlink_to(BENCHES / suite / "warpann")
        found[suite] = importlib.import_module(f"{package}.warpann.module")
    yield found
    for name in [name for name in sys.modules if name.split(".")[0] in ("vibe", "ann_benchmarks")]:
        del sys.modules[name]


@pytest.mark.parametrize(("suite", "leading", "metrics"), [(suite, leading, metrics) for suite, _, leading, metrics in SUITES])
@pytest.mark.parametrize(("kind", "arguments", "search"), INDEXES)
def test_a_module_finds_the_nearest(
    modules: dict[str, Any],
    suite: str,
    leading: list[str],
    metrics: dict[str, str],
    kind: str,
    arguments: list[Any],
    search: list[Any],
) -> None:
    rng = np.random.default_rng(7)
    base = rng.normal(size=(300, 12)).astype(np.float32)
    queries = rng.normal(size=(6, 12)).astype(np.float32)
    for metric, ours in metrics.items():
        algorithm = getattr(modules[suite], kind)(metric, *leading, *arguments)
        algorithm.fit(base)
        if search:
            algorithm.set_query_arguments(*search)
        expected = reference.search(ours, queries, dict(enumerate(base)), 5)[1]
        assert [algorithm.query(query, 5).tolist() for query in queries] == expected.tolist(), (metric, str(algorithm))
        algorithm.batch_query(queries, 5)
        assert [ids.tolist() for ids in algorithm.get_batch_results()] == expected.tolist()
        assert all(str(argument) in str(algorithm) for argument in [*arguments, *search])


@pytest.mark.parametrize("suite", [suite for suite, *_ in SUITES])
def test_places_without_a_neighbour_are_left_out(modules: dict[str, Any], suite: str) -> None:
    leading = ["cpu"] if suite == "vibe" else []
    algorithm = modules[suite].Ivf("euclidean", *leading, 2, "flat")
    base = np.zeros((23, 2), np.float32)
    base[:, 0] = [0, 1, 2, *range(100, 120)]
    algorithm.fit(base)
    algorithm.set_query_arguments(1, 0)
    assert algorithm.query(base[0], 5).tolist() == [0, 1, 2]
    algorithm.batch_query(base[[0, 3]], 5)
    assert [ids.tolist() for ids in algorithm.get_batch_results()] == [[0, 1, 2], [3, 4, 5, 6, 7]]


def test_vibe_keeps_bytes(modules: dict[str, Any]) -> None:
    algorithm = modules["vibe"].Graph("euclidean", "cpu", 16)
    base = np.random.default_rng(7).integers(0, 256, (50, 8), dtype=np.uint8)
    algorithm.fit(base)
    algorithm.set_query_arguments(50)
    assert algorithm.index.dtype == "u8" and algorithm.query(base[3], 1).tolist() == [3]

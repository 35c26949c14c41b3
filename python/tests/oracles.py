"""Other libraries with which results are compared."""

from __future__ import annotations

import importlib
import os
import warnings
from typing import Any

import pytest


def oracle(name: str) -> Any:
    """The module of this name. Without it the tests of the file are skipped; with WARPANN_REQUIRE_ORACLE=1 they fail."""
    with warnings.catch_warnings():
        # The wrappers that SWIG makes warn when they are imported.
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module(name)
        except ImportError:
            if os.environ.get("WARPANN_REQUIRE_ORACLE") == "1":
                raise
            pytest.skip(f"the package {name} is not installed", allow_module_level=True)

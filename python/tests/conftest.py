"""Settings of all tests."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import settings

# `cargo xtask python` gives the seed; a failure prints how to repeat it.
settings.register_profile("warpann", database=None, print_blob=True)
settings.load_profile("warpann")
sys.path.insert(0, str(Path(__file__).parent))

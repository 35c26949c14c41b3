"""Settings of all tests."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import settings

# Seeds come from the command line or are fixed, so that a failure in CI repeats.
settings.register_profile("warpann", derandomize=True, print_blob=True)
settings.load_profile("warpann")
sys.path.insert(0, str(Path(__file__).parent))

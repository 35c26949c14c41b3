"""Settings of all tests."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from hypothesis import settings

# `cargo xtask python` gives the seed; a failure prints how to repeat it.
settings.register_profile("warpann", database=None, print_blob=True)
settings.load_profile("warpann")
sys.path.insert(0, str(Path(__file__).parent))
# A shell that starts the tests in the background lets them ignore Ctrl-C, which some of them send.
signal.signal(signal.SIGINT, signal.default_int_handler)

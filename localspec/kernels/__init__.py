"""The CPU kernels' compiled library, which `hatch_build.py` puts next to this file."""

import sys
from pathlib import Path


def library_path() -> Path:
    """Path of the compiled library, if it was built."""
    suffix = "dylib" if sys.platform == "darwin" else "so"
    return Path(__file__).with_name(f"liblocalspec_kernels.{suffix}")

"""The CPU kernels' compiled library, which `hatch_build.py` puts beside this file."""

from __future__ import annotations

import sys
from pathlib import Path


def library_path() -> Path | None:
    """Where the compiled library is; None where it was not built."""
    suffix = "dylib" if sys.platform == "darwin" else "so"
    path = Path(__file__).with_name(f"liblocalspec_kernels.{suffix}")
    return path if path.is_file() else None

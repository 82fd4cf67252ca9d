"""What is known of localspec's CPU kernels without loading llama.cpp."""

from __future__ import annotations

import os
from functools import cache

from localspec.kernels import library_path
from localspec.llama.outcomes import Outcomes

VARIABLE = "LOCALSPEC_KERNELS"
"""Environment variable: "auto", "off", or an instruction set."""
AUTO, OFF = "auto", "off"
INSTRUCTION_SETS = ("avx512", "avxvnni", "avx2", "neon-i8mm", "neon-dotprod")
TYPES = (
    *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "IQ4_XS", "MXFP4"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "F16", "BF16", "F32"),
)
"""Weight types that they take."""
self_tests = Outcomes("kernels", 16)
"""By build, CPU and instruction set: "instruction_set", or "why_not"."""


def wanted() -> str:
    return os.environ.get(VARIABLE, "").strip() or AUTO


@cache
def expected() -> bool:
    """Whether models opened here will use the kernels, judged without llama.cpp: the library
    exists, and its latest self-test passed."""
    if wanted() == OFF or not library_path().is_file():
        return False
    return all(one.get("why_not") is None for one in [*self_tests.all().values()][-1:])

"""localspec's CPU kernels: facts known without llama.cpp, and the C interface (`kernels.h`)."""

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Any

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
"""Weight types that the kernels support."""
self_tests = Outcomes("kernels", 16)
"""Outcomes by build, CPU and instruction set: "instruction_set", or "why_not"."""


def requested() -> str:
    return os.environ.get(VARIABLE, "").strip() or AUTO


@cache
def expected() -> str | None:
    """The instruction set that the kernels will use, by their latest self-test and without loading
    llama.cpp; "" before the first self-test, None if they will not be used."""
    if requested() == OFF or not library_path().is_file():
        return None
    latest = [*self_tests.all().values()][-1:] or [{}]
    return None if "why_not" in latest[0] else str(latest[0].get("instruction_set", ""))


BUFFER = "LOCALSPEC"

_FUNCTIONS = {
    "built_for": (ctypes.c_char_p,),
    "supported": (ctypes.c_char_p,),
    "start": (ctypes.c_char_p, *[ctypes.c_char_p] * 3),
    "take": (None, ctypes.c_int),
    "choose": (None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64),
    "restoring": (None, ctypes.c_void_p, ctypes.c_int64),
    "left": (ctypes.c_int64,),
    "keep_graphs": (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p),
    "drop_graphs": (None, ctypes.c_void_p),
    "make_page_huge": (ctypes.c_int,),
    "counts": (None, ctypes.POINTER(ctypes.c_int64)),
}
"""Result and arguments, by name after "localspec_kernels_"."""


class KernelsUnusable(Exception):
    """The kernels cannot be used; the message explains why."""


def load(path: Path) -> Any:
    """Load the library; KernelsUnusable if that fails, or it is a different library."""
    try:
        native = ctypes.CDLL(str(path))
        for name, (result, *arguments) in _FUNCTIONS.items():
            function = getattr(native, f"localspec_kernels_{name}")
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise KernelsUnusable(
            f"their library cannot be loaded ({error}): reinstall localspec"
        ) from None
    return native


def supported(native: Any) -> list[str]:
    """Instruction sets that both the library and this processor have, the best first."""
    names = (native.localspec_kernels_supported() or b"").decode()
    return [name for name in names.split(",") if name]


def start(native: Any, facts: dict[str, Any]) -> str:
    """Add the layout to ggml, before ggml lists its layouts; returns the instruction set.
    `facts`: from `localspec.llama.kernels.self_test_facts`."""
    built_for = (native.localspec_kernels_built_for() or b"").decode()
    here = f"llama-cpp-python {facts['llama_cpp_python']}"
    if built_for != here:
        raise KernelsUnusable(
            f"they were built for {built_for}, and this is {here}: reinstall localspec"
        )
    known, wanted = supported(native), facts["wanted"]
    if not known:
        raise KernelsUnusable("this processor has none of their instruction sets")
    if wanted not in (AUTO, *known):
        raise KernelsUnusable(
            f"the variable {VARIABLE} requests {wanted}, but this processor has {', '.join(known)}"
        )
    chosen = known[0] if wanted == AUTO else str(wanted)
    names = facts["cpu_path"], facts["base_path"], chosen
    refused = native.localspec_kernels_start(*(name.encode() for name in names))
    if refused is not None:
        raise KernelsUnusable(f"they refuse this llama.cpp: {refused.decode('utf-8', 'replace')}")
    return chosen

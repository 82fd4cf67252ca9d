"""The self-test of localspec's kernels, in a process that may die of it.

Writes what came of it to a file; see `localspec.llama.kernels`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from localspec.llama import ggml, kernels_file
from localspec.llama.ggml_graphs import Backend
from localspec.llama.kernels_library import BUFFER, KernelsLibrary
from localspec.llama.kernels_test import SelfTest

_THREADS = 2


def main(order: dict[str, Any]) -> None:
    """Test as `localspec.llama.kernels` asks, and write down what came of it."""
    try:
        found = _tested(order)
    except OSError as error:
        found = {"why_not": f"their library cannot be loaded ({error}): reinstall localspec"}
    Path(order["outcome"]).write_text(json.dumps(found), encoding="utf-8")


def _tested(order: dict[str, Any]) -> dict[str, str]:
    """The instruction set that works, or why none does."""
    library = KernelsLibrary(Path(order["library"]))
    here = f"llama-cpp-python {order['llama_cpp_python']}"
    if library.built_for != here:
        return {
            "why_not": f"they were built for {library.built_for}, and this is {here}: reinstall "
            "localspec"
        }
    supported, wanted = library.supported, order["wanted"]
    if not supported:
        return {"why_not": "this processor has none of their instruction sets"}
    if wanted not in (kernels_file.AUTO, *supported):
        return {
            "why_not": f"the variable {kernels_file.VARIABLE} asks for {wanted}, and here work "
            f"{', '.join(supported)}"
        }
    chosen = supported[0] if wanted == kernels_file.AUTO else wanted
    refused = library.start(Path(order["cpu_path"]), Path(order["base_path"]), chosen)
    if refused is not None:
        return {"why_not": f"they refuse this llama.cpp: {refused}"}
    layout = ggml.cpu_weight_buffers().get(BUFFER)
    if layout is None:
        return {"why_not": "ggml does not list their layout"}
    with Backend(_THREADS) as backend:
        fault = SelfTest(backend, layout).first_fault()
    if fault is not None:
        return {"why_not": f"their self-test failed: {fault}"}
    return {"instruction_set": chosen}


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

"""Trials that may crash: `python -m localspec.llama.trial TRIAL ARGUMENT`.

`file PATH` opens a model and decodes a token, `kernels ORDER` is the kernels' self-test.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from localspec.errors import LocalspecError
from localspec.llama import ggml
from localspec.llama.context import Context
from localspec.llama.kernels_file import BUFFER, Unusable, load, start
from localspec.llama.kernels_test import Backend, SelfTest
from localspec.llama.model import Model
from localspec.llama.options import ModelOptions

REFUSED = 3
"""Exit status for a file that is refused in the ordinary way."""
_THREADS = 2


def main(trial: str, argument: str = "") -> int:
    if trial == "file":
        return decodes(Path(argument))
    order = json.loads(argument)
    try:
        found = {"instruction_set": _self_tested(order)}
    except OSError as error:
        found = {"why_not": f"their library cannot be loaded ({error}): reinstall localspec"}
    except Unusable as error:
        found = {"why_not": str(error)}
    Path(order["outcome"]).write_text(json.dumps(found), encoding="utf-8")
    return 0


def decodes(path: Path) -> int:
    """Open a model and decode a token, on the CPU alone."""
    options = ModelOptions(context=64, gpu_layers=0)
    try:
        with Model(path, options, cpu_alone=True) as model:
            context = Context(model, options)
            context.extend([0])
            context.close()
    except LocalspecError:
        return REFUSED
    return 0


def _self_tested(order: dict[str, Any]) -> str:
    chosen = start(load(Path(order["library"])), order)
    layout = ggml.cpu_weight_buffers().get(BUFFER)
    if layout is None:
        raise Unusable("ggml does not list their layout")
    with Backend(_THREADS) as backend:
        fault = SelfTest(backend, layout).first_fault()
    if fault is not None:
        raise Unusable(f"their self-test failed: {fault}")
    return chosen


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

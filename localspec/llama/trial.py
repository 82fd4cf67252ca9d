"""Trials that may crash: `python -m localspec.llama.trial TRIAL [PATH]`.

`file PATH` opens a model and decodes a token; `kernels`, their self-test, prints its outcome.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from localspec.errors import LocalspecError
from localspec.kernels import library_path
from localspec.llama import ggml, kernels
from localspec.llama.context import Context
from localspec.llama.kernels_file import BUFFER, Unusable, load, start
from localspec.llama.kernels_test import Backend, SelfTest
from localspec.llama.model import Model
from localspec.llama.options import ModelOptions

REFUSED = 3
"""Exit status for a file that is refused in the ordinary way."""
_THREADS = 2


def main(trial: str, path: str = "") -> int:
    if trial == "file":
        return decodes(Path(path))
    print(json.dumps(_self_tested()))
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


def _self_tested() -> dict[str, str]:
    """The "instruction_set" of kernels that passed, else "why_not"."""
    try:
        chosen = start(load(library_path()), kernels.facts_here())
    except OSError as error:
        return {"why_not": f"their library cannot be loaded ({error}): reinstall localspec"}
    except Unusable as error:
        return {"why_not": str(error)}
    layout = ggml.cpu_weight_buffers().get(BUFFER)
    if layout is None:
        return {"why_not": "ggml does not list their layout"}
    with Backend(_THREADS) as backend:
        fault = SelfTest(backend, layout).first_fault()
    if fault is not None:
        return {"why_not": f"their self-test failed: {fault}"}
    return {"instruction_set": chosen}


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

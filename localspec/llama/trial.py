"""Trials that may crash: `python -m localspec.llama.trial TRIAL [PATH]`.

`file PATH` opens a model and decodes a token; if that is refused, it fails without a crash.
`kernels` prints the outcome of the kernels' self-test.
"""

import json
import sys
from contextlib import closing
from pathlib import Path

from localspec.kernels import library_path
from localspec.llama import ggml, kernels
from localspec.llama.context import Context
from localspec.llama.kernels_file import BUFFER, KernelsUnusable, load, start
from localspec.llama.kernels_test import Backend, SelfTest
from localspec.llama.model import Model
from localspec.llama.options import ModelOptions

_THREADS = 2


def main(trial: str, path: str = "") -> None:
    if trial == "file":
        try_file(Path(path))
    else:
        print(json.dumps(run_self_test()))


def try_file(path: Path) -> None:
    """Open a model and decode a token, using only the CPU. Raises as `Model` and `extend`."""
    options = ModelOptions(context=64, gpu_layers=0)
    with Model(path, options, cpu_only=True) as model, closing(Context(model, options)) as context:
        context.extend([0])


def run_self_test() -> dict[str, str]:
    """Run the kernels' self-test; returns "instruction_set" if they passed, otherwise "why_not"."""
    try:
        chosen = start(load(library_path()), kernels.self_test_facts())
    except KernelsUnusable as error:
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
    main(*sys.argv[1:])

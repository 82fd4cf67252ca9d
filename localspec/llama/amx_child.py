"""A batched pass with the CPU backend's own weight buffers, in a process that may die of it.

Exits with 0 if the pass survived; see `localspec.llama.amx_check`.
"""

from __future__ import annotations

from localspec import paths
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.llama.options import ModelOptions


def main() -> None:
    """Open the embedded draft model and decode a few tokens at once."""
    # localspec's kernels would take the weights, and ask for this check first.
    options = ModelOptions(context=64, gpu_layers=0, kernels="off")
    path = paths.embedded(paths.EMBEDDED_DRAFT)
    # A GPU that took the layers would survive whatever the CPU's code is like.
    model = Model(path, options, weight_buffers=True, cpu_alone=True)
    Context(model, options).extend([1, 2, 3, 4, 5, 6, 7, 8])


if __name__ == "__main__":
    main()

"""PyTorch, imported only when something is trained."""

import sys
from typing import Any

from localspec.errors import UsageError, extra_package
from localspec.signals import delayed_signals

DEVICES = ("auto", "cpu", "cuda", "mps")
Tensor = Any
"""A torch.Tensor; torch is not imported for its types."""


def torch_package() -> Any:
    """The package torch, or a UsageError."""
    if known := sys.modules.get("torch"):
        return known
    with delayed_signals():
        return extra_package("torch", "Drafts are trained with", "train")


class _Torch:
    """PyTorch, imported with its first use."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch_package(), name)


torch: Any = _Torch()


def device(wanted: str) -> Any:
    """The device for training, one of DEVICES; "auto" picks the fastest. A UsageError if it does
    not exist."""
    there = {
        "cpu": True,
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
    }
    if wanted == "auto":
        wanted = next(name for name in ("cuda", "mps", "cpu") if there[name])
    if wanted not in there:
        raise UsageError(f"There is no device '{wanted}'. Choose one of {', '.join(DEVICES)}.")
    if not there[wanted]:
        raise UsageError(
            f"PyTorch finds no device '{wanted}' here. Use --device cpu, or install a PyTorch "
            "that was built for it."
        )
    return torch.device(wanted)

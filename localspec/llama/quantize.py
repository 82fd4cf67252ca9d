"""Rewriting a GGUF file in another quantization."""

from __future__ import annotations

from pathlib import Path

import llama_cpp

from localspec.errors import NativeError, UsageError
from localspec.llama import library

_PREFIX = "LLAMA_FTYPE_MOSTLY_"


def file_type(quant: str) -> int:
    """llama.cpp's number for "Q4_K_M" and the like.

    Raises:
        UsageError: an unknown quantization.
    """
    found: int | None = getattr(llama_cpp, _PREFIX + quant.upper(), None)
    if found is None:
        known = sorted(n.removeprefix(_PREFIX) for n in dir(llama_cpp) if n.startswith(_PREFIX))
        raise UsageError(f"There is no quantization '{quant}'. Choose from {', '.join(known)}.")
    return found


def quantize(
    source: Path,
    destination: Path,
    quant: str,
    threads: int | None = None,
    *,
    again: bool = False,
) -> None:
    """Write `source` to `destination` as `quant`, e.g. "Q4_K_M".

    Args:
        again: whether weights that are quantized already may be quantized once more, at a loss.

    Raises:
        UsageError: an unknown quantization.
        NativeError: llama.cpp could not read or write; `destination` may hold a part.
    """
    type_number = file_type(quant)
    library.start()
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = type_number
    params.nthread = threads or library.default_threads()
    params.allow_requantize = again
    library.forget_complaints()
    if llama_cpp.llama_model_quantize(str(source).encode(), str(destination).encode(), params):
        cause = library.complaint() or "llama.cpp gave no reason"
        raise NativeError(
            f"{source} could not be quantized to {quant}: {cause}. "
            "Check that there is room on the disk, or run with -v to see llama.cpp's log."
        )

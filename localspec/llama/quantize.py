import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

import llama_cpp

from localspec.errors import NativeError, UsageError
from localspec.llama import library
from localspec.llama.cores import default_threads

_PREFIX = "LLAMA_FTYPE_MOSTLY_"


def file_type(quant: str) -> int:
    """llama_ftype of a name such as "Q4_K_M"; a UsageError if unknown."""
    found: int | None = getattr(llama_cpp, _PREFIX + quant.upper(), None)
    if found is None:
        known = sorted(n.removeprefix(_PREFIX) for n in dir(llama_cpp) if n.startswith(_PREFIX))
        raise UsageError(f"There is no quantization '{quant}'. Choose from {', '.join(known)}.")
    return found


def quantize(
    source: Path,
    destination: Path,
    quant: str | None,
    threads: int | None = None,
    *,
    again: bool = False,
    pure: bool = False,
    leave_out: Sequence[int] = (),
    name: str | None = None,
) -> None:
    """Write `source` to `destination` as `quant`, e.g. "Q4_K_M"; None copies the weights.

    Args:
        again: allow requantizing quantized weights, at a loss.
        pure: store all matrices in the type that `quant` is named for.
        leave_out: layers to drop, from 0; later ones move up.
        name: for the new model, at most 127 bytes.

    Raises:
        UsageError: the quantization is unknown.
        NativeError: llama.cpp could not read or write; `destination` may be incomplete.
    """
    params = llama_cpp.llama_model_quantize_default_params()
    if quant is None:
        params.only_copy = True
    else:
        params.ftype = file_type(quant)
    library.start()
    params.nthread = threads or default_threads()
    params.allow_requantize = again
    params.pure = pure
    if leave_out:  # the list ends with −1
        params.prune_layers = (ctypes.c_int32 * (len(leave_out) + 1))(*sorted(leave_out), -1)
    if name is not None:  # one override, and an empty one that ends the list
        overrides = (llama_cpp.llama_model_kv_override * 2)()
        overrides[0].tag = llama_cpp.LLAMA_KV_OVERRIDE_TYPE_STR
        overrides[0].key = b"general.name"
        overrides[0].value.val_str = name.encode()[:127].decode("utf-8", "ignore").encode()
        params.kv_overrides = overrides
    library.clear_errors()
    if llama_cpp.llama_model_quantize(os.fsencode(source), os.fsencode(destination), params):
        what = "copied" if quant is None else f"quantized to {quant}"
        raise NativeError(
            f"{source} could not be {what}: {library.first_error()}. "
            "Check that there is room on the disk, or run with -v to see llama.cpp's log."
        )

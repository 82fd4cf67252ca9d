from __future__ import annotations

import ctypes
import sys
from typing import Any

import llama_cpp

from localspec.llama import library
from localspec.llama.model import Model
from localspec.llama.options import (
    DEFAULT_CONTEXT,
    MAX_LEAVES,
    MAX_SNAPSHOT_DRAFT,
    MAX_TREE,
    ModelOptions,
)
from localspec.llama.types import TYPE_NUMBERS

_FLASH = {"auto": -1, "off": 0, "on": 1}

_libc = ctypes.cdll.msvcrt if sys.platform == "win32" else ctypes.CDLL(None)
# ggml calls its abort callback before every node of the graph. A Python function would have to take
# the interpreter lock each time; strlen of a one-byte flag returns 0 or 1 without it.
_is_set = ctypes.cast(_libc.strlen, llama_cpp.ggml_abort_callback)


def context_params(
    model: Model,
    options: ModelOptions,
    stop: ctypes.Array[ctypes.c_char],
    *,
    sequences: int = MAX_LEAVES,
    rows: int = MAX_TREE + 1,
) -> Any:
    """llama_context_params for a model.

    `stop`: a string that outlives the context; passes abort while its length is 1. `sequences`:
    number of sequence ids; a recurrent memory has one. `rows`: most rows of logits of a pass.
    """
    threads = options.fixed_threads or library.default_threads()
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = options.context or min(model.trained_context, DEFAULT_CONTEXT)
    params.n_batch = params.n_ubatch = options.batch
    params.n_seq_max = 1 if model.recurrent else sequences
    params.n_rs_seq = MAX_SNAPSHOT_DRAFT if model.recurrent else 0
    params.n_outputs_max = rows
    params.n_threads = params.n_threads_batch = threads
    params.flash_attn_type = _FLASH[options.flash_attention]
    params.type_k, params.type_v = (TYPE_NUMBERS[name.upper()] for name in kv_types(options, model))
    params.kv_unified = True
    params.swa_full = True  # a sliding window could not be rolled back
    params.no_perf = True
    params.abort_callback = _is_set
    params.abort_callback_data = ctypes.addressof(stop)
    return params


def kv_types(options: ModelOptions, model: Model) -> tuple[str, str]:
    """Element types of keys and values. With two different types, the rounding of llama.cpp's CPU
    attention does not depend on the size of a pass, which exact answers need without localspec's
    kernels. Devices may not support such a pair (Vulkan: `ggml_backend_vk_device_supports_op`)."""
    types = options.kv_type_k, options.kv_type_v
    stock = options.exact and not model.kernels.in_use and not model.offloaded
    return ("f16", "bf16") if stock and {*types} <= {"f16", "f32"} else types  # F32 is read as F16

import ctypes
from collections.abc import Iterable
from functools import cache
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp import llama_cpp_ext

from localspec.decoding.interfaces import NEXTN
from localspec.decoding.sampling import Rows
from localspec.errors import NativeError
from localspec.llama.model import Model
from localspec.llama.options import NEXTN_GRAPHS

LAYER_INPUTS = frozenset(
    """
    gemma4 gpt-oss lfm2 lfm2moe llama mimo2 minimax-m2 nemotron_h nemotron_h_moe qwen3 qwen35
    qwen35moe qwen3moe qwen3next
    """.split()
)
"""Architectures whose graph exports layer inputs (`t_layer_inp` in src/models of the pinned
llama.cpp). It aborts for others."""

NO_FINAL = frozenset(("lfm2", "lfm2moe"))
"""Architectures whose graph computes either the final state or logits, not both."""

# Functions of llama-ext.h, which are not in llama.h: C++ names as mangled by gcc and clang.
_SET_LAYER = "_Z30llama_set_embeddings_layer_inpP13llama_contextjb"
_GET_LAYER = "_Z30llama_get_embeddings_layer_inpP13llama_contextj"


def require(model: Model, layers: Iterable[int]) -> None:
    """Return if llama.cpp provides these hidden states of a model, else a NativeError."""
    architecture = model.metadata.get("general.architecture", "unknown")
    taps = {*layers}
    final, nextn = model.layers in taps, NEXTN in taps
    taps -= {model.layers, NEXTN}
    if nextn and architecture not in NEXTN_GRAPHS:
        what = "states for MTP layers"
    elif taps and architecture not in LAYER_INPUTS:
        what = "hidden states of layers"
    elif final and architecture in NO_FINAL:
        what = "hidden states of the last layer together with logits"
    else:
        if taps:
            _layer_functions()
        return
    raise NativeError(
        f"llama.cpp provides no {what} for {model.path.name} (architecture {architecture}). Choose "
        "a draft model, or leave the head out with --draft none."
    )


@cache
def _function(name: str, result: Any, *arguments: Any) -> Any:
    """A native function; a NativeError if this build does not export it."""
    try:
        return ctypes.CFUNCTYPE(result, *arguments)((name, llama_cpp.llama_cpp._lib))
    except AttributeError:
        raise NativeError(
            f"This build of llama.cpp does not export {name}, so hidden states of layers cannot be "
            "read. Install the llama-cpp-python that localspec asks for, or choose a drafter that "
            "needs none."
        ) from None


def _layer_functions() -> tuple[Any, Any]:
    """The functions that enable a layer's input and return its address."""
    enable = _function(_SET_LAYER, None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_bool)
    return enable, _function(_GET_LAYER, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32)


class HiddenStates:
    """Layer inputs and final states (after the output norm) of a context's passes. `final`: whether
    final states are requested, for which every token has to be an output."""

    def __init__(self, model: Model, context: Any) -> None:
        self._model = model
        self._context = context
        self._enabled: set[int] = set()  # layers that llama.cpp exports, requested or not
        self._on = False
        self.final = False
        self._layer_address: Any = None

    def request(self, layers: Iterable[int]) -> None:
        wanted, most = {*layers}, self._model.layers
        require(self._model, wanted - self._enabled)
        # Layers stay enabled: llama.cpp reserves its buffers again for each change, which takes
        # longer than many passes of a small model, while its copies cost almost nothing.
        for layer in wanted - {most} - self._enabled:
            if layer == NEXTN:  # for every token, whether it is an output or not
                llama_cpp_ext.llama_set_embeddings_nextn(self._context, True, False)
            else:
                enable, self._layer_address = _layer_functions()
                enable(self._context, layer, True)
            self._enabled.add(layer)
        self.final = most in wanted
        self.provide_final(on=self.final)

    def provide_final(self, *, on: bool) -> None:
        """Provide final states in the next passes, for which all of their tokens are outputs."""
        if on != self._on:
            llama_cpp.llama_set_embeddings(self._context, on)
            self._on = on

    def rows(self, first: int, count: int, outputs: int = 0) -> dict[int, Rows]:
        """Copies of the layer inputs of `count` tokens of the last pass from `first` on, and of the
        final states of the last `outputs` of them."""
        found: dict[int, Rows] = {}
        model, context = self._model, self._context
        for layer in self._enabled:
            if layer == NEXTN:
                found[layer] = nextn_rows(context, count, model.output_width, skip=first)
            else:
                address = self._layer_address(context, layer)
                found[layer] = _copy_rows(address, count, model.width, skip=first)
        if self.final and outputs:
            address = _final_address(context, first + count - outputs)
            found[model.layers] = _copy_rows(address, outputs, model.output_width)
        return found


# Not a `locked_function`: on a GPU it waits for the pass.
_final_address = _function(
    "llama_get_embeddings_ith", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32
)


def nextn_rows(context: Any, count: int, width: int, *, skip: int = 0) -> Rows:
    """Copies of the states of the last pass that an MTP layer, or a head's next pass, reads."""
    found = llama_cpp_ext.llama_get_embeddings_nextn(context)
    return _copy_rows(ctypes.cast(found, ctypes.c_void_p).value, count, width, skip=skip)


def _copy_rows(address: int | None, rows: int, width: int, *, skip: int = 0) -> Rows:
    if not address:
        raise NativeError(
            "llama.cpp returned no hidden states for the last pass. Run with -v to see its log."
        )
    # Called once per token and layer: np.ctypeslib.as_array takes ten times as long.
    numbers = ctypes.string_at(address + 4 * skip * width, 4 * rows * width)
    return np.frombuffer(numbers, np.float32).reshape(rows, width)

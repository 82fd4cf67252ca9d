"""What this build of llama.cpp can run on: backends, devices and their memory."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import llama_cpp

KINDS = {0: "CPU", 1: "GPU", 2: "integrated GPU", 3: "accelerator"}
"""ggml_backend_dev_type of ggml-backend.h."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device.

    Attributes:
        name, description: as it calls itself, e.g. "CUDA0" and "NVIDIA H200".
        kind: one of KINDS, "other" for what is newer.
        free, total: bytes of its memory; 0 where it does not tell. An integrated GPU's are those
            of main memory.
    """

    name: str
    description: str
    kind: str
    free: int
    total: int

    @property
    def takes_layers(self) -> bool:
        """Whether layers can be offloaded to it."""
        return self.kind in ("GPU", "integrated GPU")


def devices() -> list[Device]:
    """All of them, the CPU among them."""
    library = _library()
    found = []
    for index in range(library.ggml_backend_dev_count()):
        handle = library.ggml_backend_dev_get(index)
        free, total = ctypes.c_size_t(0), ctypes.c_size_t(0)
        library.ggml_backend_dev_memory(handle, ctypes.byref(free), ctypes.byref(total))
        found.append(
            Device(
                _text(library.ggml_backend_dev_name(handle)),
                _text(library.ggml_backend_dev_description(handle)),
                KINDS.get(library.ggml_backend_dev_type(handle), "other"),
                int(free.value),
                int(total.value),
            )
        )
    return found


def backends() -> list[str]:
    """Names of the backends that are built in, e.g. "CUDA" and "CPU"."""
    library = _library()
    handles = map(library.ggml_backend_reg_get, range(library.ggml_backend_reg_count()))
    return [_text(library.ggml_backend_reg_name(handle)) for handle in handles]


def features() -> list[str]:
    """What the code was built for, e.g. "AVX2"."""
    info = llama_cpp.llama_print_system_info().decode("utf-8", "replace")
    parts = (part.split(":")[-1].strip() for part in info.split("|"))
    return [part.removesuffix("= 1").strip() for part in parts if part.endswith("= 1")]


def rewritten_types() -> frozenset[str]:
    """Types of weights that the CPU backend keeps a rewritten copy of (ggml-cpu: amx, repack).

    `localspec.gguf.dimensions` guesses them from the processor; the build decides.
    """
    from localspec.llama.amx_check import weight_buffers_work

    built = set(features())
    if not weight_buffers_work():
        return frozenset()
    found: set[str] = set()
    if {"AMX_INT8", "AVX512_VNNI"} <= built:
        found |= {"Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"}
    if "REPACK" in built:
        if "AVX2" in built:
            found |= {"Q4_0", "Q4_K", "IQ4_NL", "MXFP4"}
        if "AVX512" in built:
            found.add("Q2_K")
        if built & {"DOTPROD", "MATMUL_INT8"}:
            found |= {"Q4_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "MXFP4", "Q8_0"}
    return frozenset(found)


def _text(raw: bytes | None) -> str:
    return (raw or b"").decode("utf-8", "replace")


def _library() -> ctypes.CDLL:
    from llama_cpp._ggml import libggml

    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    for name, restype, argtypes in (
        ("ggml_backend_reg_count", size, []),
        ("ggml_backend_reg_get", pointer, [size]),
        ("ggml_backend_reg_name", ctypes.c_char_p, [pointer]),
        ("ggml_backend_dev_count", size, []),
        ("ggml_backend_dev_get", pointer, [size]),
        ("ggml_backend_dev_name", ctypes.c_char_p, [pointer]),
        ("ggml_backend_dev_description", ctypes.c_char_p, [pointer]),
        ("ggml_backend_dev_type", ctypes.c_int, [pointer]),
        ("ggml_backend_dev_memory", None, [pointer, ctypes.POINTER(size), ctypes.POINTER(size)]),
    ):
        function = getattr(libggml, name)
        function.restype, function.argtypes = restype, argtypes
    return libggml  # type: ignore[no-any-return]

"""The C interface of localspec's kernels; see `localspec/kernels/kernels.h`."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import numpy.typing as npt

BUFFER = "LOCALSPEC"
"""What ggml calls the layout."""

_FUNCTIONS = {
    "built_for": (ctypes.c_char_p,),
    "supported": (ctypes.c_char_p,),
    "start": (ctypes.c_char_p, *[ctypes.c_char_p] * 3),
    "take": (None, ctypes.c_int),
    "restoring": (None, ctypes.c_void_p, ctypes.c_int64),
    "left": (ctypes.c_int64,),
    "counts": (None, ctypes.POINTER(ctypes.c_int64)),
}
"""Result and arguments, by name behind "localspec_kernels_"."""


class KernelsLibrary:
    """The library, loaded into this process, which a damaged one may crash.

    Raises:
        OSError: it cannot be loaded, or is not this library.
    """

    def __init__(self, path: Path) -> None:
        self._native = ctypes.CDLL(str(path))
        try:
            for name, (result, *arguments) in _FUNCTIONS.items():
                function = getattr(self._native, f"localspec_kernels_{name}")
                function.restype, function.argtypes = result, arguments
        except AttributeError as error:
            raise OSError(f"{path.name} lacks a function: {error}") from None

    @property
    def built_for(self) -> str:
        """The only package that it may be started with."""
        return str((self._native.localspec_kernels_built_for() or b"").decode())

    @property
    def supported(self) -> list[str]:
        """Instruction sets that it has and this processor too, the best first."""
        found = (self._native.localspec_kernels_supported() or b"").decode()
        return [one for one in found.split(",") if one]

    def start(self, cpu: Path, base: Path, instruction_set: str) -> str | None:
        """Put the layout into ggml, before anyone lists those that there are; returns why that
        cannot be, None where it is done. `cpu`, `base`: libggml-cpu and libggml-base."""
        files = str(cpu).encode(), str(base).encode()
        said = self._native.localspec_kernels_start(*files, instruction_set.encode())
        return None if said is None else str(said.decode("utf-8", "replace"))

    def take(self, *, on: bool) -> None:
        """Whether models that this thread opens from now on use them."""
        self._native.localspec_kernels_take(int(on))

    def restoring(self, positions: npt.NDArray[np.int32] | None) -> None:
        """See `localspec.llama.kernels.restoring`; the array must live until None is given."""
        if positions is None:
            self._native.localspec_kernels_restoring(None, 0)
        else:
            self._native.localspec_kernels_restoring(positions.ctypes.data, positions.size)

    def left(self) -> int:
        """See `localspec.llama.kernels.left_so_far`, of the thread that asks."""
        return int(self._native.localspec_kernels_left())

    def taken(self) -> int:
        """Tensors taken since the start."""
        counts = (ctypes.c_int64 * 4)()  # taken, declined, bytes repacked, microseconds of that
        self._native.localspec_kernels_counts(counts)
        return counts[0]

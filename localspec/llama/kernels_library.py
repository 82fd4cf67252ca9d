"""The C interface of localspec's kernels; see `localspec/kernels/kernels.h`."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import numpy.typing as npt

BUFFER = "LOCALSPEC"
"""What ggml calls the layout."""


class KernelsLibrary:
    """The library, loaded into this process, which a damaged one may crash.

    Raises:
        OSError: it cannot be loaded, or is not this library.
    """

    def __init__(self, path: Path) -> None:
        native = ctypes.CDLL(str(path))
        try:
            self._built_for = native.localspec_kernels_built_for
            self._supported = native.localspec_kernels_supported
            self._start = native.localspec_kernels_start
            self._take = native.localspec_kernels_take
            self._restoring = native.localspec_kernels_restoring
            self._left = native.localspec_kernels_left
            self._counts = native.localspec_kernels_counts
        except AttributeError as error:
            raise OSError(f"{path.name} lacks a function: {error}") from None
        for text in (self._built_for, self._supported, self._start):
            text.restype = ctypes.c_char_p
        self._start.argtypes = [ctypes.c_char_p] * 3
        self._take.restype, self._take.argtypes = None, [ctypes.c_int]
        self._restoring.restype = None
        self._restoring.argtypes = [ctypes.c_void_p, ctypes.c_int64]
        self._left.restype, self._left.argtypes = ctypes.c_int64, []
        self._counts.restype = None
        self._counts.argtypes = [ctypes.POINTER(ctypes.c_int64)]

    @property
    def built_for(self) -> str:
        """The only package that it may be started with."""
        return str((self._built_for() or b"").decode())

    @property
    def supported(self) -> list[str]:
        """Instruction sets that it has and this processor too, the best first."""
        return [one for one in (self._supported() or b"").decode().split(",") if one]

    def start(self, cpu: Path, base: Path, instruction_set: str) -> str | None:
        """Put the layout into ggml, before anyone lists those that there are; returns why that
        cannot be, None where it is done.

        Args:
            cpu, base: libggml-cpu and libggml-base of this process.
        """
        said = self._start(str(cpu).encode(), str(base).encode(), instruction_set.encode())
        return None if said is None else str(said.decode("utf-8", "replace"))

    def take(self, *, on: bool) -> None:
        """Whether models that this thread opens from now on use them."""
        self._take(int(on))

    def restoring(self, positions: npt.NDArray[np.int32] | None) -> None:
        """See `localspec.llama.kernels.restoring`; the array must live until None is given."""
        if positions is None:
            self._restoring(None, 0)
        else:
            self._restoring(positions.ctypes.data, positions.size)

    def left(self) -> int:
        """See `localspec.llama.kernels.left_so_far`, of the thread that asks."""
        return int(self._left())

    def counts(self) -> tuple[int, int, int, int]:
        """Since the start: tensors taken and declined, bytes repacked, microseconds of that."""
        found = (ctypes.c_int64 * 4)()
        self._counts(found)
        return found[0], found[1], found[2], found[3]

import ctypes
import hashlib
import os
import threading
import weakref
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

from localspec.decoding.sampling import Rows
from localspec.errors import ModelInvalid, NativeError, UsageError
from localspec.identity import file_identity, fingerprint
from localspec.llama import compute_thread, library
from localspec.llama.cores import default_threads
from localspec.llama.model import Model
from localspec.llama.options import ModelOptions
from localspec.llama.pictures import PicturePart

MAX_CACHED = 16
_TEXT, _IMAGE = 0, 1  # mtmd_input_chunk_type
_NOWHERE = b"/nonexistent"
"""The folder in which llama.cpp looks for ffmpeg, which it would run on other files."""


class Projector:
    """A projector for images (llama.cpp's mtmd), from a file that passed
    `localspec.gguf.projectors`. Thread-safe; the model must outlive it. `filler`: the token that
    drafters see at an image's positions. A UsageError without mtmd, or for two-dimensional
    positions; a ModelInvalid if llama.cpp refuses the file, or it belongs to another model."""

    def __init__(self, path: Path, model: Model, options: ModelOptions) -> None:
        self._mtmd = mtmd = _library()
        self._width = int(llama_cpp.llama_model_n_embd_inp(model.handle))
        self._lock = threading.Lock()
        self._known: dict[str, list[list[int] | PicturePart]] = {}  # the latest last
        self._identity = fingerprint(file_identity(path))
        self.filler = max(0, model.vocabulary.bos)
        params = mtmd.mtmd_context_params_default()
        params.use_gpu = library.accelerated() and options.gpu_layers != 0
        params.n_threads = options.fixed_threads or default_threads()
        params.print_timings = params.warmup = False
        library.clear_errors()
        self._handle: Any = mtmd.mtmd_init_from_file(os.fsencode(path), model.handle, params)
        if not self._handle:
            raise ModelInvalid(
                f"{path} cannot be used with {model.path.name}: {library.first_error()}. Give the "
                "mmproj file that belongs to the model."
            )
        if mtmd.mtmd_decode_use_mrope(self._handle):
            self.close()
            raise UsageError(
                f"{model.path.name} uses two-dimensional image positions (M-RoPE), which "
                "localspec does not support. Leave out --mmproj, or use llama.cpp's own tools."
            )

    def close(self) -> None:
        """Free the projector, before the model."""
        with self._lock:
            if self._handle is not None:
                self._mtmd.mtmd_free(self._handle)
                self._handle = None

    def _require_open(self) -> None:
        if self._handle is None:
            raise UsageError("The engine is closed. Load the model again.")

    def parts(self, key: str, image: bytes) -> list[list[int] | PicturePart]:
        """Tokens and parts of an image; `key`: its SHA-256. A UsageError if it cannot be read."""
        with self._lock:
            self._require_open()
            found = self._known[key] = self._known.pop(key, []) or self._read(key, image)
            if len(self._known) > MAX_CACHED:
                del self._known[next(iter(self._known))]
            return found

    def _read(self, key: str, image: bytes) -> list[list[int] | PicturePart]:
        mtmd, marker = self._mtmd, self._mtmd.mtmd_get_marker(self._handle)
        buffer = (ctypes.c_uint8 * len(image)).from_buffer_copy(image)
        how = mtmd.mtmd_helper_init_opt_default()
        how.video_params.ffmpeg_bin_dir = _NOWHERE
        read = mtmd.mtmd_helper_bitmap_init_from_buf_wrapper(
            self._handle, buffer, len(image), False, how
        )
        chunks = mtmd.mtmd_input_chunks_init()
        try:
            if not read.bitmap:
                raise UsageError("An image is damaged. Give another one, as PNG, JPEG, GIF or BMP.")
            text = mtmd.mtmd_input_text(
                text=marker, text_len=len(marker), add_special=False, parse_special=True
            )
            bitmaps = (ctypes.c_void_p * 1)(read.bitmap)
            if mtmd.mtmd_tokenize(self._handle, chunks, ctypes.byref(text), bitmaps, 1):
                raise UsageError(f"An image cannot be used: {library.first_error()}.")
            return [
                self._part(f"{key} {number}", mtmd.mtmd_input_chunks_get(chunks, number))
                for number in range(mtmd.mtmd_input_chunks_size(chunks))
            ]
        finally:
            mtmd.mtmd_input_chunks_free(chunks)
            mtmd.mtmd_bitmap_free(read.bitmap)

    def _part(self, name: str, chunk: Any) -> list[int] | PicturePart:
        mtmd = self._mtmd
        count = int(mtmd.mtmd_input_chunk_get_n_tokens(chunk))
        if mtmd.mtmd_input_chunk_get_type(chunk) == _TEXT:
            tokens = mtmd.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(ctypes.c_size_t()))
            return [int(tokens[number]) for number in range(count)]
        digest = hashlib.sha256(f"{self._identity} {name}".encode()).digest()
        first = int.from_bytes(digest[:4], "little")
        chunk = mtmd.mtmd_input_chunk_copy(chunk)
        encoding = cache(partial(self._encode, chunk, count))
        weakref.finalize(encoding, mtmd.mtmd_input_chunk_free, chunk)
        return PicturePart(
            tuple(-1 - (first + number & 0x7FFFFFFF) for number in range(count)),
            encoding,
            not mtmd.mtmd_decode_use_non_causal(self._handle, chunk),
        )

    def _encode(self, chunk: Any, count: int) -> Rows:
        with self._lock:
            self._require_open()
            library.clear_errors()
            if compute_thread.call(self._mtmd.mtmd_encode_chunk, self._handle, chunk):
                raise NativeError(
                    f"llama.cpp cannot encode an image: {library.first_error()}. Leave it out."
                )
            rows = self._mtmd.mtmd_get_output_embd(self._handle)
            return np.array(np.ctypeslib.as_array(rows, (count, self._width)), np.float32)


def _library() -> Any:
    """The binding of mtmd, which loads its library on import; a UsageError if it is missing."""
    try:
        mtmd = import_module("llama_cpp.mtmd_cpp")
    except (ImportError, OSError, RuntimeError, AttributeError):
        raise UsageError(
            "This build of llama-cpp-python has no library for images (mtmd). Reinstall it without "
            "LLAVA_BUILD=OFF, or leave out --mmproj."
        ) from None
    library.redirect_log(mtmd.mtmd_helper_log_set)
    return mtmd

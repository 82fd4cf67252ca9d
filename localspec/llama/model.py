from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import llama_cpp

from localspec.errors import ModelInvalid, NativeError
from localspec.llama import kernels, library
from localspec.llama.options import DEFAULT_CONTEXT, MIN_CONTEXT, Adapter, ModelOptions
from localspec.llama.vocabulary import Vocabulary, require_open
from localspec.worker_threads import start_thread

_METADATA = 16 << 20  # bytes, at most
_ALIGNED_LESS = re.compile(rb"general\.alignment\x04\0{3}[\x01-\x1f]\0{3}")
Progress = Callable[[float], None]
"""Called with the loaded fraction, 0 to 1. An exception stops the loading."""


class Model:
    """Weights and vocabulary of a GGUF file that `localspec.gguf.description` found usable;
    llama.cpp aborts on others. Close it, or use it as a context manager. A ModelInvalid for a
    file that llama.cpp cannot use, or a bad adapter; a NativeError without enough memory.

    Args:
        cpu_only: ignore other devices, which would process long prompts even without layers.
        vocabulary_only: skip the weights; `layers`, `width` and the like are then unset.
        adapters: LoRA adapters that passed `localspec.gguf.adapters`: llama.cpp aborts on others.
        mtp: load the MTP layers, see `localspec.gguf.mtp`.

    Attributes:
        name: the reference that it was opened with, else the stem of its file name.
        metadata: GGUF keys and scalar values as text.
        recurrent: whether its memory, or a part, cannot be truncated token by token.
        size: bytes of weights.
        offloaded: whether other devices are used; `on_device`: whether they have all layers.
        width: of a hidden state; `output_width`: after the output norm.
    """

    def __init__(
        self,
        path: Path,
        options: ModelOptions,
        *,
        progress: Progress | None = None,
        cpu_only: bool = False,
        vocabulary_only: bool = False,
        adapters: Sequence[Adapter] = (),
        mtp: bool = False,
    ) -> None:
        self.path, self.name = path, path.stem
        self.adapters = tuple(adapters)
        self._handle: Any = None
        self._adapter_handles: list[Any] = []  # freed with the weights
        library.start()
        # Asked before the first model is opened, as that settles it.
        weight_buffers = not vocabulary_only and kernels.weight_buffers_work()
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = options.gpu_layers
        none = (ctypes.c_void_p * 1)(None)  # an empty list, ended by NULL
        if cpu_only:
            params.devices = ctypes.cast(none, ctypes.c_void_p)
        params.load_mode = (options.mmap and _may_be_mapped(self.path)) + 2 * options.mlock
        params.vocab_only, params.use_extra_bufts = vocabulary_only, weight_buffers
        params.load_mtp = mtp
        before = kernels.taken_count()
        try:
            self._handle = self._load(params, options, progress)
            self.kernels = kernels.unused("its weights are used as stored in the file")
            if weight_buffers:
                self.kernels = kernels.status_of_loaded(options.kernels, before)
            self.metadata = self._read_metadata()
            self.vocabulary = Vocabulary(llama_cpp.llama_model_get_vocab(self.handle))
            if not vocabulary_only:
                self._adapter_handles = [self._load_adapter(adapter) for adapter in self.adapters]
        except BaseException:
            self.close()
            raise
        self.recurrent: bool = llama_cpp.llama_model_is_recurrent(
            self.handle
        ) or llama_cpp.llama_model_is_hybrid(self.handle)
        trained = llama_cpp.llama_model_n_ctx_train(self.handle)  # 0 in some files
        self.trained_context: int = trained if trained >= MIN_CONTEXT else DEFAULT_CONTEXT
        self.layers: int = llama_cpp.llama_model_n_layer(self.handle)
        # llama.cpp counts the output as one more layer.
        kept = 0 <= options.gpu_layers <= self.layers
        self.offloaded = library.accelerated() and options.gpu_layers != 0 and not cpu_only
        self.on_device = self.offloaded and not kept
        self.width: int = llama_cpp.llama_model_n_embd(self.handle)
        self.output_width: int = llama_cpp.llama_model_n_embd_out(self.handle)
        self.size: int = llama_cpp.llama_model_size(self.handle)

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the weights, after all contexts of the model."""
        handle, self._handle = self._handle, None
        if handle is None:
            return
        if "vocabulary" in vars(self):
            self.vocabulary.close(lambda: llama_cpp.llama_model_free(handle))
        else:
            llama_cpp.llama_model_free(handle)

    @property
    def handle(self) -> Any:
        return require_open(self._handle)

    @property
    def chat_template(self) -> str | None:
        """The file's jinja2 source."""
        return self._template(None)

    @property
    def tool_template(self) -> str | None:
        """The template for conversations with tools, which may differ."""
        return self._template(b"tool_use") or self.chat_template

    def _template(self, name: bytes | None) -> str | None:
        raw = llama_cpp.llama_model_chat_template(self.handle, name)
        source = raw.decode("utf-8", "replace") if raw else ""
        return source if re.search(r"[^\w.-]", source) else None  # built-in ones are only named

    def _load(self, params: Any, options: ModelOptions, progress: Progress | None) -> Any:
        # In another thread, as an interrupt could be raised in the callback, where ctypes drops it.
        reports: SimpleQueue[float | None] = SimpleQueue()
        raised: list[BaseException] = []

        def report(fraction: float, _user_data: object) -> bool:
            reports.put(fraction)
            return not raised

        params.progress_callback = callback = llama_cpp.llama_progress_callback(report)

        def load() -> Any:
            kernels.take(wanted=options.kernels != "off")
            for mode in (params.load_mode, 2 * options.mlock):  # some shared folders have no mmap
                library.clear_errors()
                params.load_mode = mode
                handle = llama_cpp.llama_model_load_from_file(os.fsencode(self.path), params)
                if handle or not library.first_error().startswith("mmap failed"):
                    break
            return handle

        loaded, thread = start_thread("localspec-load", load)
        loaded.add_done_callback(lambda _: reports.put(None))
        while not (loaded.done() and reports.empty()):
            tell = None if raised else progress
            try:
                if (fraction := reports.get()) is not None and tell is not None:
                    tell(fraction)
            except BaseException as error:
                raised.append(error)
        thread.join()
        del callback  # needed until here
        handle = loaded.result()
        if raised:
            if handle:
                llama_cpp.llama_model_free(handle)
            raise raised[0]
        if handle:
            return handle
        cause = library.first_error()
        if "alloc" in cause:
            raise NativeError(
                f"There is not enough memory for {self.path} ({cause}). Use a smaller "
                "quantization, or offload fewer layers with --gpu-layers."
            )
        raise ModelInvalid(
            f"{self.path} cannot be opened as a model: {cause}. The file may be incomplete "
            "or of a newer format: download it again, or run with -v to see llama.cpp's log."
        )

    def apply_adapters(self, context: Any) -> None:
        count = len(self._adapter_handles)
        if not count:
            return
        handles = (llama_cpp.llama_adapter_lora_p_ctypes * count)(*self._adapter_handles)
        scales = (ctypes.c_float * count)(*(adapter.scale for adapter in self.adapters))
        llama_cpp.llama_set_adapters_lora(context, handles, count, scales)

    def _load_adapter(self, adapter: Adapter) -> Any:
        library.clear_errors()
        found = llama_cpp.llama_adapter_lora_init(self.handle, os.fsencode(adapter.path))
        if not found:
            raise ModelInvalid(
                f"The adapter {adapter.path} cannot be used with {self.path.name}: "
                f"{library.first_error()}. Name the model that it was trained for, or leave the "
                "adapter out."
            )
        return found

    def _read_metadata(self) -> dict[str, str]:
        def text(get: Callable[..., int], index: int) -> str:
            buffer = ctypes.create_string_buffer(get(self.handle, index, None, 0) + 1)
            get(self.handle, index, buffer, len(buffer))
            return buffer.value.decode("utf-8", "replace")

        key, value = (
            llama_cpp.llama_model_meta_key_by_index,
            llama_cpp.llama_model_meta_val_str_by_index,
        )
        count = llama_cpp.llama_model_meta_count(self.handle)
        return {text(key, i): text(value, i) for i in range(count)}


def _may_be_mapped(path: Path) -> bool:
    """Whether weights are at multiples of 32: llama.cpp aborts if it maps others. Slow parsing of
    the vocabulary is avoided."""
    with path.open("rb") as file:
        metadata = file.read(_METADATA)
    # Searching all of it with the expression would take 20 ms.
    return not _ALIGNED_LESS.match(metadata, max(0, metadata.find(b"general.alignment")))

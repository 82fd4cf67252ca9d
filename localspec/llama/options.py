"""Options for opening a target and a draft model."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from localspec.errors import UsageError
from localspec.identity import file_identity
from localspec.paths import expanded
from localspec.typed import convert, convert_fields

KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")
FLASH_ATTENTION = ("auto", "on", "off")
AUTO = "auto"
MIN_CONTEXT, MAX_CONTEXT = 8, 1 << 30
"""llama.cpp counts in 32 bits."""
MAX_THREADS = 512
"""GGML_MAX_N_THREADS."""
KERNELS = ("auto", "off")
CROSS_VOCABULARY = ("auto", "text", "shared", "off")
DEFAULT_CONTEXT = 8192
"""Default context of models trained on longer ones."""
MIN_CHUNK = 64
"""Minimum tokens of a prompt chunk: smaller chunks cost more per token."""
MAX_TREE = 64
"""Maximum tokens of a tree; bounds the rows of logits that llama.cpp reserves."""
MAX_LEAVES = 16
MAX_SNAPSHOT_DRAFT = 8
"""Tokens for which a recurrent memory keeps snapshots, one state each."""
MAX_SERVERS = 16
"""GGML_RPC_MAX_SERVERS of ggml-rpc.h."""
MAX_PARALLEL = 32
"""Maximum concurrent answers. llama.cpp has 256 sequence ids."""
IN_MEMORY = -1
"""For earlier conversations, instead of bytes on disk."""

HEADS = frozenset({"eagle3", "dflash", "gemma4-assistant", "medusa"})
"""Architectures of trained heads, which draft only for the target they were trained for."""

ONE_NEXTN = frozenset(
    """
    bailingmoe3 cohere2moe deepseek2 deepseek32 glm-dsa glm4moe nemotron_h_moe qwen3next qwen35
    qwen35moe
    """.split()
)
"""Architectures with one MTP layer that llama.cpp computes (LLM_GRAPH_TYPE_DECODER_MTP in
src/models of the pinned version); it asserts on more."""
NEXTN_GRAPHS = ONE_NEXTN | {"hy_v3", "mimo2", "step35"}
"""Also those that may have several layers, but not deepseek4, whose states are not one row."""

_SCALED = re.compile(r"(.+\.gguf):([^/\\]*)", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter (GGUF), added to the weights during passes. `scale`: a finite factor."""

    path: Path
    scale: float = 1.0

    def __post_init__(self) -> None:
        convert_fields(self)
        if not math.isfinite(self.scale):
            raise UsageError(
                f"The scale of the adapter {self.path} is {self.scale}. Give a number, such as 0.5."
            )

    @classmethod
    def parse(cls, text: str) -> Adapter:
        """The adapter named by `FILE` or `FILE:SCALE`; a UsageError if it names none."""
        path, colon, scale = text.rpartition(":")
        try:
            number = float(scale if colon else 1)
        except ValueError:
            if scaled := _SCALED.fullmatch(text):
                raise UsageError(
                    f"'{scaled[2]}' is not a scale of the adapter {scaled[1]}. Give a number, such "
                    f"as {scaled[1]}:0.5, or leave out the colon."
                ) from None
            colon, number = "", 1.0
        path = path if colon else text
        if not path.strip():
            raise UsageError(
                f"'{text}' is not an adapter. Give a file, and a scale after a colon if it is not "
                "1, such as style.gguf:0.5."
            )
        return cls(expanded(path), number)


AdapterSource = str | os.PathLike[str] | Adapter


def _adapters(sources: AdapterSource | Iterable[AdapterSource]) -> tuple[Adapter, ...]:
    """One or several adapters; texts are parsed by `Adapter.parse`."""
    several = (sources,) if isinstance(sources, str | os.PathLike | Adapter) else sources
    checked = (convert("lora", source, AdapterSource) for source in several)
    return tuple(
        source if isinstance(source, Adapter) else Adapter.parse(os.fspath(source))
        for source in checked
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """How to open a target and a draft model.

    Attributes:
        context: KV cache size in tokens; 0 for the training length, at most DEFAULT_CONTEXT.
        threads: a count, or "auto": one per fast core, fewer while other processes compute.
        draft_threads: the draft model's count; None for the target's.
        gpu_layers: layers to offload, -1 for all.
        draft_gpu_layers: the same for the draft model; None for the target's.
        flash_attention: "auto", "on" or "off".
        kv_type_k, kv_type_v: one of KV_TYPES. A quantized V needs flash attention.
        kernels: localspec's CPU kernels, "auto" or "off".
        mmap: map the file instead of reading it.
        mlock: keep the weights from being swapped out.
        rpc: `host:port` of RPC servers for the target's layers, also separated by commas.
        lora: LoRA adapters of the target, each `FILE`, `FILE:SCALE` or an `Adapter`.
        lora_draft: the same for a draft model given by name.
        mmproj: projector (GGUF) of a vision model.
        cross_vocabulary: a draft model with another vocabulary drafts by "text", by "shared"
            tokens, by the better of both ("auto"), or is refused ("off").
        batch: tokens of a prompt chunk, and thus the delay in cancelling a prompt.
        prompt_cache: bytes on disk for conversations of 256 tokens or more; 0 for none, -1 for
            at most a quarter of the free memory instead.
        parallel: concurrent answers over one cache of `context` tokens; recurrent models give one.
        parallel_chunk: prompt tokens in a pass with other answers' steps; fewer delay these less.
        exact: answers equal plain decoding's, token for token, also when sampled with a seed. Free
            with localspec's kernels; otherwise it changes the KV types, limits drafts
            (`localspec.loading.batch_invariance`) and gives one answer at a time.

    Raises:
        UsageError: a value is invalid.
    """

    context: int = 0
    threads: int | str = "auto"
    draft_threads: int | None = None
    gpu_layers: int = -1
    draft_gpu_layers: int | None = None
    flash_attention: str = "auto"
    kv_type_k: str = "f16"
    kv_type_v: str = "f16"
    kernels: str = "auto"
    mmap: bool = True
    mlock: bool = False
    rpc: tuple[str, ...] = ()
    lora: AdapterSource | tuple[AdapterSource, ...] = ()
    lora_draft: AdapterSource | tuple[AdapterSource, ...] = ()
    mmproj: str | os.PathLike[str] | None = None
    cross_vocabulary: str = "auto"
    batch: int = 512
    prompt_cache: int = 0
    parallel: int = 1
    parallel_chunk: int = 128
    exact: bool = False

    def __post_init__(self) -> None:
        convert_fields(self)
        object.__setattr__(self, "rpc", _rpc_servers(self.rpc))
        object.__setattr__(self, "lora", _adapters(self.lora))
        object.__setattr__(self, "lora_draft", _adapters(self.lora_draft))
        if self.rpc and self.gpu_layers == 0:
            raise UsageError(
                "gpu-layers is 0, so that no layer would go to the RPC servers. Give -1 for all of "
                "them, or leave out --rpc."
            )
        for name, other, least, most, hint in (
            ("context", 0, MIN_CONTEXT, MAX_CONTEXT, ", or 0 for the model's own length"),
            ("threads", AUTO, 1, MAX_THREADS, f", or {AUTO}"),
            ("draft_threads", None, 1, MAX_THREADS, ""),
            ("gpu_layers", None, -1, math.inf, " (-1: all)"),
            ("draft_gpu_layers", None, -1, math.inf, " (-1: all)"),
            ("batch", None, 128, math.inf, " tokens of a prompt chunk"),
            ("prompt_cache", None, -1, math.inf, " (0: nothing, -1: in memory)"),
            ("parallel", None, 1, MAX_PARALLEL, " (1: one answer at a time)"),
            ("parallel_chunk", None, MIN_CHUNK, self.batch, ", the tokens of a whole prompt chunk"),
        ):
            value = getattr(self, name)
            if value != other and not (isinstance(value, int) and least <= value <= most):
                end = "or more" if most == math.inf else f"to {most}"
                shown = f"{name.replace('_', '-')} is {value!r}"
                raise UsageError(f"{shown}. Give {least} {end}{hint}.")
        for name, known in (
            ("flash_attention", FLASH_ATTENTION),
            ("kernels", KERNELS),
            ("cross_vocabulary", CROSS_VOCABULARY),
            ("kv_type_k", KV_TYPES),
            ("kv_type_v", KV_TYPES),
        ):
            value = getattr(self, name)
            if not isinstance(value, str) or value not in known:
                shown = f"{name.replace('_', '-')} is '{value}'"
                raise UsageError(f"{shown}. Choose one of {', '.join(known)}.")
        if self.exact:
            if self.flash_attention == "off":
                raise UsageError(
                    "exact needs flash attention: without it, sums run over more numbers in larger "
                    "passes. Leave --flash-attention out."
                )
            object.__setattr__(self, "flash_attention", "on")
        if self.kv_type_v.startswith("q") and self.flash_attention == "off":
            raise UsageError(
                f"A {self.kv_type_v} V cache needs flash attention. Leave --flash-attention on."
            )

    @property
    def fixed_threads(self) -> int | None:
        """The count, None for "auto"."""
        return self.threads if isinstance(self.threads, int) else None

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        """`lora`, parsed."""
        return cast("tuple[Adapter, ...]", self.lora)

    @property
    def draft_adapters(self) -> tuple[Adapter, ...]:
        """`lora_draft`, parsed."""
        return cast("tuple[Adapter, ...]", self.lora_draft)

    def context_for(self, trained: int) -> int:
        """Length of the context, in tokens, for a model trained on `trained` tokens."""
        return self.context or min(trained, DEFAULT_CONTEXT)

    def for_draft(self, context: int) -> ModelOptions:
        """The options of the draft model, with a cache of `context` tokens."""
        return replace(
            self,
            context=context,
            threads=self.draft_threads or self.threads,
            rpc=(),
            lora=self.lora_draft,
            lora_draft=(),
            mmproj=None,
            exact=False,  # drafts do not affect the answer
            gpu_layers=self.gpu_layers if self.draft_gpu_layers is None else self.draft_gpu_layers,
        )


def _rpc_servers(servers: str | Sequence[str]) -> tuple[str, ...]:
    """Addresses of RPC servers, split at commas. A UsageError for one that is not `host:port`."""
    texts = (servers,) if isinstance(servers, str) else map(str, servers)
    addresses = [part.strip() for text in texts for part in text.split(",")]
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or ":" in host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise UsageError(
                f"'{address}' is not an address of an RPC server. Give HOST:PORT, such as "
                "192.168.1.20:50052."
            )
    if len(addresses) > MAX_SERVERS:
        raise UsageError(
            f"There are {len(addresses)} RPC servers. llama.cpp accepts at most {MAX_SERVERS}."
        )
    return tuple(dict.fromkeys(addresses))


def thread_count(text: str) -> int | str:
    """A number of threads as typed; ModelOptions validates it."""
    # int() raises for thousands of digits.
    text = "auto" if text.strip() == "-1" else text.strip()  # llama.cpp writes "auto" as -1
    return int(text) if text.lstrip("-").isdecimal() and len(text) < 100 else text


def identity_with_adapters(path: Path, adapted: Sequence[Adapter]) -> dict[str, Any]:
    """Identity of a model with its adapters and their scales. OSError if a file is missing."""
    known = file_identity(path)
    if adapted:
        known["lora"] = [
            file_identity(adapter.path) | {"scale": adapter.scale} for adapter in adapted
        ]
    return known

"""Options for the model, the draft model, and how they run."""

from __future__ import annotations

from pathlib import Path

from localspec import ModelOptions
from localspec.cli.options import default, in_panel
from localspec.llama.options import CROSS_VOCABULARY, FLASH_ATTENTION, KERNELS, KV_TYPES

_model = in_panel("Model")
_draft = in_panel("Draft model")

MODEL = {
    "model": _model(
        str,
        "-m --model",
        "REF",
        "Open this model: a GGUF file, user/repo[:quant] of Hugging Face, a name from "
        "'localspec models', or 'demo', the built-in story model. Default: smollm2 if it is "
        "installed, else demo. (LOCALSPEC_MODEL)",
    ),
    "offline": _model(
        bool, "--offline", "", "Use only files on this machine. (HF_HUB_OFFLINE)", advanced=True
    ),
    "ctx": _model(
        int,
        "-c --ctx",
        "N",
        "Set the context length in tokens, for prompt and answer together; 0 takes the "
        f"model's own, at most 8192. {default(ModelOptions, 'context')} (LOCALSPEC_CTX)",
    ),
    "threads": _model(
        str,
        "-t --threads",
        "N|auto",
        "Use N threads; auto takes one per physical core, and fewer while other programs "
        f"compute. {default(ModelOptions, 'threads')} (LOCALSPEC_THREADS)",
    ),
    "gpu_layers": _model(
        int,
        "--gpu-layers",
        "N",
        "Put N layers on the GPU; -1 puts all. "
        f"{default(ModelOptions, 'gpu_layers')} (LOCALSPEC_GPU_LAYERS)",
        advanced=True,
    ),
    "flash_attention": _model(
        str,
        "--flash-attention",
        "WHEN",
        "Use flash attention: "
        f"{', '.join(FLASH_ATTENTION)}. {default(ModelOptions, 'flash_attention')}",
        advanced=True,
    ),
    "kv_type": _model(
        str,
        "--kv-type",
        "TYPE",
        f"Set the element type of the KV cache: {', '.join(KV_TYPES)}. "
        f"{default(ModelOptions, 'kv_type_k')} (LOCALSPEC_KV_TYPE)",
        advanced=True,
    ),
    "kernels": _model(
        str,
        "--kernels",
        "WHEN",
        f"Use localspec's CPU kernels: {', '.join(KERNELS)}. "
        f"{default(ModelOptions, 'kernels')} (LOCALSPEC_KERNELS)",
        advanced=True,
    ),
    "exact": _model(
        bool,
        "--exact",
        "",
        "Give the same answer as plain decoding, token for token. May be slower (docs/verify.md).",
    ),
    "mmap": _model(
        bool,
        "--mmap/--no-mmap",
        "",
        "Map the file into memory, or read it. Default --mmap.",
        advanced=True,
    ),
    "mlock": _model(bool, "--mlock", "", "Keep the weights from being swapped out.", advanced=True),
    "rpc": _model(
        list[str],
        "--rpc",
        "HOST:PORT,…",
        "Compute the model's layers on llama.cpp RPC servers. The draft model stays here. "
        "Repeatable.",
        advanced=True,
    ),
    "lora": _model(
        list[str],
        "--lora",
        "FILE[:SCALE]",
        "Apply a LoRA adapter (GGUF) to the model. Default scale 1. Repeatable.",
        advanced=True,
    ),
}

PROJECTOR = {
    "mmproj": _model(
        Path, "--mmproj", "FILE", "Load the projector (GGUF) of a vision model.", advanced=True
    ),
}

DRAFT_MODEL = {
    "draft": _draft(
        str,
        "-d --draft",
        "REF|auto|self|none",
        "Draft with this model: a reference as for --model, auto (the best one on this "
        "machine), self (made from the model's own file), or none. Default auto. "
        "(LOCALSPEC_DRAFT)",
    ),
    "draft_threads": _draft(
        int,
        "--draft-threads",
        "N",
        "Use N threads for the draft model. Default: as for the model.",
        advanced=True,
    ),
    "draft_gpu_layers": _draft(
        int,
        "--draft-gpu-layers",
        "N",
        "Put N layers of the draft model on the GPU; -1 puts all. Default: as for the model.",
        advanced=True,
    ),
    "lora_draft": _draft(
        list[str],
        "--lora-draft",
        "FILE[:SCALE]",
        "Apply a LoRA adapter to the draft model of -d. Repeatable.",
        advanced=True,
    ),
    "cross_vocabulary": _draft(
        str,
        "--cross-vocabulary",
        "WAY",
        "Choose how to use a draft model with another vocabulary: through text, on shared "
        f"tokens, the better of both, or not at all: {', '.join(CROSS_VOCABULARY)}. "
        f"{default(ModelOptions, 'cross_vocabulary')}",
        advanced=True,
    ),
}

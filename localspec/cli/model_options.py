"""Options that say what to open: model and draft model, and where and how they run."""

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
        "-m",
        "--model",
        metavar="REF",
        help="The model: path of a GGUF file, user/repo[:quant] of Hugging Face once it is pulled, "
        "a name that 'localspec models' lists, or 'demo'. Default the embedded model. "
        "(LOCALSPEC_MODEL)",
    ),
    "offline": _model(
        bool,
        "--offline",
        help="Use what is on this machine, and say what is missing. (HF_HUB_OFFLINE)",
    ),
    "ctx": _model(
        int,
        "-c",
        "--ctx",
        metavar="N",
        help="Tokens that prompt and answer have together, 0 for what the model was trained on, "
        f"at most 8192. {default(ModelOptions, 'context')} (LOCALSPEC_CTX)",
    ),
    "threads": _model(
        str,
        "-t",
        "--threads",
        metavar="N|auto",
        help="Threads, or 'auto' for as many as are fastest at present: one per physical core, "
        f"fewer while other programs need them. {default(ModelOptions, 'threads')} "
        "(LOCALSPEC_THREADS)",
    ),
    "gpu_layers": _model(
        int,
        "--gpu-layers",
        metavar="N",
        help="Layers to offload, -1 for all. "
        f"{default(ModelOptions, 'gpu_layers')} (LOCALSPEC_GPU_LAYERS)",
    ),
    "flash_attention": _model(
        str,
        "--flash-attention",
        metavar="WHEN",
        help=f"{', '.join(FLASH_ATTENTION)}. {default(ModelOptions, 'flash_attention')}",
    ),
    "kv_type": _model(
        str,
        "--kv-type",
        metavar="TYPE",
        help=f"Element type of the KV cache: {', '.join(KV_TYPES)}. "
        f"{default(ModelOptions, 'kv_type_k')} (LOCALSPEC_KV_TYPE)",
    ),
    "kernels": _model(
        str,
        "--kernels",
        metavar="WHEN",
        help=f"localspec's own CPU kernels: {', '.join(KERNELS)}. "
        f"{default(ModelOptions, 'kernels')} (LOCALSPEC_KERNELS)",
    ),
    "exact": _model(
        bool,
        "--exact",
        help="Answers are those of plain decoding with the same options, token for token, and with "
        "the same seed also where they are sampled. See docs/verify.md.",
    ),
    "mmap": _model(bool, "--mmap/--no-mmap", help="Map the file, or read it. Default --mmap."),
    "mlock": _model(bool, "--mlock", help="Keep the weights from being swapped out."),
    "rpc": _model(
        list[str],
        "--rpc",
        metavar="HOST:PORT,…",
        help="Have llama.cpp RPC servers compute the layers of the model, not of its draft model. "
        "Repeatable.",
    ),
    "lora": _model(
        list[str],
        "--lora",
        metavar="FILE[:SCALE]",
        help="A LoRA adapter of the model (GGUF), and how much of it is added. Default 1. "
        "Repeatable.",
    ),
}
"""The model, and where and how it runs."""

PROJECTOR = {
    "mmproj": _model(
        Path,
        "--mmproj",
        metavar="FILE",
        help="The projector (GGUF) through which the model sees images.",
    ),
}
"""For verbs that show it some."""

DRAFT_MODEL = {
    "draft": _draft(
        str,
        "-d",
        "--draft",
        metavar="REF|auto|self|none",
        help="The draft model: a reference as for --model, best with its vocabulary, 'auto' for "
        "the local one that promises most, 'self' for one made of the model's own file, or 'none'. "
        "Default auto. (LOCALSPEC_DRAFT)",
    ),
    "draft_threads": _draft(
        int,
        "--draft-threads",
        metavar="N",
        help="Threads of the draft model. Default as many as the model's.",
    ),
    "draft_gpu_layers": _draft(
        int,
        "--draft-gpu-layers",
        metavar="N",
        help="Layers of the draft model to offload, -1 for all. Default as for the model.",
    ),
    "lora_draft": _draft(
        list[str],
        "--lora-draft",
        metavar="FILE[:SCALE]",
        help="A LoRA adapter of the draft model that -d names; it has none of the model's. "
        "Repeatable.",
    ),
    "cross_vocabulary": _draft(
        str,
        "--cross-vocabulary",
        metavar="WAY",
        help="What to do with a draft model that has another vocabulary: draft through text, on "
        f"the shared tokens, the better of the two, or refuse it: {', '.join(CROSS_VOCABULARY)}. "
        f"{default(ModelOptions, 'cross_vocabulary')}",
    ),
}
"""The draft model, where it differs from the model."""

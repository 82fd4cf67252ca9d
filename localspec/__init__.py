"""localspec: local language models, faster, saying exactly the same.

import localspec

with localspec.load() as engine:
    for chunk in engine.stream([{"role": "user", "content": "Tell me a story."}]):
        print(chunk.text, end="", flush=True)
"""

import logging

from localspec.decoding.sampling import SamplingParams
from localspec.decoding.stats import DrafterStats, GenerationStats
from localspec.drafting import Drafting
from localspec.engine import Engine, load
from localspec.errors import (
    Cancelled,
    ContextOverflow,
    DraftMismatch,
    EngineBusy,
    LocalspecError,
    ModelInvalid,
    ModelNotFound,
    NativeError,
    UsageError,
)
from localspec.llama.options import ModelOptions
from localspec.stream import Chunk, Completion, Stream

__version__ = "0.1.0"

__all__ = [
    "Cancelled",
    "Chunk",
    "Completion",
    "ContextOverflow",
    "DraftMismatch",
    "DrafterStats",
    "Drafting",
    "Engine",
    "EngineBusy",
    "GenerationStats",
    "LocalspecError",
    "ModelInvalid",
    "ModelNotFound",
    "ModelOptions",
    "NativeError",
    "SamplingParams",
    "Stream",
    "UsageError",
    "load",
]

logging.getLogger("localspec").addHandler(logging.NullHandler())

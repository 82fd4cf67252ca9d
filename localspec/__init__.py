"""localspec: local language models, faster, saying exactly the same.

import localspec

with localspec.load() as engine:
    for chunk in engine.stream([{"role": "user", "content": "Tell me a story."}]):
        print(chunk.text, end="", flush=True)
"""

import logging
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from localspec.async_engine import AsyncEngine, load_async
    from localspec.async_stream import AsyncStream
    from localspec.decoding.params import SamplingParams
    from localspec.decoding.session import ContextShift
    from localspec.decoding.stats import DrafterStats, GenerationStats
    from localspec.drafters.options import Drafting
    from localspec.engine import Engine
    from localspec.errors import (
        Cancelled,
        ContextOverflow,
        DraftMismatch,
        EngineBusy,
        LocalspecError,
        ModelInvalid,
        ModelNotFound,
        NativeError,
        ServerUnreachable,
        SessionError,
        UsageError,
    )
    from localspec.llama.options import ModelOptions
    from localspec.loading.load import load
    from localspec.sessions.sessions import OpenedSession
    from localspec.stream import Chunk, Completion, Stream

__version__ = "0.1.0"

__all__ = [
    "AsyncEngine",
    "AsyncStream",
    "Cancelled",
    "Chunk",
    "Completion",
    "ContextOverflow",
    "ContextShift",
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
    "OpenedSession",
    "SamplingParams",
    "ServerUnreachable",
    "SessionError",
    "Stream",
    "UsageError",
    "load",
    "load_async",
]

logging.getLogger("localspec").addHandler(logging.NullHandler())

# Imported when first asked for: numpy and jinja2 take longer than all of `localspec --help`.
_HOMES = {
    "localspec.async_engine": ("AsyncEngine", "load_async"),
    "localspec.async_stream": ("AsyncStream",),
    "localspec.decoding.params": ("SamplingParams",),
    "localspec.decoding.session": ("ContextShift",),
    "localspec.decoding.stats": (
        "DrafterStats",
        "GenerationStats",
    ),
    "localspec.drafters.options": ("Drafting",),
    "localspec.engine": ("Engine",),
    "localspec.errors": (
        "Cancelled",
        "ContextOverflow",
        "DraftMismatch",
        "EngineBusy",
        "LocalspecError",
        "ModelInvalid",
        "ModelNotFound",
        "NativeError",
        "ServerUnreachable",
        "SessionError",
        "UsageError",
    ),
    "localspec.llama.options": ("ModelOptions",),
    "localspec.loading.load": ("load",),
    "localspec.sessions.sessions": ("OpenedSession",),
    "localspec.stream": (
        "Chunk",
        "Completion",
        "Stream",
    ),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'localspec' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_HOME[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

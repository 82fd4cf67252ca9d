"""localspec: local language models, faster, with the same output.

import localspec

with localspec.load() as engine:
    for chunk in engine.stream([{"role": "user", "content": "Tell me a story."}]):
        print(chunk.text, end="", flush=True)
"""

from importlib import import_module

TYPE_CHECKING = False  # as in typing, whose import would take a third of this one
if TYPE_CHECKING:
    from localspec.async_engine import AsyncEngine as AsyncEngine
    from localspec.async_engine import AsyncStream as AsyncStream
    from localspec.async_loading import load_async as load_async
    from localspec.decoding.params import SamplingParams as SamplingParams
    from localspec.decoding.session import ContextShift as ContextShift
    from localspec.decoding.stats import DrafterStats as DrafterStats
    from localspec.decoding.stats import GenerationStats as GenerationStats
    from localspec.drafters.options import Drafting as Drafting
    from localspec.engine import Engine as Engine
    from localspec.errors import Cancelled as Cancelled
    from localspec.errors import ContextOverflow as ContextOverflow
    from localspec.errors import DraftMismatch as DraftMismatch
    from localspec.errors import EngineBusy as EngineBusy
    from localspec.errors import LocalspecError as LocalspecError
    from localspec.errors import ModelInvalid as ModelInvalid
    from localspec.errors import ModelNotFound as ModelNotFound
    from localspec.errors import NativeError as NativeError
    from localspec.errors import ServerUnreachable as ServerUnreachable
    from localspec.errors import SessionError as SessionError
    from localspec.errors import UsageError as UsageError
    from localspec.llama.options import ModelOptions as ModelOptions
    from localspec.loading.load import load as load
    from localspec.sessions.sessions import OpenedSession as OpenedSession
    from localspec.stream import Chunk as Chunk
    from localspec.stream import Completion as Completion
    from localspec.stream import Stream as Stream

__version__ = "0.1.0"

# Imported when first asked for: numpy and jinja2 take longer than all of `localspec --help`.
_NAMES = {
    "async_engine": "AsyncEngine AsyncStream",
    "async_loading": "load_async",
    "decoding.params": "SamplingParams",
    "decoding.session": "ContextShift",
    "decoding.stats": "DrafterStats GenerationStats",
    "drafters.options": "Drafting",
    "engine": "Engine",
    "errors": "Cancelled ContextOverflow DraftMismatch EngineBusy LocalspecError ModelInvalid "
    "ModelNotFound NativeError ServerUnreachable SessionError UsageError",
    "llama.options": "ModelOptions",
    "loading.load": "load",
    "sessions.sessions": "OpenedSession",
    "stream": "Chunk Completion Stream",
}
_HOME = {name: f"localspec.{at}" for at, names in _NAMES.items() for name in names.split()}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'localspec' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_HOME[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

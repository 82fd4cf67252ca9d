"""A second engine, or an embedder, with the weights of an open engine."""

from contextlib import ExitStack, closing, suppress
from dataclasses import replace

from localspec.cgroups import available_memory
from localspec.drafters.options import Drafting
from localspec.engine import Engine
from localspec.errors import LocalspecError, NativeError
from localspec.gguf.reader import read_gguf
from localspec.llama import library
from localspec.llama.embeddings import MAX_LENGTH, Embedder
from localspec.llama.kernels_file import OFF
from localspec.llama.model import Progress
from localspec.llama.options import ModelOptions
from localspec.llama.threads import thread_choice
from localspec.llama.time_ratio import time_ratio
from localspec.loading.caches import cost_identity, open_context
from localspec.loading.load import load
from localspec.pairing.memory import MemoryNeed, place
from localspec.policy.store import ProfileStore
from localspec.scheduling.slots import Slots
from localspec.text import gigabytes

_IMPLAUSIBLE = 6.0
"""For a plain pass, no kernel here is this many times as fast as stock llama.cpp's."""


def load_second_engine(engine: Engine, options: ModelOptions) -> Engine:
    """Open a second engine for plain decoding, with the same options. Close it before the first.

    If the first uses localspec's kernels, it opens the file again with stock llama.cpp. Otherwise,
    or without enough memory for that (see `notices`), it shares the weights. Raises NativeError if
    there is no memory for another cache.
    """
    notices: tuple[str, ...] = ()
    if _can_measure_stock(engine, options):
        try:
            stock = _stock(engine, options)
            plain = Drafting(drafter="none")
            return load(engine.model.path, draft=None, options=stock, drafting=plain, offline=True)
        except NativeError as error:
            notices = (f"Plain decoding also uses localspec's kernels: {error}",)
    if not options.rpc:  # servers report their memory when the cache is made
        _require_room(engine, options)
    with ExitStack() as opened:
        context = opened.enter_context(closing(open_context(engine.model, options)))
        beside = Engine(
            Slots(context),
            store=ProfileStore(cost_identity([context.model], options)),
            threads=thread_choice(options, engine.model),
            drafting=Drafting(drafter="none"),
            wait=True,
            why_no_draft="it decodes plainly",
            notices=notices,
            owns_models=False,
        )
        opened.pop_all()
    return beside


def measure_stock(
    engine: Engine,
    options: ModelOptions,
    *,
    again: bool = True,
    progress: Progress | None = None,
) -> None:
    """Measure how much slower stock llama.cpp decodes plainly, for `PairProfile.stock`; `again`:
    even if that is known; `progress`: may raise a LocalspecError to stop.

    Does nothing without the kernels, or without room. On a busy machine llama.cpp's threads may
    wait very long for each other; results beyond _IMPLAUSIBLE are not kept.
    """
    known = 0.0 < (engine.profile.stock or 0.0) < _IMPLAUSIBLE
    if (again or not known) and _can_measure_stock(engine, options):
        with suppress(LocalspecError):
            stock = _stock(engine, options)
            found = time_ratio(engine.model, engine.model.path, stock, progress)
            engine.profile.stock = found if found < _IMPLAUSIBLE else None


def _can_measure_stock(engine: Engine, options: ModelOptions) -> bool:
    return engine.model.kernels.in_use and not options.rpc and not engine.model.offloaded


def _stock(engine: Engine, options: ModelOptions) -> ModelOptions:
    """Options for the weights without localspec's kernels. Raises NativeError without memory."""
    stock = replace(
        options, kernels=OFF, exact=False, parallel=1, lora_draft=(), context=engine.context_length
    )
    _require_memory("a second copy of the weights", _need(engine, stock).total)
    return stock


def open_embedder(engine: Engine, options: ModelOptions) -> Embedder:
    """Open an embedder with the weights of an open engine and a separate cache. Close it before the
    engine. Raises NativeError without memory, or if llama.cpp does not provide this architecture's
    last layer, and ServerUnreachable if an RPC server does not answer."""
    context = min(options.context or MAX_LENGTH, engine.model.trained_context, MAX_LENGTH)
    return Embedder(open_context(engine.model, replace(options, context=context, parallel=1)))


def _require_room(engine: Engine, options: ModelOptions) -> None:
    """Raise NativeError if main memory is too small for another cache: the system overcommits
    memory and would kill the process."""
    if options.gpu_layers != 0 and library.accelerated():
        return  # llama.cpp itself refuses a cache that a device cannot hold
    # Adapters and projectors are open, and serve both caches.
    need = _need(engine, replace(options, lora=(), mmproj=None, context=engine.context_length))
    _require_memory(
        f"A second cache of {engine.context_length} tokens",
        need.kv + need.compute,
        " Set a shorter context with --ctx, or a smaller --kv-type.",
    )


def _require_memory(what: str, need: int, advice: str = "") -> None:
    free = available_memory()[0]
    if need > free:
        raise NativeError(
            f"{what} takes {gigabytes(need)}, and {gigabytes(free)} of memory are free.{advice}"
        )


def _need(engine: Engine, options: ModelOptions) -> MemoryNeed:
    """The target's need of main memory."""
    return place(read_gguf(engine.model.path), options, 0).host

"""Further caches over the weights of an engine that is open."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import replace
from typing import TYPE_CHECKING

from localspec.drafters.options import Drafting
from localspec.engine import Engine
from localspec.errors import LocalspecError, NativeError
from localspec.llama.options import ModelOptions
from localspec.loading.cost_identity import cost_identity
from localspec.loading.places import open_context
from localspec.loading.thread_choice import thread_choice
from localspec.planning.other_processes import OtherProcesses
from localspec.planning.profile_store import ProfileStore
from localspec.text import gibibytes

if TYPE_CHECKING:
    from localspec.llama.embeddings import Embedder


def load_beside(engine: Engine, options: ModelOptions) -> Engine:
    """A second engine on the weights of an open one, with a KV cache of its own and no draft model,
    for plain decoding beside it. Close it before that one.

    Args:
        engine: an open engine.
        options: those that it was opened with.

    Raises:
        NativeError: there is no memory for another cache.
    """
    if not options.rpc:  # a server's memory is asked for when the cache is made
        _require_room(engine, options)
    controller, fixed_threads = thread_choice(options, engine.model, OtherProcesses())
    with ExitStack() as opened:
        context = opened.enter_context(closing(open_context(engine.model, options)))
        beside = Engine(
            context,
            None,
            draft_path=None,
            vocabulary_map=None,
            cross_vocabulary=options.cross_vocabulary,
            store=ProfileStore(cost_identity([context.model], options)),
            threads=controller,
            fixed_threads=fixed_threads,
            side_by_side=False,
            drafting=Drafting(drafter="none"),
            wait=True,
            why_no_draft="it decodes plainly",
            owns_models=False,
        )
        opened.pop_all()
    return beside


def embedder_beside(engine: Engine, options: ModelOptions) -> Embedder:
    """What makes vectors of texts with the weights of an open engine, in a cache of its own. Close
    it before that one.

    Args:
        engine: an open engine.
        options: those that it was opened with.

    Raises:
        NativeError: there is no memory for another cache, or llama.cpp does not give out the last
            layer of this architecture.
        ServerUnreachable: an RPC server does not answer.
    """
    from localspec.llama.embeddings import LONGEST, Embedder

    context = min(options.context or LONGEST, engine.model.trained_context, LONGEST)
    return Embedder(open_context(engine.model, replace(options, context=context, parallel=1)))


def _require_room(engine: Engine, options: ModelOptions) -> None:
    """Return unless main memory is too short for another cache: the system would end the process,
    as memory is promised before it is there."""
    from localspec.gguf.reader import read_gguf
    from localspec.llama import library
    from localspec.pairing.memory import Use, place
    from localspec.pairing.pair_memory import available

    if options.gpu_layers != 0 and library.accelerated():
        return  # llama.cpp refuses by itself what a device cannot hold
    try:
        file = read_gguf(engine.model.path)
    except LocalspecError:
        return  # the reader knows less than llama.cpp, which has opened it
    alone = replace(options, lora=(), mmproj=None)  # those are open, and serve both caches
    need = place(file, Use.of(alone, context=engine.context_length), 0).host
    wanted, free = need.kv + need.compute, available()[0]
    if wanted > free:
        raise NativeError(
            f"A second cache of {engine.context_length} tokens takes {gibibytes(wanted)}, and "
            f"{gibibytes(free)} of memory are free. Ask for a shorter context with --ctx, or a "
            "smaller --kv-type."
        )

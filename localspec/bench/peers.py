"""Other programs beside localspec: which of them take part, opened on a pair's files."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from localspec import Engine, ModelOptions
from localspec.bench.bound import prompt_tokens
from localspec.bench.samples import Arm

if TYPE_CHECKING:
    from localspec.bench.server_configurations import ServerConfiguration


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """Whom to measure beside localspec.

    Attributes:
        llama_server: the program; None leaves it out.
        configurations: names of the ways it runs, None for all that the pair allows.
        python: llama-cpp-python's `Llama`, plain and with prompt lookup.
        ik_python: the Python of an environment with ik_llama-cpp-python; None leaves it out.
    """

    llama_server: Path | None = None
    configurations: tuple[str, ...] | None = None
    python: bool = True
    ik_python: Path | None = None


def open_peers(
    engine: Engine, peers: Peers | None, options: ModelOptions, stack: ExitStack
) -> tuple[list[Arm], dict[str, str]]:
    """The other programs, on the same files; and those that cannot take part, with the reasons.

    Args:
        engine: the open pair, whose files they read.
        peers: whom to open; None for nobody.
        options: the engine's.
        stack: closes them.
    """
    if peers is None:
        return [], {}
    from localspec.bench.peers_ik import IkLlama
    from localspec.bench.peers_python import (
        LOOKUPS,
        PythonLlama,
        Transformers,
        why_no_transformers,
    )
    from localspec.bench.peers_server import LlamaServer
    from localspec.bench.server_configurations import server_configurations
    from localspec.llama.kernels import weight_buffers_work
    from localspec.llama.library import default_threads

    target = engine.model.path
    draft = engine.draft_path
    threads = options.fixed_threads or default_threads()
    context, layers = engine.context_length, options.gpu_layers

    def tokenize(text: str) -> list[int]:
        return prompt_tokens(engine, text)

    def python(lookup: int | None) -> Arm:
        return PythonLlama(
            target,
            tokenize=tokenize,
            threads=threads,
            context=context,
            gpu_layers=layers,
            lookup=lookup,
        )

    def transformers(assistant: Path | None) -> Arm:
        return Transformers(
            target,
            assistant,
            tokenize=tokenize,
            ends=engine.model.vocabulary.ends,
            threads=threads,
        )

    def server(binary: Path, configuration: ServerConfiguration) -> Arm:
        return LlamaServer(
            binary,
            target,
            draft,
            configuration,
            tokenize=tokenize,
            threads=threads,
            context=context,
            gpu_layers=layers,
            weight_buffers=weight_buffers_work(),
            # A peer sees each prompt once at each temperature, so what it remembers of other
            # prompts is what its users get.
            fresh=False,
        )

    refused: dict[str, str] = {}
    openings: dict[str, Callable[[], Arm]] = {
        f"llama-cpp-python, lookup {lookup}": partial(python, lookup)
        for lookup in (LOOKUPS if peers.python else ())
    }
    why_not = why_no_transformers(target) if peers.python else None
    if peers.python and why_not is None:
        openings["transformers plain"] = partial(transformers, None)
        if draft is not None:
            openings["transformers assisted"] = partial(transformers, draft)
    elif why_not is not None:
        refused["transformers"] = why_not
    if peers.ik_python is not None:
        openings["ik_llama-cpp-python"] = partial(
            IkLlama,
            peers.ik_python,
            target,
            tokenize=tokenize,
            piece=engine.model.vocabulary.piece,
            threads=threads,
            context=context,
        )
    if peers.llama_server is not None:
        for configuration in server_configurations(peers.configurations):
            # Named or not: without a draft model there is nothing it could do.
            if draft is not None or not configuration.needs_draft:
                openings[f"llama-server {configuration.name}"] = partial(
                    server, peers.llama_server, configuration
                )
    arms: list[Arm] = []
    for name, opening in openings.items():
        arm = _opened(name, opening, refused)
        if arm is not None:
            stack.callback(_close, arm)
            arms.append(arm)
    return arms, refused


def _opened(name: str, opening: Callable[[], Arm], refused: dict[str, str]) -> Arm | None:
    # A peer that does not work is told about; what was asked for is localspec's figures.
    try:
        return opening()
    except Exception as error:
        refused[name] = str(error) or type(error).__name__
        return None


def _close(arm: Arm) -> None:
    # One that does not end in order must not take the report with it.
    with suppress(Exception):
        arm.close()

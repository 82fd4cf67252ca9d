"""llama-server on a pair's files, plain and with its ways to draft."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from localspec import Engine, ModelOptions
from localspec.bench.prompt_texts import prompt_tokens
from localspec.bench.samples import Arm


@dataclass(frozen=True, slots=True)
class Peers:
    """The program to measure beside localspec, and names of ways to run it.

    None takes all ways that the pair allows.
    """

    llama_server: Path
    configurations: tuple[str, ...] | None = None


def open_peers(
    engine: Engine, peers: Peers | None, options: ModelOptions, stack: ExitStack
) -> tuple[list[Arm], dict[str, str]]:
    """Peers on the engine's files, closed by `stack`; and why others cannot take part, by name."""
    if peers is None:
        return [], {}
    from localspec.bench.llama_server import LlamaServer
    from localspec.bench.server_configurations import server_configurations
    from localspec.llama.kernels import weight_buffers_work
    from localspec.llama.library import default_threads

    draft = engine.draft_path
    openings: dict[str, Callable[[], Arm]] = {
        f"llama-server {configuration.name}": partial(
            LlamaServer,
            peers.llama_server,
            engine.model.path,
            draft,
            configuration,
            tokenize=partial(prompt_tokens, engine),
            threads=options.fixed_threads or default_threads(),
            context=engine.context_length,
            gpu_layers=options.gpu_layers,
            weight_buffers=weight_buffers_work(),
        )
        for configuration in server_configurations(peers.configurations)
        # Named or not: without a draft model there is nothing it could do.
        if draft is not None or not configuration.needs_draft
    }
    refused: dict[str, str] = {}

    def opened(name: str) -> Iterator[Arm]:
        # A peer that does not work is reported; what was asked for is localspec's figures.
        try:
            arm = openings[name]()
        except Exception as error:
            refused[name] = str(error) or type(error).__name__
            return
        stack.callback(_close, arm)
        yield arm

    return [arm for name in openings for arm in opened(name)], refused


def _close(arm: Arm) -> None:
    # One that does not end in order must not take the report with it.
    with suppress(Exception):
        arm.close()

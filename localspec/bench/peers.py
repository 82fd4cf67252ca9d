"""Other programs, opened on a pair's files."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from localspec import Engine, ModelOptions
from localspec.bench.prompt_texts import prompt_tokens
from localspec.bench.samples import Arm


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """Whom to measure beside localspec; None leaves one out. `configurations`: names of ways to run
    llama-server, None for all that the pair allows; `python`: llama-cpp-python's `Llama`, plain and
    with prompt lookup; `ik_python`: the Python of an environment with ik_llama-cpp-python."""

    llama_server: Path | None = None
    configurations: tuple[str, ...] | None = None
    python: bool = True
    ik_python: Path | None = None


def open_peers(
    engine: Engine, peers: Peers | None, options: ModelOptions, stack: ExitStack
) -> tuple[list[Arm], dict[str, str]]:
    """Peers on the engine's files, closed by `stack`; and why others cannot take part, by name."""
    if peers is None:
        return [], {}
    from localspec.bench.llama_server import LlamaServer, server_configurations
    from localspec.bench.peers_ik import IkLlama
    from localspec.bench.peers_python import LOOKUPS, PythonLlama
    from localspec.llama.kernels import weight_buffers_work
    from localspec.llama.library import default_threads

    target, draft = engine.model.path, engine.draft_path
    common: dict[str, Any] = {
        "tokenize": partial(prompt_tokens, engine),
        "threads": options.fixed_threads or default_threads(),
        "context": engine.context_length,
    }
    layers: dict[str, Any] = {"gpu_layers": options.gpu_layers}
    openings: dict[str, Callable[[], Arm]] = {}
    for lookup in LOOKUPS if peers.python else ():
        name = f"llama-cpp-python, lookup {lookup}"
        openings[name] = partial(PythonLlama, target, lookup=lookup, **common, **layers)
    if peers.ik_python is not None:
        openings["ik_llama-cpp-python"] = partial(
            IkLlama, peers.ik_python, target, piece=engine.model.vocabulary.piece, **common
        )
    if peers.llama_server is not None:
        for configuration in server_configurations(peers.configurations):
            # Named or not: without a draft model there is nothing it could do.
            if draft is not None or not configuration.needs_draft:
                openings[f"llama-server {configuration.name}"] = partial(
                    LlamaServer,
                    peers.llama_server,
                    target,
                    draft,
                    configuration,
                    weight_buffers=weight_buffers_work(),
                    **common,
                    **layers,
                )
    arms: list[Arm] = []
    refused: dict[str, str] = {}
    for name, opening in openings.items():
        try:
            arms.append(opening())
        except Exception as error:  # noqa: PERF203
            # It is reported; what was asked for is localspec's figures.
            refused[name] = str(error) or type(error).__name__
        else:
            stack.callback(_close, arms[-1])
    return arms, refused


def _close(arm: Arm) -> None:
    # One that does not end in order must not take the report with it.
    with suppress(Exception):
        arm.close()

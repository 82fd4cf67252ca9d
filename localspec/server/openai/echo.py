"""`echo` of `/v1/completions`: the prompt before the answer, and what the model thought of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from localspec import Engine, GenerationStats
from localspec.decoding.logprobs import TokenLogprob
from localspec.prompting.content import plain
from localspec.prompting.prompt import Tokens
from localspec.server.figures import TextOffsets, told_tokens
from localspec.server.service import Service
from localspec.server.turns import in_turn


@dataclass(frozen=True, slots=True)
class Echo:
    """What comes before an answer.

    Attributes:
        text: the prompt's, nothing where it is not wanted.
        logprobs: of its tokens, as OpenAI tells them; None where they are not wanted.
    """

    text: str = ""
    logprobs: dict[str, list[Any]] | None = None


async def echo_of(
    service: Service,
    request: Request,
    engine: Engine,
    prompt: str | Tokens,
    alternatives: int | None,
) -> Echo:
    """A prompt, with what the model thought of it where that is wanted.

    Args:
        alternatives: most probable tokens to tell with each of its tokens; None for the text alone.

    Raises:
        ApiError: the queue is full.
        LocalspecError: the prompt leaves no room for an answer.
    """
    text = str(plain(prompt)) if isinstance(prompt, str) else _text(prompt, engine)
    if alternatives is None:
        return Echo(text)
    tokens = engine.prompts.tokens(prompt, None, "error", GenerationStats())
    told = await in_turn(
        service,
        request,
        lambda left: engine.likelihood(tokens, alternatives, stopped=left),
    )
    # What the model wants before a text is no part of what was asked for.
    added = isinstance(prompt, str) and engine.model.vocabulary.adds_bos
    return Echo(text, _logprobs(tokens[:1] if not added else [], told, engine))


def _text(prompt: Sequence[int], engine: Engine) -> str:
    return b"".join(map(engine.token_bytes, prompt)).decode("utf-8", "replace")


def _logprobs(
    first: Sequence[int], told: Sequence[TokenLogprob], engine: Engine
) -> dict[str, list[Any]]:
    """`logprobs` of a prompt; null for the first token, before which there is nothing."""
    found = told_tokens(told, engine)
    if first:
        found["tokens"].insert(0, _text(first, engine))
        found["token_logprobs"].insert(0, None)
        found["top_logprobs"].insert(0, None)
    found["text_offset"] = TextOffsets(engine).of([*first, *(one.token for one in told)])
    return found

"""`echo` of `/v1/completions`: the prompt before the answer, with its log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from localspec import Engine, GenerationStats
from localspec.prompting.content import plain
from localspec.prompting.prompt import Tokens
from localspec.server.figures import TextOffsets, text_logprobs
from localspec.server.service import Service


@dataclass(frozen=True, slots=True)
class Echo:
    """The text before an answer, and its log-probabilities in OpenAI's format."""

    text: str = ""
    logprobs: dict[str, list[Any]] | None = None


async def echo_of(
    service: Service, engine: Engine, prompt: str | Tokens, alternatives: int | None
) -> Echo:
    """A prompt as an echo, with so many alternatives to each of its tokens; None: the text alone.

    Raises:
        ApiError: the queue is full.
        LocalspecError: the prompt leaves no room for an answer.
    """
    text = str(plain(prompt)) if isinstance(prompt, str) else _text(prompt, engine)
    if alternatives is None:
        return Echo(text)
    tokens = engine.prompts.tokens(prompt, None, "error", GenerationStats())
    logprobs = await service.in_turn(
        lambda left: engine.likelihood(tokens, alternatives, stopped=left)
    )
    # A token that the model needs before a text is not part of the prompt.
    added = isinstance(prompt, str) and engine.model.vocabulary.adds_bos
    first = [] if added else tokens[:1]
    found = text_logprobs(logprobs, engine)
    if first:  # nothing precedes it
        found["tokens"].insert(0, _text(first, engine))
        found["token_logprobs"].insert(0, None)
        found["top_logprobs"].insert(0, None)
    found["text_offset"] = TextOffsets(engine).of([*first, *(one.token for one in logprobs)])
    return Echo(text, found)


def _text(prompt: Sequence[int], engine: Engine) -> str:
    return b"".join(map(engine.token_bytes, prompt)).decode("utf-8", "replace")

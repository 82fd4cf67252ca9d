"""The figures of an answer, as clients of OpenAI and of llama.cpp know them."""

from __future__ import annotations

import codecs
import math
from collections.abc import Iterable, Sequence
from typing import Any

from localspec import Engine, GenerationStats
from localspec.decoding.logprobs import TokenLogprob

_LEAST = -9999.0
"""For a probability of 0, whose logarithm JSON has no number for; OpenAI's."""


def timings(stats: GenerationStats) -> dict[str, Any]:
    """llama.cpp's `timings`."""
    read = stats.prompt_tokens - stats.cached_tokens
    prompt_ms, ms = stats.prompt_seconds * 1e3, stats.decode_seconds * 1e3
    later = max(0, stats.generated_tokens - 1)  # the first one comes with the prompt
    found: dict[str, Any] = {
        "cache_n": stats.cached_tokens,
        "prompt_n": read,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": prompt_ms / read if read else 0.0,
        "prompt_per_second": 1e3 * read / prompt_ms if prompt_ms else 0.0,
        "predicted_n": stats.generated_tokens,
        "predicted_ms": ms,
        "predicted_per_token_ms": ms / later if later else 0.0,
        "predicted_per_second": stats.tokens_per_second,
    }
    if stats.drafted:
        found |= {"draft_n": stats.drafted, "draft_n_accepted": stats.accepted}
    return found


def usage(all_stats: Sequence[GenerationStats]) -> dict[str, Any]:
    """OpenAI's `usage`, of all answers to one prompt.

    Drafts count as predictions: those that were accepted, and those that were tested in vain.
    """
    prompt = all_stats[0].prompt_tokens
    generated = sum(stats.generated_tokens for stats in all_stats)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": {"cached_tokens": all_stats[0].cached_tokens},
        "completion_tokens_details": {
            "accepted_prediction_tokens": sum(stats.accepted for stats in all_stats),
            "rejected_prediction_tokens": sum(s.tested - s.accepted for s in all_stats),
        },
    }


def chat_logprobs(told: Iterable[TokenLogprob], engine: Engine) -> list[dict[str, Any]]:
    """`logprobs.content` of a chat completion."""
    ends = engine.model.vocabulary.ends
    return [
        {
            **_token(one.token, one.logprob, engine),
            "top_logprobs": [_token(token, logprob, engine) for token, logprob in one.top],
        }
        for one in told
        if not ends(one.token)
    ]


def sampled_probs(told: Iterable[TokenLogprob], engine: Engine) -> list[dict[str, Any]]:
    """llama.cpp's `completion_probabilities` with `post_sampling_probs`."""
    ends = engine.model.vocabulary.ends
    return [
        {
            **_sampled(one.token, one.logprob, engine),
            "top_probs": [_sampled(token, logprob, engine) for token, logprob in one.top],
        }
        for one in told
        if not ends(one.token)
    ]


class TextOffsets:
    """Where tokens begin in a text, in characters, told in pieces of any size; a token that ends
    within a character leaves that one to the next.

    Args:
        begin: characters before the first token.
    """

    def __init__(self, engine: Engine, begin: int = 0) -> None:
        self._piece = engine.token_bytes
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._at = begin

    def of(self, tokens: Iterable[int]) -> list[int]:
        """Offsets of the next tokens."""
        found = []
        for token in tokens:
            found.append(self._at)
            self._at += len(self._decode(self._piece(token)))
        return found


def text_logprobs(
    told: Sequence[TokenLogprob], engine: Engine, offsets: TextOffsets
) -> dict[str, Any]:
    """`logprobs` of a completion."""
    found = told_tokens(told, engine)
    found["text_offset"] = offsets.of(one.token for one in told)
    return found


def told_tokens(told: Sequence[TokenLogprob], engine: Engine) -> dict[str, list[Any]]:
    """The same without the offsets."""
    found: dict[str, list[Any]] = {
        "tokens": [],
        "token_logprobs": [],
        "top_logprobs": [],
        "text_offset": [],
    }
    for one in told:
        found["tokens"].append(token_text(one.token, engine))
        found["token_logprobs"].append(max(one.logprob, _LEAST))
        tops: dict[str, float] = {}
        for token, value in one.top:  # the likeliest first, and two may look alike
            tops.setdefault(token_text(token, engine), max(value, _LEAST))
        found["top_logprobs"].append(tops)
    return found


def token_text(token: int, engine: Engine) -> str:
    """A token as text; half a character shows as U+FFFD."""
    return engine.model.vocabulary.piece(token, special=True).decode("utf-8", "replace")


def _token(token: int, logprob: float, engine: Engine) -> dict[str, Any]:
    return {**_named(token, engine), "logprob": max(logprob, _LEAST)}


def _sampled(token: int, logprob: float, engine: Engine) -> dict[str, Any]:
    return {**_named(token, engine), "prob": math.exp(logprob)}


def _named(token: int, engine: Engine) -> dict[str, Any]:
    data = engine.model.vocabulary.piece(token, special=True)
    return {"id": token, "token": data.decode("utf-8", "replace"), "bytes": list(data)}

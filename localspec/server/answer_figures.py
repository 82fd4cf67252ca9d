"""Figures and log-probabilities of an answer, in the formats of OpenAI and llama.cpp."""

import codecs
import math
from collections.abc import Iterable, Sequence
from typing import Any

from localspec import Engine, GenerationStats
from localspec.decoding.logprobs import TokenLogprob

_LEAST = -9999.0


def timings(stats: GenerationStats) -> dict[str, Any]:
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


def usage(prompts: Sequence[GenerationStats], answers: Sequence[GenerationStats]) -> dict[str, Any]:
    """OpenAI's `usage`; `prompts` has one answer to each prompt. Drafts count as predictions."""
    prompt = sum(stats.prompt_tokens for stats in prompts)
    generated = sum(stats.generated_tokens for stats in answers)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": {"cached_tokens": sum(one.cached_tokens for one in prompts)},
        "completion_tokens_details": {
            "accepted_prediction_tokens": sum(stats.accepted for stats in answers),
            "rejected_prediction_tokens": sum(s.tested - s.accepted for s in answers),
        },
    }


def chat_logprobs(
    logprobs: Iterable[TokenLogprob], engine: Engine, *, sampled: bool | None = None
) -> list[dict[str, Any]]:
    """`logprobs.content` of a chat completion; unless `sampled` is None, llama.cpp's
    `completion_probabilities`, which omit the text of the end token. `sampled`: whether with
    `post_sampling_probs`."""
    vocabulary, name = engine.model.vocabulary, "prob" if sampled else "logprob"

    def entry(token: int, logprob: float) -> dict[str, Any]:
        data = vocabulary.piece(token, special=sampled is None or not vocabulary.ends(token))
        value = math.exp(logprob) if sampled else max(logprob, _LEAST)
        return {
            "id": token,
            "token": data.decode("utf-8", "replace"),
            "bytes": [*data],
            name: value,
        }

    return [
        {**entry(item.token, item.logprob), f"top_{name}s": [entry(*other) for other in item.top]}
        for item in logprobs
        if sampled is not None or not vocabulary.ends(item.token)
    ]


class TextOffsets:
    """Offsets of tokens in a text, in characters; a shared character belongs to the later token."""

    def __init__(self, engine: Engine, begin: int = 0) -> None:
        self._piece = engine.token_bytes
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._at = begin

    def of(self, tokens: Iterable[int]) -> list[int]:
        found = []
        for token in tokens:
            found.append(self._at)
            self._at += len(self._decode(self._piece(token)))
        return found


def text_logprobs(
    logprobs: Sequence[TokenLogprob], engine: Engine, offsets: TextOffsets | None = None
) -> dict[str, list[Any]]:
    """`logprobs` of a completion; incomplete characters are U+FFFD."""

    def text(token: int) -> str:
        return engine.model.vocabulary.piece(token, special=True).decode("utf-8", "replace")

    def alternatives(one: TokenLogprob) -> dict[str, float]:
        found: dict[str, float] = {}
        for token, value in one.top:  # the likeliest first; two may have the same text
            found.setdefault(text(token), max(value, _LEAST))
        return found

    tokens = [one.token for one in logprobs]
    return {
        "tokens": [text(token) for token in tokens],
        "token_logprobs": [max(one.logprob, _LEAST) for one in logprobs],
        "top_logprobs": [alternatives(one) for one in logprobs],
        "text_offset": [] if offsets is None else offsets.of(tokens),
    }


def text_of_tokens(tokens: Sequence[int], engine: Engine, *, special: bool = True) -> str:
    """Join the text of tokens; `special`: include the names of control tokens."""
    checked, piece = engine.model.vocabulary.check_ids(tokens), engine.model.vocabulary.piece
    return b"".join(piece(token, special=special) for token in checked).decode("utf-8", "replace")

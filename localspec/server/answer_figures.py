"""Figures, log-probabilities and drafters of an answer, in the formats of OpenAI and llama.cpp."""

import codecs
import math
import time
from collections.abc import Iterable, Sequence
from typing import Any

from localspec import Chunk, Engine, GenerationStats, Stream
from localspec.chat.figures import Meter
from localspec.chat.words import NAMES, line, main_reason, source_name
from localspec.decoding.logprobs import TokenLogprob

_LEAST = -9999.0
_INTERVAL = 0.1
_SAME = (
    *("tokens", "passes", "speed_up", "times_plain", "beside", "prompt_tokens", "cached_tokens"),
    *("context_used", "context_length", "lossless", "seed", "notices"),
)


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
    """Offsets of tokens in a text, in characters; a shared character belongs to the later token.
    `begin` is -1 before a space that the text lacks."""

    def __init__(self, engine: Engine, begin: int = 0) -> None:
        self._piece = engine.token_bytes
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._at = begin

    def of(self, tokens: Iterable[int]) -> list[int]:
        found = []
        for token in tokens:
            found.append(max(0, self._at))
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
    """Join the text of tokens, as it was before it was tokenized; `special`: include the names of
    control tokens."""
    vocabulary, found = engine.model.vocabulary, bytearray()
    marks = {one.id for one in vocabulary.special_tokens.values()}
    begins = True
    for token in vocabulary.check_ids(tokens):
        data = vocabulary.piece(token, special=special)
        found += data.removeprefix(b" ") if begins and vocabulary.adds_space else data
        begins = token in marks
    return found.decode("utf-8", "replace")


class Speculation:
    """The drafter of each token of an answer, and the speed-up, for clients that request them
    (`"speculation": true`), such as the page."""

    def __init__(self, engine: Engine, stream: Stream) -> None:
        self._vocabulary = engine.model.vocabulary
        self._draft = None if engine.draft is None else engine.draft.name
        self._meter = Meter(stream.stats, engine)
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._due = time.monotonic()

    def step(self, chunk: Chunk) -> dict[str, Any]:
        """The tokens of a step as (text, source), and at intervals the current figures. A character
        of several tokens belongs to the last one."""
        if chunk.step is None:
            return {}
        self._meter.add(chunk.step)
        tokens = [
            (self._decode(self._vocabulary.piece(token)), source)
            for token, source in zip(chunk.token_ids, chunk.sources, strict=True)
            if not self._vocabulary.ends(token)
        ]
        report: dict[str, Any] = {"tokens": tokens}
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + _INTERVAL
            report |= self.figures()
        return report

    def figures(self) -> dict[str, Any]:
        figures = self._meter.figures()
        return {
            "summary": line(figures, draft=self._draft),
            "figures": {
                **{name: getattr(figures, name) for name in _SAME},
                "tokens_per_second": figures.speed or None,
                "tokens_per_pass": figures.tokens_per_pass or None,
                "drafters": [
                    {"source": source, "name": _label(source), "accepted": kept, "tested": tested}
                    for source, (kept, tested) in figures.by_drafter.items()
                ],
                "undrafted": sum(figures.reasons.values()),
                "reason": main_reason(figures.reasons) if figures.reasons else None,
            },
        }


def _label(source: str) -> str:
    return source_name(source).removeprefix("the ") if source.partition(":")[0] in NAMES else source

"""Figures, log-probabilities and drafters of an answer, in the formats of OpenAI and llama.cpp; and
the counters of all answers."""

import codecs
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from localspec import Chunk, Engine, GenerationStats, Stream
from localspec.chat.figures import Meter
from localspec.chat.words import NAMES, line, main_reason, source_name
from localspec.decoding.interfaces import Step
from localspec.decoding.logprobs import TokenLogprob
from localspec.decoding.stats import DrafterStats, add_counts

_LEAST = -9999.0
_INTERVAL = 0.1
_SAME = (
    *("tokens", "passes", "speed_up", "times_plain", "beside", "prompt_tokens", "cached_tokens"),
    *("context_used", "context_length", "lossless", "seed", "notices"),
)
_SUMMED = (
    *("prompt_tokens", "cached_tokens", "prompt_seconds", "generated_tokens", "decode_seconds"),
    *("target_passes", "drafted", "tested", "accepted"),
)


def timings(stats: GenerationStats, *, silent: bool) -> dict[str, Any]:
    read = stats.prompt_tokens - stats.cached_tokens
    prompt_ms, ms = stats.prompt_seconds * 1e3, stats.decode_seconds * 1e3
    later = max(0, stats.generated_tokens - 1)  # the first one comes with the prompt
    found: dict[str, Any] = {
        "cache_n": stats.cached_tokens,
        "prompt_n": read,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": prompt_ms / read if read else 0.0,
        "prompt_per_second": 1e3 * read / prompt_ms if prompt_ms else 0.0,
        "predicted_n": 0 if silent else stats.generated_tokens,
        "predicted_ms": ms,
        "predicted_per_token_ms": ms / later if later else 0.0,
        "predicted_per_second": stats.tokens_per_second,
    }
    if stats.drafted:
        found |= {"draft_n": stats.drafted, "draft_n_accepted": stats.accepted}
    return found


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


@dataclass(slots=True)
class ServedTotals(GenerationStats):
    """Sums over all finished answers; of running ones as well, `steps`, `later_tokens` and
    `later_seconds` (without those of prompts), `drafts` (passes that verified a draft), and
    `rounds` (passes if all running answers had shared each one)."""

    answers: dict[str, int] = field(default_factory=dict)
    longest: int = 0
    drafts: int = 0
    steps: int = 0
    rounds: float = 0.0
    later_tokens: int = 0
    later_seconds: float = 0.0

    @property
    def read_tokens(self) -> int:
        """Prompt tokens that were not cached."""
        return self.prompt_tokens - self.cached_tokens

    def add_step(self, step: Step, running: int) -> None:
        """Count a step; `running`: answers at that time."""
        self.steps += 1
        self.rounds += 1 / max(1, running)
        self.drafts += bool(step.drafted)
        if not step.reads_prompt:
            self.later_tokens += len(step.tokens)
            self.later_seconds += step.seconds

    def add_answer(self, stats: GenerationStats, finish: str) -> None:
        self.answers[finish] = self.answers.get(finish, 0) + 1
        for name in _SUMMED:
            setattr(self, name, getattr(self, name) + getattr(stats, name))
        self.longest = max(self.longest, stats.prompt_tokens + stats.generated_tokens)
        for name, counts in stats.by_drafter.items():
            self.by_drafter.setdefault(name, DrafterStats()).add(counts)
        add_counts(self.accepted_per_position, stats.accepted_per_position)

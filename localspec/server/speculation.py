"""Who proposed the tokens of an answer, and what drafting gained: for clients that ask for it
(`"speculation": true`), such as the page."""

from __future__ import annotations

import codecs
import time
from collections.abc import Callable
from typing import Any

from localspec import Chunk, Engine, Stream
from localspec.chat.figures import Figures, Meter
from localspec.chat.words import NAMES, main_reason, named, rate
from localspec.decoding.interfaces import TARGET

_INTERVAL = 0.1
"""Seconds between two reports of figures while an answer is generated."""


class Speculation:
    """Follows one answer.

    Args:
        engine: that generates it.
        stream: of it.
        clock: seconds; only differences count.
    """

    def __init__(
        self, engine: Engine, stream: Stream, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._vocabulary = engine.model.vocabulary
        self._draft = None if engine.draft is None else engine.draft.path.stem
        self._meter = Meter(stream.stats, engine.plain_seconds, engine.context_length)
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._clock = clock
        self._due = clock()

    def step(self, chunk: Chunk) -> dict[str, Any]:
        """The tokens of a step as (text, source), and every so often the figures so far. A
        character of several tokens belongs to its last one."""
        if chunk.step is None:
            return {}
        self._meter.add(chunk.step)
        tokens = [
            (self._decode(self._vocabulary.piece(token)), source)
            for token, source in zip(chunk.token_ids, chunk.sources, strict=True)
            if not self._vocabulary.ends(token)
        ]
        report: dict[str, Any] = {"tokens": tokens}
        if self._clock() >= self._due:
            self._due = self._clock() + _INTERVAL
            report |= self.figures()
        return report

    def figures(self) -> dict[str, Any]:
        """The figures so far; those that are not known are None."""
        figures = self._meter.figures()
        return {
            "summary": summary(figures, self._draft),
            "figures": {
                "tokens": figures.tokens,
                "tokens_per_second": figures.speed or None,
                "times_plain": figures.speed_up if figures.drafted else None,
                "tokens_per_pass": figures.tokens_per_pass or None,
                "prompt_tokens": figures.prompt_tokens,
                "cached_tokens": figures.cached_tokens,
                "context_used": figures.context_used,
                "context_length": figures.context_length,
                "drafters": [
                    {"source": source, "name": _named(source), "accepted": kept, "tested": tested}
                    for source, (kept, tested) in figures.by_drafter.items()
                ],
                "passes": figures.passes,
                "undrafted": sum(figures.reasons.values()),
                "reason": main_reason(figures.reasons) if figures.reasons else None,
                "lossless": figures.lossless,
                "seed": figures.seed,
                "notices": figures.notices,
            },
        }


def summary(figures: Figures, draft: str | None) -> str:
    """An answer in one line: `76 tokens · 420 tok/s · 2.6× plain · draft smollm2`. Says only what
    was measured.

    Args:
        draft: name of the draft model.
    """
    parts = [f"{figures.tokens:,} token{'' if figures.tokens == 1 else 's'}"]
    if figures.speed:
        parts.append(f"{rate(figures.speed)} tok/s")
    if figures.drafted and figures.speed_up is not None:
        parts.append(f"{figures.speed_up:.1f}× plain")
    used = [
        f"draft {draft}" if draft and source.startswith("model") else _named(source)
        for source, (accepted, _) in figures.by_drafter.items()
        if accepted and source != TARGET
    ]
    if used:
        parts.append(" and ".join(used))
    elif figures.passes > 1:
        parts.append("no draft accepted" if figures.drafted else "not drafted")
    if not figures.lossless:
        parts.append(f"lossy ({figures.rule})")
    return " · ".join(parts)


def _named(source: str) -> str:
    """A source in a table: without an article."""
    return named(source).removeprefix("the ") if source.partition(":")[0] in NAMES else source

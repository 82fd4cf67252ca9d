"""What the server has done and is doing: counts for /metrics, /slots and the page.

All of it is told in the event loop's thread, from the same steps that the answers are made of.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from localspec import GenerationStats, Stream
from localspec.decoding.interfaces import Step
from localspec.decoding.stats import DrafterStats, add_counts

_RECENT = 10.0
"""Seconds that "now" means on the page."""


@dataclass(slots=True)
class ServedTotals:
    """Sums over all answers that ended.

    Attributes:
        answers: by how they ended.
        prompt_tokens: read, without those that the cache held.
        longest: tokens of prompt and answer together, the most there were.
        by_drafter: counts by source.
        accepted_per_position: by depth, the first drafted token first.
        drafts: passes that verified something.
        steps: of all answers; `rounds` as if all that were being written had shared every pass.
    """

    answers: dict[str, int] = field(default_factory=dict)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prompt_seconds: float = 0.0
    generated_tokens: int = 0
    decode_seconds: float = 0.0
    passes: int = 0
    longest: int = 0
    drafted: int = 0
    tested: int = 0
    accepted: int = 0
    drafts: int = 0
    steps: int = 0
    rounds: float = 0.0
    by_drafter: dict[str, DrafterStats] = field(default_factory=dict)
    accepted_per_position: list[int] = field(default_factory=list)

    def add(self, stats: GenerationStats, finish: str) -> None:
        """One more answer."""
        self.answers[finish] = self.answers.get(finish, 0) + 1
        self.prompt_tokens += stats.prompt_tokens - stats.cached_tokens
        self.cached_tokens += stats.cached_tokens
        self.prompt_seconds += stats.prompt_seconds
        self.generated_tokens += stats.generated_tokens
        self.decode_seconds += stats.decode_seconds
        self.passes += stats.target_passes
        self.longest = max(self.longest, stats.prompt_tokens + stats.generated_tokens)
        self.drafted += stats.drafted
        self.tested += stats.tested
        self.accepted += stats.accepted
        for name, counts in stats.by_drafter.items():
            self.by_drafter.setdefault(name, DrafterStats()).add(counts)
        add_counts(self.accepted_per_position, stats.accepted_per_position)


@dataclass(slots=True)
class Working:
    """An answer that is being written.

    Attributes:
        number: of the answer, from 1.
        since: when it began, on the monotonic clock.
    """

    number: int
    stream: Stream
    since: float


class _Passed(NamedTuple):
    """What is kept of a step; `seconds` is None where it read the prompt."""

    at: float
    tokens: int
    tested: int
    accepted: int
    seconds: float | None


@dataclass(slots=True)
class Traffic:
    """Requests of HTTP, and those of them that were answered with an error."""

    requests: int = 0
    refused: int = 0


class Activity:
    """See the module; of one model.

    Attributes:
        totals: of answers that ended.
        slots: answers that are being written, by slot.
    """

    def __init__(self) -> None:
        self.totals = ServedTotals()
        self.slots: dict[int, Working] = {}
        self._begun = 0
        self._latest: deque[_Passed] = deque()

    def began(self, slot: int, stream: Stream) -> None:
        """An answer got its slot."""
        self._begun += 1
        self.slots[slot] = Working(self._begun, stream, time.monotonic())

    def stepped(self, step: Step) -> None:
        """An answer is a step further."""
        self.totals.steps += 1
        self.totals.rounds += 1 / max(1, len(self.slots))
        if step.drafted:
            self.totals.drafts += 1
        # Not the step itself: its draft may hold on to whole distributions.
        counts = len(step.tokens), step.tested, step.accepted
        self._latest.append(
            _Passed(time.monotonic(), *counts, None if step.reads_prompt else step.seconds)
        )
        self._forget()

    def ended(self, slot: int, stream: Stream) -> float:
        """An answer came to its end; returns the seconds that it took."""
        working = self.slots.pop(slot, None)
        self.totals.add(stream.stats, stream.finish_reason or "error")
        return 0.0 if working is None else time.monotonic() - working.since

    def now(self) -> dict[str, float]:
        """Tokens per second and shares over the last seconds."""
        self._forget()
        tokens = sum(step.tokens for step in self._latest)
        later = [step for step in self._latest if step.seconds is not None]
        seconds = sum(step.seconds or 0.0 for step in later)
        return {
            "tokens": tokens,
            "tokens_per_second": sum(s.tokens for s in later) / seconds if seconds else 0.0,
            "tokens_per_pass": tokens / len(self._latest) if self._latest else 0.0,
            "accepted": sum(step.accepted for step in self._latest),
            "tested": sum(step.tested for step in self._latest),
        }

    def _forget(self) -> None:
        limit = time.monotonic() - _RECENT
        while self._latest and self._latest[0].at < limit:
            self._latest.popleft()

"""Counters for `/metrics`, `/slots` and the page; used only on the event loop's thread."""

import time
from collections import deque
from dataclasses import dataclass, field

from localspec import GenerationStats, Stream
from localspec.decoding.interfaces import Step
from localspec.decoding.stats import DrafterStats, add_counts

_RECENT = 10.0
_SUMMED = (
    *("prompt_tokens", "cached_tokens", "prompt_seconds", "generated_tokens", "decode_seconds"),
    *("target_passes", "drafted", "tested", "accepted"),
)


@dataclass(slots=True)
class ServedTotals(GenerationStats):
    """Sums over all finished answers. `drafts`: passes that verified a draft; `rounds`: passes if
    all running answers had shared each one."""

    answers: dict[str, int] = field(default_factory=dict)
    longest: int = 0
    drafts: int = 0
    steps: int = 0
    rounds: float = 0.0

    @property
    def read_tokens(self) -> int:
        """Prompt tokens that were not cached."""
        return self.prompt_tokens - self.cached_tokens

    def add_answer(self, stats: GenerationStats, finish: str) -> None:
        self.answers[finish] = self.answers.get(finish, 0) + 1
        for name in _SUMMED:
            setattr(self, name, getattr(self, name) + getattr(stats, name))
        self.longest = max(self.longest, stats.prompt_tokens + stats.generated_tokens)
        for name, counts in stats.by_drafter.items():
            self.by_drafter.setdefault(name, DrafterStats()).add(counts)
        add_counts(self.accepted_per_position, stats.accepted_per_position)


class Activity:
    """The answers of one model: `totals` of finished ones, `slots` with running ones."""

    def __init__(self) -> None:
        self.totals = ServedTotals()
        self.slots: dict[int, tuple[int, Stream]] = {}  # number of the answer, stream
        self._count = 0
        self._recent: deque[tuple[float, int, float]] = deque()  # time, tokens, seconds

    def begin_answer(self, slot: int, stream: Stream) -> None:
        self._count += 1
        self.slots[slot] = self._count, stream

    def add_step(self, step: Step) -> None:
        self.totals.steps += 1
        self.totals.rounds += 1 / max(1, len(self.slots))
        self.totals.drafts += bool(step.drafted)
        seconds = 0.0 if step.reads_prompt else step.seconds
        self._recent.append((time.monotonic(), len(step.tokens), seconds))
        self._drop_old()

    def end_answer(self, slot: int, stream: Stream) -> None:
        self.totals.add_answer(stream.stats, stream.finish_reason or "error")
        del self.slots[slot]

    def now(self) -> dict[str, float]:
        """Figures of the last few seconds; tokens per second exclude prefill."""
        self._drop_old()
        seconds = sum(seconds for _, _, seconds in self._recent)
        later = sum(tokens for _, tokens, seconds in self._recent if seconds)
        return {"tokens_per_second": later / seconds if seconds else 0.0}

    def _drop_old(self) -> None:
        limit = time.monotonic() - _RECENT
        while self._recent and self._recent[0][0] < limit:
            self._recent.popleft()

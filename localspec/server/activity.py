"""Counters for `/metrics`, `/slots` and the page; used only on the event loop's thread."""

from dataclasses import dataclass, field

from localspec import GenerationStats, Stream
from localspec.decoding.interfaces import Step
from localspec.decoding.stats import DrafterStats, add_counts

_SUMMED = (
    *("prompt_tokens", "cached_tokens", "prompt_seconds", "generated_tokens", "decode_seconds"),
    *("target_passes", "drafted", "tested", "accepted"),
)


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

    def begin_answer(self, slot: int, stream: Stream) -> None:
        self._count += 1
        self.slots[slot] = self._count, stream

    def add_step(self, step: Step) -> None:
        self.totals.steps += 1
        self.totals.rounds += 1 / max(1, len(self.slots))
        self.totals.drafts += bool(step.drafted)
        if not step.reads_prompt:
            self.totals.later_tokens += len(step.tokens)
            self.totals.later_seconds += step.seconds

    def end_answer(self, slot: int, stream: Stream) -> None:
        self.totals.add_answer(stream.stats, stream.finish_reason or "error")
        del self.slots[slot]

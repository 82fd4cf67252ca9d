"""Statistics of one generation, summed over its steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from localspec.decoding.interfaces import PROMPT, Step


@dataclass(slots=True)
class DrafterStats:
    """Counts of one source: tokens drafted, tested, accepted; `add` sums two."""

    drafted: int = 0
    tested: int = 0
    accepted: int = 0

    def add(self, other: DrafterStats) -> None:
        self.drafted += other.drafted
        self.tested += other.tested
        self.accepted += other.accepted


def add_counts(sums: list[int], counts: Sequence[int]) -> None:
    """Add counts by position to sums, which are extended if shorter."""
    sums.extend([0] * (len(counts) - len(sums)))
    for position, count in enumerate(counts):
        sums[position] += count


@dataclass(slots=True)
class AccountStatement:
    """What drafting saved and risked in one answer, see `localspec.policy.budget`.

    Attributes:
        saved: seconds, relative to plain decoding at the same pace; negative if it cost more.
        fund: seconds that may still be risked at the end of the answer.
        pair_saved: seconds saved with this pair in all answers and sessions.
    """

    saved: float = 0.0
    fund: float = 0.0
    pair_saved: float = 0.0


@dataclass(slots=True)
class GenerationStats:
    """Counts and seconds of one generation.

    Attributes:
        prompt_tokens, cached_tokens: of the prompt, and how many of these were cached.
        generated_tokens: tokens of the answer, an end-of-generation token included.
        target_passes: passes of the target that yielded tokens; the prompt's own counts as one.
        drafted, tested, accepted: draft tokens proposed, verified up to a rejection, and kept.
        accepted_per_position, tested_per_position: the same by depth, first drafted token first.
        prompt_seconds: from the start to the first token: the prompt through target and draft.
        calibration_seconds: spent before that on measuring pass costs.
        decode_seconds: in steps after the first token.
        draft_seconds, verify_seconds: the part in native passes of draft model and target.
        overhead_seconds: of localspec itself, the rest of `decode_seconds`.
        by_drafter: counts by the name of the source.
        rule, lossless: the acceptance rule, and whether it preserves the output.
        vocabulary: how a draft model with another vocabulary drafts.
        threads, kernels: of the last pass on the CPU, and why.
        seed: of the random numbers. It reproduces the answer; under rules other than "match" only
            with the same drafts, and with llama.cpp's kernels only in the same passes.
        reasons: number of steps without a draft, by reason.
        notices: sentences for the user.
        account: what drafting saved and risked; None without `auto`.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    target_passes: int = 0
    drafted: int = 0
    tested: int = 0
    accepted: int = 0
    accepted_per_position: list[int] = field(default_factory=list)
    tested_per_position: list[int] = field(default_factory=list)
    prompt_seconds: float = 0.0
    calibration_seconds: float = 0.0
    decode_seconds: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    overhead_seconds: float = 0.0
    by_drafter: dict[str, DrafterStats] = field(default_factory=dict)
    rule: str = ""
    lossless: bool = True
    vocabulary: str | None = None
    threads: str = ""
    kernels: str = ""
    seed: int | None = None
    reasons: dict[str, int] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    account: AccountStatement | None = None

    @property
    def tokens_per_pass(self) -> float:
        """Tokens of the answer ÷ passes of the target that yielded tokens; 0 before the first."""
        return self.generated_tokens / self.target_passes if self.target_passes else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Tokens after the first ÷ seconds after the first."""
        return (self.generated_tokens - 1) / self.decode_seconds if self.decode_seconds else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted ÷ tested draft tokens; 0 if none were tested."""
        return self.accepted / self.tested if self.tested else 0.0

    def add(self, step: Step) -> None:
        """Count a step."""
        self.generated_tokens += len(step.tokens)
        self.target_passes += 1
        draft, plan = step.draft, step.plan
        if plan is PROMPT:
            self.prompt_seconds += step.seconds
            return
        self.decode_seconds += step.seconds
        self.draft_seconds += step.draft_seconds
        self.verify_seconds += step.target_seconds
        self.overhead_seconds += step.seconds - step.draft_seconds - step.target_seconds
        tree = draft.tree
        if not tree.proposed:
            reason = draft.reason or plan.reason
            self.reasons[reason] = self.reasons.get(reason, 0) + 1
            return
        tested, accepted, by_drafter = step.tested_nodes, step.accepted_nodes, self.by_drafter
        for source in tree.sources[: tree.proposed]:
            stats = by_drafter.get(source)
            if stats is None:
                stats = by_drafter[source] = DrafterStats()
            stats.drafted += 1
        for node in tested:
            by_drafter[tree.sources[node]].tested += 1
            _count_at(self.tested_per_position, tree.depths[node])
        for node in accepted:
            by_drafter[tree.sources[node]].accepted += 1
            _count_at(self.accepted_per_position, tree.depths[node])
        self.drafted += tree.proposed
        self.tested += len(tested)
        self.accepted += len(accepted)

    def as_dict(self) -> dict[str, Any]:
        """All fields and rates, for JSON."""
        rates = ("tokens_per_pass", "tokens_per_second", "acceptance_rate")
        return asdict(self) | {name: getattr(self, name) for name in rates}


def _count_at(positions: list[int], depth: int) -> None:
    positions.extend([0] * (depth - len(positions)))
    positions[depth - 1] += 1

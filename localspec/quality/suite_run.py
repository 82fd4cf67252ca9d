"""Answer every question with and without speculation, with one engine."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from localspec.decoding.params import SamplingParams
from localspec.decoding.rules import LOSSY
from localspec.drafters.options import Drafting
from localspec.quality.items import SuiteItem
from localspec.text import counted, rate, times
from localspec.verify.subject import MAX_PROMPT, Subject, rounding_distances

_SIZES = (2, 4, 8)
_NOISE_ANSWERS = 2
"""Number of answers along which rounding is measured."""


@dataclass(frozen=True, slots=True)
class ItemDifference:
    """A greedy answer that differs from plain decoding: the common prefix in tokens, the gap of
    the logits of the next two (infinite if one answer ends), and whether each is right."""

    item: str
    position: int
    gap: float
    plain_right: bool
    right: bool


@dataclass(slots=True)
class WayScore:
    """Answers of one way of drafting: which are right, and how greedy ones differ."""

    drafting: Drafting
    right: list[bool] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0
    differences: list[ItemDifference] = field(default_factory=list)

    @property
    def lossless(self) -> bool:
        return self.drafting.rule not in LOSSY

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


@dataclass(slots=True)
class SuiteOutcome:
    """All ways with the same questions, `plain` first; `noise`: how far rounding moves logits;
    `left_out`: number of questions that do not fit the context."""

    ways: dict[str, WayScore]
    noise: float = 0.0
    items: int = 0
    left_out: int = 0
    complete: bool = False

    @property
    def faults(self) -> list[str]:
        """Lossless answers that differ where the gap of the logits is larger than rounding."""
        return [
            f"{name} differs from plain decoding at token {difference.position} of "
            f"{difference.item}, where the tokens are {difference.gap:.4f} logits apart: "
            f"more than rounding explains ({self.noise:.4f})."
            for name, way in self.ways.items()
            if way.lossless
            for difference in way.differences
            if not difference.gap <= self.noise
        ]

    def as_dict(self) -> dict[str, Any]:
        return {
            "items": self.items,
            "left_out": self.left_out,
            "complete": self.complete,
            "noise": self.noise,
            "faults": self.faults,
            "ways": {
                name: {
                    "lossless": way.lossless,
                    "right": sum(way.right),
                    "of": len(way.right),
                    "interval": wilson(sum(way.right), len(way.right)),
                    "tokens_per_second": way.speed,
                    "differences": [
                        asdict(d) | {"gap": None if math.isinf(d.gap) else d.gap}
                        for d in way.differences
                    ],
                }
                for name, way in self.ways.items()
            },
        }


def run_suite(
    subject: Subject,
    items: Sequence[SuiteItem],
    sampling: SamplingParams,
    outcome: SuiteOutcome,
) -> None:
    """Answer every question in every way of `outcome`, adding to it; `sampling` has a seed."""
    for number, item in enumerate(items):
        subject.report(f"question {number + 1} of {len(items)}")
        prompt = tuple(subject.tokens([{"role": "user", "content": item.prompt}]))
        if len(prompt) + item.max_tokens > subject.engine.context_length:
            outcome.left_out += 1
            continue
        if sampling.greedy and outcome.items < _NOISE_ANSWERS:
            plainly = subject.plain(prompt[-MAX_PROMPT:], 24)
            for size in _SIZES:
                if size <= subject.limits.max_draft + 1:
                    moved = rounding_distances(subject, plainly, size)
                    outcome.noise = max([outcome.noise, *moved])
        found = {
            name: subject.answer(prompt, item.max_tokens, way.drafting, sampling=sampling)
            for name, way in outcome.ways.items()
        }
        # Checked when all have answered, so that after an interruption all have as many.
        right = {name: item.right(answer.text) for name, answer in found.items()}
        plain = found["plain"].tokens
        for name, answer in found.items():
            way = outcome.ways[name]
            way.right.append(right[name])
            way.tokens += answer.stats.generated_tokens - 1
            way.seconds += answer.stats.decode_seconds
            if sampling.greedy and answer.tokens != plain:
                place, gap = subject.first_difference(prompt, plain, answer.tokens)
                way.differences.append(
                    ItemDifference(item.id, place, gap, right["plain"], right[name])
                )
        outcome.items += 1
    outcome.complete = True


def wilson(right: int, total: int) -> tuple[float, float]:
    """The 95% interval of a share (Wilson 1927); [0, 1] without answers."""
    if not total:
        return 0.0, 1.0
    z, share = 1.96, right / total
    middle = share + z * z / (2 * total)
    half = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    whole = 1 + z * z / total
    return max(0.0, (middle - half) / whole), min(1.0, (middle + half) / whole)


_LISTED = 20
"""Maximum number of differing items to list."""


def outcome_text(suite: str, found: dict[str, Any]) -> str:
    """The outcome of a suite as text, from `SuiteOutcome.as_dict`."""
    lines = [f"{suite}, {counted(found['items'], 'question')}"]
    plain = found["ways"]["plain"]
    for name, way in found["ways"].items():
        low, high = way["interval"]
        line = (
            f"{name:12}{way['right']:4} of {way['of']} right ({low:.0%} to {high:.0%})"
            f"{rate(way['tokens_per_second']):>9} tok/s"
        )
        if name != "plain" and plain["tokens_per_second"]:
            line += f"  {times(way['tokens_per_second'] / plain['tokens_per_second'])} plain"
        lines.append(line if way["lossless"] else line + "  lossy")
    for name, way in found["ways"].items():
        differences = way["differences"]
        if not differences:
            continue
        lines.append(f"{name} differs from plain in {len(differences)} of {way['of']} answers:")
        lines += [f"  {_difference(difference)}" for difference in differences[:_LISTED]]
        if len(differences) > _LISTED:
            lines.append(f"  and {len(differences) - _LISTED} more, which --json lists")
    if found["left_out"]:
        lines.append(
            f"Left out, because the context is too short: {found['left_out']}. Raise --ctx."
        )
    if found["noise"]:
        lines.append(f"Rounding changes logits by at most {found['noise']:.4f} here.")
    lines += found["faults"]
    return "\n".join(lines) + "\n"


def _difference(found: dict[str, Any]) -> str:
    gap = "one of them ends" if found["gap"] is None else f"{found['gap']:.4f} logits apart"
    verdicts = {True: "right", False: "wrong"}
    plain, here = verdicts[found["plain_right"]], verdicts[found["right"]]
    score = f"both {plain}" if plain == here else f"{plain} became {here}"
    return f"{found['item']} from token {found['position']}, {gap}: {score}"

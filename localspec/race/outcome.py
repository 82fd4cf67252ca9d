"""What came of a race: seconds, the gain, and whether both said the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from localspec.decoding.sampling import SamplingParams
from localspec.decoding.stats import GenerationStats
from localspec.llama.target import shared_prefix
from localspec.race.turns import NAMES

NEAR = 0.5
"""Two logits closer than this may change places by rounding: llama.cpp's passes over one token and
over several, and localspec's, run through other kernels. Some models move more, which is looked at
where it matters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneResult:
    """One answer.

    Attributes:
        text: as far as it came.
        finish_reason: as of `Completion`.
        seconds: on its own clock, from the prompt to the last token.
        token_ids: of the answer.
        stats: all figures.
    """

    text: str
    finish_reason: str
    seconds: float
    token_ids: tuple[int, ...]
    stats: GenerationStats

    @property
    def speed(self) -> float:
        """Tokens per second, the reading of the prompt included."""
        return len(self.token_ids) / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class Parting:
    """Where two answers stop being the same.

    Attributes:
        position: tokens that they have in common.
        plain, localspec: the text of the token that each goes on with.
        gap: how far apart the model has the two, in logits; None where that was not looked at.
        rounding: how far a logit moves there at most where the text is read in larger passes; None
            where NEAR says enough.
    """

    position: int
    plain: str
    localspec: str
    gap: float | None
    rounding: float | None = None

    @property
    def near_tie(self) -> bool:
        """Whether rounding alone can have decided between the two."""
        return self.gap is not None and abs(self.gap) < max(NEAR, self.rounding or 0.0)


@dataclass(frozen=True, slots=True)
class Proof:
    """localspec's answer, read once more: is each token its own plain decoding's?

    Attributes:
        wrong: the first one that is not, from 0; None where all are.
    """

    wrong: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceOutcome:
    """Both answers, and how they compare.

    Attributes:
        plain, localspec: the lanes.
        greedy: whether the two have to say the same.
        alike: whether both were asked the same: behind answers that parted they are not, and need
            not say the same.
        parting: where they do not, None where they do as far as both came, or are not `alike`.
        lead: seconds by which localspec was first at the last token that both have.
        stock: whether plain decoding was llama.cpp's as it comes, beside localspec's kernels.
        proof: None where none is possible: without those, and where more than logits decides.
    """

    plain: LaneResult
    localspec: LaneResult
    greedy: bool
    parting: Parting | None
    lead: float | None
    alike: bool = True
    stock: bool = False
    proof: Proof | None = None

    @property
    def interrupted(self) -> bool:
        """Whether either was stopped."""
        return "cancelled" in (self.plain.finish_reason, self.localspec.finish_reason)

    @property
    def equal(self) -> bool:
        """Whether both were asked the same and said the same, as far as both came."""
        return self.alike and self.parting is None

    @property
    def speed_up(self) -> float | None:
        """localspec's tokens per second ÷ plain decoding's."""
        if not self.plain.speed or not self.localspec.speed:
            return None
        return self.localspec.speed / self.plain.speed

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        parting = self.parting
        return {
            "interrupted": self.interrupted,
            "greedy": self.greedy,
            "equal": self.equal,
            "plain": "llama.cpp" if self.stock else "localspec without drafts",
            "proof": None
            if self.proof is None
            else {"bit_for_bit": self.proof.wrong is None, "wrong": self.proof.wrong},
            "parting": None
            if parting is None
            else {
                "position": parting.position,
                "plain": parting.plain,
                "localspec": parting.localspec,
                "logit_gap": parting.gap,
                "rounding": parting.rounding,
            },
            "speed_up": self.speed_up,
            "lead_seconds": self.lead,
            "lanes": {
                name: {
                    "text": lane.text,
                    "finish_reason": lane.finish_reason,
                    "seconds": lane.seconds,
                    "tokens": len(lane.token_ids),
                    "tokens_per_second": lane.speed,
                    "stats": lane.stats.as_dict(),
                }
                for name, lane in zip(NAMES, (self.plain, self.localspec), strict=True)
            },
        }


def both(outcomes: Sequence[RaceOutcome]) -> tuple[list[LaneResult], list[LaneResult]]:
    """The answers of each lane to several questions."""
    return [each.plain for each in outcomes], [each.localspec for each in outcomes]


def speed_up(outcomes: Sequence[RaceOutcome]) -> float | None:
    """Of all questions together, as `RaceOutcome.speed_up`."""
    speeds = []
    for lanes in both(outcomes):
        tokens, seconds = (
            sum(len(lane.token_ids) for lane in lanes),
            sum(lane.seconds for lane in lanes),
        )
        if not tokens or not seconds:
            return None
        speeds.append(tokens / seconds)
    return speeds[1] / speeds[0]


def parting(
    plain: Sequence[int],
    localspec: Sequence[int],
    token_bytes: Callable[[int], bytes],
    gap: Callable[[int], float] | None,
    rounding: Callable[[int], float] | None = None,
) -> Parting | None:
    """Where two token sequences part; None where one is a beginning of the other.

    Args:
        gap: how far apart the logits of the two tokens at a position are, plain decoding's less the
            other's; None where raw logits do not decide.
        rounding: how far a logit moves at a position at most; asked where a gap is no near tie
            without it.
    """
    at = shared_prefix(plain, localspec)
    if at == min(len(plain), len(localspec)):
        return None
    texts = [token_bytes(tokens[at]).decode("utf-8", "replace") for tokens in (plain, localspec)]
    found = Parting(at, texts[0], texts[1], None if gap is None else gap(at))
    if found.gap is None or found.near_tie or rounding is None:
        return found
    return replace(found, rounding=rounding(at))


def decided_by_logits(sampling: SamplingParams) -> bool:
    """Whether the greatest logit is what a greedy answer picks: nothing is added or taken off."""
    return (
        sampling.greedy
        and sampling.repeat_penalty == 1.0
        and not sampling.frequency_penalty
        and not sampling.presence_penalty
        and not sampling.logit_bias
    )

"""What came of a race: seconds, the gain, and whether both gave the same text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from localspec.decoding.sampling import SamplingParams
from localspec.decoding.stats import GenerationStats
from localspec.llama.target import shared_prefix
from localspec.race.turns import NAMES


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneResult:
    """One answer; `seconds` on its own clock, from the prompt to the last token."""

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
    """Where two answers differ first: after `position` tokens, in the text of the next one."""

    position: int
    plain: str
    localspec: str


@dataclass(frozen=True, slots=True)
class Proof:
    """localspec's answer read once more: the first token (from 0) that is not plain decoding's."""

    wrong: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceOutcome:
    """Both answers, and how they compare.

    Attributes:
        greedy: whether the two have to be the same.
        alike: whether both were asked the same: after answers that differed they are not.
        parting: None where they agree as far as both came, or are not `alike`.
        lead: seconds by which localspec was first at the last token that both have.
        stock: whether plain decoding was stock llama.cpp's, beside localspec's kernels.
        proof: None without the kernels, and where more than logits decides.
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
        """Whether both were asked the same and answered the same, as far as both came."""
        return self.alike and self.parting is None

    @property
    def speed_up(self) -> float | None:
        """localspec's tokens per second ÷ plain decoding's."""
        return speed_up([self])

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        parting, proof = self.parting, self.proof
        return {
            "interrupted": self.interrupted,
            "greedy": self.greedy,
            "equal": self.equal,
            "plain": "llama.cpp" if self.stock else "localspec without drafts",
            "proof": proof and {"bit_for_bit": proof.wrong is None, "wrong": proof.wrong},
            "parting": parting
            and {
                "position": parting.position,
                "plain": parting.plain,
                "localspec": parting.localspec,
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


def pace(lanes: Sequence[LaneResult]) -> tuple[int, float]:
    """Tokens and seconds of several answers together."""
    return sum(len(lane.token_ids) for lane in lanes), sum(lane.seconds for lane in lanes)


def speed_up(outcomes: Sequence[RaceOutcome]) -> float | None:
    """Of all questions together; None where either lane has nothing."""
    tokens, seconds = pace([each.localspec for each in outcomes])
    plain_tokens, plain_seconds = pace([each.plain for each in outcomes])
    if not (tokens and seconds and plain_tokens and plain_seconds):
        return None
    return (tokens / seconds) / (plain_tokens / plain_seconds)


def parting(
    plain: Sequence[int], localspec: Sequence[int], token_bytes: Callable[[int], bytes]
) -> Parting | None:
    """Where two token sequences differ first; None where one is a beginning of the other."""
    at = shared_prefix(plain, localspec)
    if at == min(len(plain), len(localspec)):
        return None
    texts = [token_bytes(tokens[at]).decode("utf-8", "replace") for tokens in (plain, localspec)]
    return Parting(at, *texts)


def decided_by_logits(sampling: SamplingParams) -> bool:
    """Whether a greedy answer is the greatest logit's: nothing is added or taken off."""
    return (
        sampling.greedy
        and sampling.repeat_penalty == 1.0
        and not sampling.frequency_penalty
        and not sampling.presence_penalty
        and not sampling.logit_bias
    )

"""The outcome of a race: seconds, speed-up, and whether the texts are the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from localspec.llama.target import shared_prefix
from localspec.race.turns import NAMES, RaceLane, lead


@dataclass(frozen=True, slots=True)
class Parting:
    """Where two answers first differ: after `position` tokens, and the next one's texts."""

    position: int
    plain: str
    localspec: str


@dataclass(frozen=True, slots=True)
class Proof:
    """localspec's answer read again: its first token (from 0) that is not plain decoding's."""

    wrong: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceOutcome:
    """Both answers compared. `greedy`: whether they have to be the same; `alike`: whether the
    questions were; after answers that differed they are not; `parting`: None where they agree, or
    are not `alike`; `stock`: whether plain decoding was stock llama.cpp's, beside localspec's
    kernels; `proof`: None without the kernels, and where more than logits decides."""

    plain: RaceLane
    localspec: RaceLane
    greedy: bool
    parting: Parting | None
    alike: bool = True
    stock: bool = False
    proof: Proof | None = None

    @property
    def interrupted(self) -> bool:
        return self.plain.cancelled or self.localspec.cancelled

    @property
    def lead(self) -> float | None:
        """Seconds by which localspec was first at the last common token."""
        return lead(self.plain.ends, self.localspec.ends)

    @property
    def equal(self) -> bool:
        """Whether question and answer were the same, as far as both came."""
        return self.alike and self.parting is None

    @property
    def speed_up(self) -> float | None:
        """Tokens per second ÷ plain decoding's."""
        return speed_up([self])

    def as_dict(self) -> dict[str, Any]:
        parting, proof = self.parting, self.proof
        return {
            "interrupted": self.interrupted,
            "greedy": self.greedy,
            "equal": self.equal,
            "plain": "llama.cpp" if self.stock else "localspec without drafts",
            "proof": proof and {"bit_for_bit": proof.wrong is None, "wrong": proof.wrong},
            "parting": parting and asdict(parting),
            "speed_up": self.speed_up,
            "lead_seconds": self.lead,
            "lanes": {
                name: {
                    "text": lane.stream.text,
                    "finish_reason": lane.stream.finish_reason or "cancelled",
                    "seconds": lane.seconds,
                    "tokens": len(lane.token_ids),
                    "tokens_per_second": len(lane.token_ids) / lane.seconds
                    if lane.seconds
                    else 0.0,
                    "stats": lane.stream.stats.as_dict(),
                }
                for name, lane in zip(NAMES, (self.plain, self.localspec), strict=True)
            },
        }


def pace(lanes: Sequence[RaceLane]) -> tuple[int, float]:
    """Tokens and seconds of several answers."""
    return sum(len(lane.token_ids) for lane in lanes), sum(lane.seconds for lane in lanes)


def speed_up(outcomes: Sequence[RaceOutcome]) -> float | None:
    """Of all questions; None where a lane has nothing."""
    tokens, seconds = pace([each.localspec for each in outcomes])
    plain_tokens, plain_seconds = pace([each.plain for each in outcomes])
    if not (tokens and seconds and plain_tokens and plain_seconds):
        return None
    return (tokens / seconds) / (plain_tokens / plain_seconds)


def parting(
    plain: Sequence[int], localspec: Sequence[int], token_bytes: Callable[[int], bytes]
) -> Parting | None:
    """None where one sequence is a beginning of the other."""
    at = shared_prefix(plain, localspec)
    if at == min(len(plain), len(localspec)):
        return None
    texts = [token_bytes(tokens[at]).decode("utf-8", "replace") for tokens in (plain, localspec)]
    return Parting(at, *texts)

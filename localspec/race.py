"""A race of two answers that take turns: the one with the lower clock goes next.

So neither slows the other, and each progresses as it would alone. The outcome, also as text:
seconds, speed-up, and whether the answers are the same.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any, NamedTuple

from localspec.llama.sequences import shared_prefix
from localspec.stream import Stream
from localspec.text import counted, printable, rate

PLAIN, LOCALSPEC = 0, 1
"""Indices of the lanes."""
NAMES = ("plain", "localspec")


Ends = list[tuple[int, float]]
"""Tokens and clock of a lane at its start, and after each turn."""


class Lap(NamedTuple):
    """A lane's turn: text, tokens, and its clock at the end."""

    lane: int
    text: str
    token_ids: tuple[int, ...]
    seconds: float


@dataclass(slots=True)
class RaceLane:
    """One answer. Its clock counts only its own turns, prompt included, but no calibration."""

    stream: Stream
    token_ids: list[int] = field(default_factory=list)
    ends: Ends = field(default_factory=lambda: [(0, 0.0)])
    seconds: float = 0.0

    @property
    def cancelled(self) -> bool:
        return self.stream.finish_reason in (None, "cancelled")


def take_turns(
    lanes: Sequence[RaceLane], clock: Callable[[], float] = perf_counter
) -> Iterator[Lap]:
    """Take all turns until both answers end; on equal clocks the first lane goes first."""
    running = dict(enumerate(lanes))
    while running:
        number, lane = min(running.items(), key=lambda item: item[1].seconds)
        stats = lane.stream.stats
        measured, started = stats.calibration_seconds, clock()
        chunk = next(lane.stream, None)
        lane.seconds += clock() - started - (stats.calibration_seconds - measured)
        if chunk is None:
            del running[number]
            continue
        lane.token_ids += chunk.token_ids
        lane.ends.append((len(lane.token_ids), lane.seconds))
        yield Lap(number, chunk.text, chunk.token_ids, lane.seconds)


def lead(plain: Ends, ours: Ends) -> float | None:
    """Seconds by which localspec reached the last common token earlier; None without one."""
    common = min(plain[-1][0], ours[-1][0])
    if not common:
        return None
    return plain[bisect_left(plain, (common, 0.0))][1] - ours[bisect_left(ours, (common, 0.0))][1]


@dataclass(frozen=True, slots=True)
class TextDifference:
    """Where two answers first differ: after `position` tokens, and the texts of the next one."""

    position: int
    plain: str
    localspec: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceOutcome:
    """Both answers compared. `greedy`: whether they must be the same; `alike`: whether both had
    the same conversation; `difference`: None if they agree, or are not `alike`; `stock`: whether
    plain decoding used stock llama.cpp, and localspec its kernels; `proved`: whether localspec's
    answer was checked by decoding without drafts, with the kernels; `wrong`: its first token (from
    0) that differs from that."""

    plain: RaceLane
    localspec: RaceLane
    greedy: bool
    difference: TextDifference | None
    alike: bool = True
    stock: bool = False
    proved: bool = False
    wrong: int | None = None

    @property
    def interrupted(self) -> bool:
        return self.plain.cancelled or self.localspec.cancelled

    @property
    def equal(self) -> bool:
        """Whether the conversations and the common parts of the answers are the same."""
        return self.alike and self.difference is None

    def as_dict(self) -> dict[str, Any]:
        difference, wrong = self.difference, self.wrong
        return {
            "interrupted": self.interrupted,
            "greedy": self.greedy,
            "equal": self.equal,
            "plain": "llama.cpp" if self.stock else "localspec without drafts",
            "proof": {"bit_for_bit": wrong is None, "wrong": wrong} if self.proved else None,
            "parting": difference and asdict(difference),
            "speed_up": speed_up([self]),
            "lead_seconds": lead(self.plain.ends, self.localspec.ends),
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
    """The sums of tokens and seconds of several answers."""
    return sum(len(lane.token_ids) for lane in lanes), sum(lane.seconds for lane in lanes)


def speed_up(outcomes: Sequence[RaceOutcome]) -> float | None:
    """The speed-up over all questions; None if a lane has no tokens."""
    tokens, seconds = pace([outcome.localspec for outcome in outcomes])
    plain_tokens, plain_seconds = pace([outcome.plain for outcome in outcomes])
    if not (tokens and seconds and plain_tokens and plain_seconds):
        return None
    return (tokens / seconds) / (plain_tokens / plain_seconds)


def first_difference(
    plain: Sequence[int], localspec: Sequence[int], token_bytes: Callable[[int], bytes]
) -> TextDifference | None:
    """The first difference; None if one sequence is a prefix of the other."""
    at = shared_prefix(plain, localspec)
    if at == min(len(plain), len(localspec)):
        return None
    texts = [token_bytes(tokens[at]).decode("utf-8", "replace") for tokens in (plain, localspec)]
    return TextDifference(at, *texts)


MEASURED = 0.05
"""Minimum seconds of calibration that the summary mentions."""


def summary(outcomes: Sequence[RaceOutcome], calibration_seconds: float) -> str:
    """A line for each question, and one for all; no lane's time includes calibration."""
    measured = (
        f" · calibrated once before: {calibration_seconds:.1f} s"
        if calibration_seconds >= MEASURED
        else ""
    )
    if len(outcomes) == 1:
        return figures(outcomes[0]) + measured
    lines = [f"{n}: {figures(outcome)}" for n, outcome in enumerate(outcomes, 1)]
    gain = speed_up(outcomes)
    parts = [*([] if gain is None else [f"{gain:.2f}× as fast"]), *_paces(outcomes)]
    return "\n".join([*lines, f"all: {' · '.join(parts)}{measured}"])


def figures(outcome: RaceOutcome) -> str:
    """An outcome in one line: `2.79× as fast, 3.79 s sooner · plain (llama.cpp) 5.91 s, 22.1 tok/s
    · localspec 2.12 s, 61.8 tok/s`, and whether the texts are the same."""
    stats = outcome.localspec.stream.stats
    parts = [_gain(outcome), *_paces([outcome])]
    if stats.generated_tokens > 1:
        parts.append(f"{stats.tokens_per_pass:.2f} tokens/pass")
    parts += [_sameness(outcome), _proof(outcome)]
    if not stats.lossless:
        parts.append(f"lossy (rule {stats.rule})")
    start = ["interrupted"] if outcome.interrupted else []
    return " · ".join([*start, *filter(None, parts)])


def texts(outcomes: Sequence[RaceOutcome], further: Sequence[str] = ()) -> str:
    """All answers as plain text, each further question before its answers."""
    headings = ["", *(f"\n› {question.strip()}\n\n" for question in further)]
    return "".join(
        heading + _texts(outcome) for heading, outcome in zip(headings, outcomes, strict=False)
    )


def _texts(outcome: RaceOutcome) -> str:
    """Both answers, or one if they are the same."""
    plain, localspec = (lane.stream.text.strip() for lane in (outcome.plain, outcome.localspec))
    if plain == localspec:
        return f"plain and localspec:\n\n{plain}\n"
    return f"plain:\n\n{plain}\n\nlocalspec:\n\n{localspec}\n"


def _paces(outcomes: Sequence[RaceOutcome]) -> list[str]:
    plain, localspec = NAMES
    if outcomes[0].stock:
        plain += " (llama.cpp)"
    return [
        _pace(plain, [outcome.plain for outcome in outcomes]),
        _pace(localspec, [outcome.localspec for outcome in outcomes]),
    ]


def _pace(name: str, lanes: Sequence[RaceLane]) -> str:
    tokens, seconds = pace(lanes)
    if not tokens:
        return f"{name} no token yet"
    return f"{name} {seconds:.2f} s, {rate(tokens / seconds if seconds else 0.0)} tok/s"


def _gain(outcome: RaceOutcome) -> str:
    gain, ahead = speed_up([outcome]), lead(outcome.plain.ends, outcome.localspec.ends)
    if gain is None or ahead is None:
        return ""
    if outcome.interrupted or len(outcome.plain.token_ids) != len(outcome.localspec.token_ids):
        return f"{gain:.2f}× the tokens per second"
    return f"{gain:.2f}× as fast, {abs(ahead):.2f} s {'sooner' if ahead >= 0 else 'later'}"


def _sameness(outcome: RaceOutcome) -> str:
    both = min(len(outcome.plain.token_ids), len(outcome.localspec.token_ids))
    if not both:
        return ""
    if not outcome.alike:
        return "after answers that differed, so the texts may differ"
    if not outcome.greedy:
        if outcome.equal:
            return f"sampled, and yet the same {counted(both, 'token')}"
        lossless = outcome.localspec.stream.stats.lossless
        return "sampled, so the texts differ" if lossless else "the rule is lossy: texts differ"
    if outcome.difference is None:
        so_far = " so far" if outcome.interrupted else ""
        return f"same text, {counted(both, 'token')}{so_far}"
    ways = " or ".join(
        f"“{printable(text)}”" if text.strip() else "white space"
        for text in (outcome.difference.plain, outcome.difference.localspec)
    )
    return f"the texts differ from token {outcome.difference.position + 1} on: {ways}"


def _proof(outcome: RaceOutcome) -> str:
    """For texts that differ: whether localspec's is the same as without drafts."""
    if outcome.wrong is not None:
        return f"token {outcome.wrong + 1} differs from the answer without drafts; please report it"
    if outcome.equal:
        return ""
    if outcome.proved:
        return "not due to drafts: without them, the text is the same bit for bit"
    unexplained = outcome.alike and outcome.greedy
    return "rounding can do that; 'localspec verify' checks it" if unexplained else ""

"""Greedy answers of every way of drafting against plain decoding's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

from localspec.llama.target import shared_prefix
from localspec.verify.effort import Deadline, Effort
from localspec.verify.noise import Noise, measure
from localspec.verify.outcome import Outcome, left_out
from localspec.verify.subject import PlainAnswer, Subject

_AT_ONCE = 2
"""Sizes of passes whose rounding is measured along one answer."""
_CHUNK = 24
"""Tokens of the pieces that prompts are read in for the comparison of plain decoding with itself:
more than a draft has, so that the kernels are those of prompts."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where an answer stops being plain decoding's.

    Attributes:
        prompt: its number.
        position: tokens that both have in common.
        plain, said: the text of the token that each goes on with; "" where it ends.
        gap: logits between the two in plain decoding; infinite where the other token is not among
            the best there, or an answer ends early.
    """

    prompt: int
    position: int
    plain: str
    said: str
    gap: float


@dataclass(slots=True)
class WayComparison:
    """Answers of one way of drafting, as far as there was time."""

    answers: int = 0
    tokens: int = 0
    tested: int = 0
    accepted: int = 0
    divergences: tuple[Divergence, ...] = ()

    @property
    def largest(self) -> float:
        """The largest gap; 0 without a divergence."""
        return max((one.gap for one in self.divergences), default=0.0)


@dataclass(frozen=True, slots=True)
class PlainReference:
    """What other checks go by.

    Attributes:
        answers: plain ones.
        noise: of this model.
    """

    answers: tuple[PlainAnswer, ...]
    noise: Noise


def check_greedy(
    subject: Subject, effort: Effort, deadline: Deadline
) -> tuple[Outcome, PlainReference]:
    """All prompts in turn: plain decoding, its rounding, and every way beside it."""
    ways = subject.ways()
    compared = {name: WayComparison() for name in ways}
    itself, noise, answers = WayComparison(), Noise(), list[PlainAnswer]()
    prompts = subject.prompts(effort.prompts)
    possible = [size for size in effort.sizes if size <= subject.limits.max_draft + 1]
    for number, name in deadline.within(product(range(len(prompts)), ways)):
        told = f"greedy, prompt {number + 1} of {len(prompts)}"
        if number == len(answers):
            subject.tell(f"{told}: plain decoding")
            plain = subject.plain(prompts[number], effort.tokens)
            answers.append(plain)
            for i in range(_AT_ONCE if possible else 0):
                size = possible[(number + i) % len(possible)]
                noise.moved += measure(subject, plain, size)
            again = subject.plain(prompts[number], effort.tokens, _CHUNK)
            _add(itself, subject, number, plain, again.tokens)
        subject.tell(f"{told}: {name}")
        said = subject.answer(prompts[number], effort.tokens, ways[name])
        _add(compared[name], subject, number, answers[number], said.tokens)
        compared[name].tested += said.tested
        compared[name].accepted += said.accepted
    complete = all(one.answers == len(prompts) for one in compared.values())
    outcome = _outcome(
        compared, itself, noise, len(answers), complete=complete, same_bits=subject.same_bits
    )
    return outcome, PlainReference(tuple(answers), noise)


def divergence(
    subject: Subject, prompt: int, plain: PlainAnswer, tokens: Sequence[int]
) -> Divergence | None:
    """Where a token sequence parts from a plain answer, None where it does not."""
    at = shared_prefix(plain.tokens, tokens)
    if at == len(plain.tokens) == len(tokens):
        return None
    both = at < min(len(plain.tokens), len(tokens))
    texts = [
        subject.engine.token_bytes(one[at]).decode("utf-8", "replace") if at < len(one) else ""
        for one in (plain.tokens, tokens)
    ]
    gap = plain.best[at].gap(tokens[at]) if both else math.inf
    return Divergence(prompt, at, texts[0], texts[1], gap)


def _add(
    compared: WayComparison,
    subject: Subject,
    prompt: int,
    plain: PlainAnswer,
    tokens: Sequence[int],
) -> None:
    compared.answers += 1
    compared.tokens += len(tokens)
    found = divergence(subject, prompt, plain, tokens)
    if found is not None:
        compared.divergences += (found,)


def _outcome(
    compared: dict[str, WayComparison],
    itself: WayComparison,
    noise: Noise,
    prompts: int,
    *,
    complete: bool,
    same_bits: bool,
) -> Outcome:
    beyond = (
        "nothing may differ with localspec's kernels"
        if same_bits
        else f"more than rounding moves ({noise.most:.4f})"
    )
    # Without drafts as well: the prompt read in chunks.
    all_ways = {"plain decoding, in chunks,": itself, **compared} if same_bits else compared
    faults = [
        f"{name} parts from plain decoding at token {one.position} of prompt {one.prompt}, where "
        f"{_far(one.gap)}: {beyond}."
        for name, comparison in all_ways.items()
        for one in comparison.divergences
        if same_bits or one.gap > noise.most
    ]
    moved = sum(distance > 0.0 for distance in noise.moved)
    if same_bits and moved:
        faults.append(
            f"{moved} of {len(noise.moved)} rows differ in passes of other shapes, by "
            f"{noise.most:.4f} at most: {beyond}."
        )
    if not any(comparison.tested for comparison in compared.values()):
        faults.append("Nothing was drafted in any way, so that nothing was verified.")
    total = sum(one.answers for one in compared.values())
    parted = sum(len(one.divergences) for one in compared.values())
    largest = max((one.largest for one in compared.values()), default=0.0)
    summary = f"{total - parted} of {total} answers equal plain decoding's in every token" + (
        f"; the others part where {_far(largest)} at most. " if parted else ". "
    )
    if same_bits and not faults:
        summary += (
            f"Passes of other shapes, and prompts read in chunks of {_CHUNK}, give the same rows "
            f"bit for bit ({len(noise.moved)} rows)."
        )
    else:
        summary += (
            f"Passes of other shapes move logits by {noise.usual:.4f} mostly and "
            f"{noise.most:.4f} at most ({len(noise.moved)} rows). Plain decoding parts from itself "
            f"in {len(itself.divergences)} of {itself.answers} answers if the prompt is read in "
            f"chunks of {_CHUNK}."
        )
    unasked = [name for name, one in compared.items() if not one.answers]
    idle = [name for name, one in compared.items() if one.answers and not one.tested]
    summary += left_out(unasked, idle)
    figures = {
        "prompts": prompts,
        "bit_for_bit": same_bits,
        "noise": {"most": noise.most, "median": noise.usual, "rows": len(noise.moved)},
        "plain_against_itself": _figures(itself),
        "ways": {name: _figures(comparison) for name, comparison in compared.items()},
    }
    return Outcome(
        check="greedy",
        faults=tuple(faults),
        summary=summary,
        figures=figures,
        complete=complete,
    )


def _far(gap: float) -> str:
    if math.isinf(gap):
        return "one of them ends, or has a token far from plain decoding's best"
    return f"the two tokens are {gap:.4f} logits apart"


def _figures(comparison: WayComparison) -> dict[str, Any]:
    return {
        "answers": comparison.answers,
        "tokens": comparison.tokens,
        "tested": comparison.tested,
        "accepted": comparison.accepted,
        "divergences": [asdict(one) for one in comparison.divergences],
    }

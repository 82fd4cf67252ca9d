"""Greedy answers of every way of drafting against plain decoding's."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from itertools import product

from localspec.verify.checks import Deadline, Effort, Outcome, beyond, left_out
from localspec.verify.subject import PlainAnswer, Subject, measure

_AT_ONCE = 2
"""Sizes of passes whose rounding is measured along one answer."""
_CHUNK = 24
"""Pieces that a prompt is read in once more, where all must have the same bits."""
IN_CHUNKS = "plain decoding, in chunks,"


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where an answer to prompt number `prompt` differs from plain decoding's; see
    `Subject.parting`."""

    prompt: int
    position: int
    gap: float


@dataclass(slots=True)
class WayComparison:
    answers: int = 0
    tokens: int = 0
    tested: int = 0
    accepted: int = 0
    divergences: list[Divergence] = field(default_factory=list)


def check_greedy(subject: Subject, effort: Effort, deadline: Deadline) -> Outcome:
    """Every prompt: plain decoding, its rounding, and every way beside it."""
    ways = subject.ways()
    compared = {name: WayComparison() for name in ways}
    chunks, answers, moved = WayComparison(), subject.answers, subject.moved
    answers.clear()
    moved.clear()
    prompts = subject.prompts(effort.prompts)
    possible = [size for size in effort.sizes if size <= subject.limits.max_draft + 1]
    for number, name in deadline.within(product(range(len(prompts)), ways)):
        where = f"greedy, prompt {number + 1} of {len(prompts)}"
        if number == len(answers):
            subject.tell(f"{where}: plain decoding")
            answers.append(subject.plain(prompts[number], effort.tokens))
            for i in range(_AT_ONCE if possible else 0):
                size = possible[(number + i) % len(possible)]
                moved += measure(subject, answers[-1], size)
            if subject.same_bits:
                again = subject.plain(prompts[number], effort.tokens, _CHUNK)
                _add(chunks, subject, number, answers[number], again.tokens)
        subject.tell(f"{where}: {name}")
        answer = subject.answer(prompts[number], effort.tokens, ways[name])
        _add(compared[name], subject, number, answers[number], answer.tokens)
        compared[name].tested += answer.stats.tested
        compared[name].accepted += answer.stats.accepted
    complete = all(one.answers == len(prompts) for one in compared.values())
    return _outcome(subject, compared, chunks, complete=complete)


def _add(
    compared: WayComparison,
    subject: Subject,
    prompt: int,
    plain: PlainAnswer,
    tokens: tuple[int, ...],
) -> None:
    compared.answers += 1
    compared.tokens += len(tokens)
    if tokens != plain.tokens:
        at, gap = subject.parting(plain.prompt, plain.tokens, tokens)
        compared.divergences.append(Divergence(prompt, at, gap))


def _outcome(
    subject: Subject,
    compared: dict[str, WayComparison],
    chunks: WayComparison,
    *,
    complete: bool,
) -> Outcome:
    noise, rows = subject.noise, len(subject.moved)
    limit = subject.limit(noise)
    faults = [
        f"{name} differs from plain decoding at token {one.position} of prompt {one.prompt}, where "
        f"{_far(one.gap)}: {beyond(limit)}."
        for name, comparison in {IN_CHUNKS: chunks, **compared}.items()
        for one in comparison.divergences
        if not one.gap <= limit
    ]
    moved = sum(distance > 0.0 for distance in subject.moved)
    if subject.same_bits and moved:
        faults.append(
            f"{moved} of {rows} rows differ in passes of other shapes, by {noise:.4f} at most: "
            f"{beyond(limit)}."
        )
    if not any(comparison.tested for comparison in compared.values()):
        faults.append("Nothing was drafted in any way, so that nothing was verified.")
    total = sum(one.answers for one in compared.values())
    gaps = [one.gap for comparison in compared.values() for one in comparison.divergences]
    summary = f"{total - len(gaps)} of {total} answers equal plain decoding's in every token"
    summary += f"; the others differ where {_far(max(gaps))} at most. " if gaps else ". "
    if subject.same_bits and not faults:
        summary += (
            f"Passes of other shapes, and prompts read in chunks of {_CHUNK}, give the same rows "
            f"bit for bit ({rows} rows)."
        )
    else:
        summary += f"Passes of other shapes move logits by {noise:.4f} at most ({rows} rows)."
    unasked = [name for name, one in compared.items() if not one.answers]
    idle = [name for name, one in compared.items() if one.answers and not one.tested]
    return Outcome(
        check="greedy",
        faults=tuple(faults),
        summary=summary + left_out(unasked, idle),
        figures={
            "bit_for_bit": subject.same_bits,
            "noise": {"most": noise, "rows": rows},
            "ways": {name: asdict(comparison) for name, comparison in compared.items()},
        },
        complete=complete,
    )


def _far(gap: float) -> str:
    return "one of them ends" if math.isinf(gap) else f"the two tokens are {gap:.4f} logits apart"

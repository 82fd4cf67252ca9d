"""Compare greedy answers of every way of drafting with plain decoding, also under a grammar."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import product

from localspec.decoding.params import SamplingParams
from localspec.grammars.grammar import Grammar
from localspec.verify.checks import Deadline, Effort, Outcome, excess, skipped_ways
from localspec.verify.subject import PLAIN, PlainAnswer, Subject, SubjectAnswer, rounding_distances

_SIZES_PER_ANSWER = 2
"""Number of pass sizes whose rounding is measured along one answer."""
_CHUNK = 24
"""Tokens of the chunks in which prompts are read again, if all bits must be the same."""
IN_CHUNKS = "plain decoding, in chunks,"


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where an answer to prompt number `prompt` differs from plain decoding's; see
    `Subject.first_difference`."""

    prompt: int
    position: int
    gap: float


@dataclass(slots=True)
class WayComparison:
    """Greedy answers of one way, and where they differ from plain decoding."""

    answers: int = 0
    tokens: int = 0
    tested: int = 0
    accepted: int = 0
    divergences: list[Divergence] = field(default_factory=list)

    def add(
        self, subject: Subject, number: int, plain: PlainAnswer, answer: PlainAnswer | SubjectAnswer
    ) -> None:
        """Add an answer to prompt `number`."""
        self.answers += 1
        self.tokens += len(answer.tokens)
        if isinstance(answer, SubjectAnswer):
            self.tested += answer.stats.tested
            self.accepted += answer.stats.accepted
        if answer.tokens != plain.tokens:
            at, gap = subject.first_difference(plain.prompt, plain.tokens, answer.tokens)
            self.divergences.append(Divergence(number, at, gap))


def _faults(compared: Mapping[str, WayComparison], limit: float, where: str = "") -> list[str]:
    """A sentence for each gap that is not within the limit."""
    return [
        f"{name} differs from plain decoding{where} at token {point.position} of prompt "
        f"{point.prompt}, where {_gap_text(point.gap)}: {excess(limit)}."
        for name, way in compared.items()
        for point in way.divergences
        if not point.gap <= limit
    ]


def check_greedy(subject: Subject, effort: Effort, deadline: Deadline) -> Outcome:
    """For every prompt, compare plain decoding, its rounding, and every way of drafting."""
    ways = subject.ways()
    compared = {name: WayComparison() for name in ways}
    chunks, answers, moved = WayComparison(), subject.answers, subject.distances
    answers.clear()
    moved.clear()
    prompts = subject.prompts(effort.prompts)
    possible = [size for size in effort.sizes if size <= subject.limits.max_draft + 1]
    for number, name in deadline.within(product(range(len(prompts)), ways)):
        where = f"greedy, prompt {number + 1} of {len(prompts)}"
        if number == len(answers):
            subject.report(f"{where}: plain decoding")
            answers.append(subject.plain(prompts[number], effort.tokens))
            for i in range(_SIZES_PER_ANSWER if possible else 0):
                size = possible[(number + i) % len(possible)]
                moved += rounding_distances(subject, answers[-1], size)
            if subject.same_bits:
                again = subject.plain(prompts[number], effort.tokens, _CHUNK)
                chunks.add(subject, number, answers[number], again)
        subject.report(f"{where}: {name}")
        answer = subject.answer(prompts[number], effort.tokens, ways[name])
        compared[name].add(subject, number, answers[number], answer)
    complete = all(way.answers == len(prompts) for way in compared.values())
    return _outcome(subject, compared, chunks, complete=complete)


def _outcome(
    subject: Subject,
    compared: dict[str, WayComparison],
    chunks: WayComparison,
    *,
    complete: bool,
) -> Outcome:
    noise, rows = subject.noise, len(subject.distances)
    limit = subject.limit(noise)
    faults = _faults({IN_CHUNKS: chunks, **compared}, limit)
    moved = sum(distance > 0.0 for distance in subject.distances)
    if subject.same_bits and moved:
        faults.append(
            f"{moved} of {rows} rows differ in passes of other shapes, by at most {noise:.4f}: "
            f"{excess(limit)}."
        )
    if not any(way.tested for way in compared.values()):
        faults.append("No drafter drafted anything, so nothing was verified.")
    summary = f"{_equality(compared)} "
    if subject.same_bits and not faults:
        summary += (
            f"{rows:,} rows of logits are the same, bit for bit, in passes of other shapes "
            f"and with prompts read in chunks of {_CHUNK}."
        )
    else:
        summary += f"Passes of other shapes change logits by at most {noise:.4f} ({rows} rows)."
    idle = [name for name, way in compared.items() if way.answers and not way.tested]
    return Outcome(
        faults=tuple(faults),
        summary=summary + skipped_ways(_untried(compared), idle),
        figures={
            "bit_for_bit": subject.same_bits,
            "noise": {"most": noise, "rows": rows},
            "ways": {name: asdict(way) for name, way in compared.items()},
        },
        complete=complete,
    )


def _equality(compared: Mapping[str, WayComparison]) -> str:
    """A sentence on how many greedy answers equal plain decoding's."""
    gaps = [point.gap for way in compared.values() for point in way.divergences]
    total = sum(way.answers for way in compared.values())
    equal = f"{total - len(gaps)} of {total} answers equal those of plain decoding in every token"
    return equal + (f"; the others differ where {_gap_text(max(gaps))} at most." if gaps else ".")


def _untried(compared: Mapping[str, WayComparison]) -> list[str]:
    return [name for name, way in compared.items() if not way.answers]


def _gap_text(gap: float) -> str:
    return "one of them ends" if math.isinf(gap) else f"the two tokens are {gap:.4f} logits apart"


GRAMMAR = r"""
root ::= "{\"name\": " word ", \"age\": " age ", \"likes\": [" word (", " word){1,3} "]}"
word ::= "\"" [a-z]{2,10} "\""
age ::= [1-9] [0-9]?
"""
PROMPT = (
    'This is how it is done: {"name": "anna", "age": 7, "likes": ["apples", "birds"]}\n'
    "Now {} the same way, with a name, an age and a list of likes.\n"
)
SUBJECTS = ("describe a fox", "write about a teacher", "say who you are", "describe the sea")
SEED = 11
_MAX_TOKENS = 48


def check_grammar(subject: Subject, effort: Effort, deadline: Deadline) -> Outcome:
    """Check greedy and sampled answers of every way of drafting under a grammar."""
    ways, plain, broken = subject.ways(), list[PlainAnswer](), list[str]()
    compared = {name: WayComparison() for name in ways}
    for number, name in deadline.within(product(range(effort.answers), ways)):
        where = f"grammar, text {number + 1} of {effort.answers}"
        prompt = subject.tokens(PROMPT.replace("{}", SUBJECTS[number % len(SUBJECTS)], 1))
        answer = partial(subject.answer, prompt, _MAX_TOKENS, grammar=GRAMMAR)
        if number == len(plain):
            subject.report(f"{where}: plain decoding")
            plain.append(PlainAnswer(tuple(prompt), answer(PLAIN).tokens, ()))
        subject.report(f"{where}: {name}")
        greedy = answer(ways[name])
        compared[name].add(subject, number, plain[number], greedy)
        drawn = answer(ways[name], sampling=SamplingParams(temperature=1.0, seed=SEED + number))
        for result in (greedy, drawn):
            at = _broken_at(subject, result.tokens)
            if at is not None:
                broken.append(f"{name} breaks the grammar at token {at}: {result.text[:60]!r}.")
    faults = _faults(compared, subject.limit(subject.noise), " under the grammar") + broken
    asked = sum(way.answers for way in compared.values())
    obeyed = "" if broken else f"{asked} greedy and as many sampled answers obey the grammar. "
    return Outcome(
        faults=tuple(faults),
        summary=obeyed + _equality(compared) + skipped_ways(_untried(compared), ()),
        figures={
            "ways": {name: asdict(way) for name, way in compared.items()},
            "seed": SEED,
            "grammar": GRAMMAR.strip(),
        },
        complete=asked == effort.answers * len(ways),
    )


def _broken_at(subject: Subject, tokens: Sequence[int]) -> int | None:
    """The position at which an answer leaves the grammar, checked without the loop."""
    constraint = Grammar(subject.engine.model.vocabulary, GRAMMAR)
    for at, token in enumerate(tokens):
        if not constraint.allows(token):
            return at
        constraint.advance(token)
    return None

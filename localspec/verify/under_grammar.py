"""Answers that have to match a grammar: drafts do not lead out of it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from localspec.decoding.params import SamplingParams
from localspec.llama.grammar import Grammar
from localspec.llama.target import shared_prefix
from localspec.verify.effort import Deadline, Effort
from localspec.verify.outcome import Outcome, left_out
from localspec.verify.subject import PLAIN, Subject, SubjectAnswer

GRAMMAR = r"""
root ::= "{\"name\": " word ", \"age\": " age ", \"likes\": [" word (", " word){1,3} "]}"
word ::= "\"" [a-z]{2,10} "\""
age ::= [1-9] [0-9]?
"""
ASKED = (
    'This is how it is done: {"name": "anna", "age": 7, "likes": ["apples", "birds"]}\n'
    "Now {} the same way, with a name, an age and a list of likes.\n"
)
WHO = ("describe a fox", "write about a teacher", "say who you are", "describe the sea")
SEED = 11
_TOKENS = 48


def check_grammar(subject: Subject, effort: Effort, deadline: Deadline, noise: float) -> Outcome:
    """Greedy answers against plain ones, and sampled ones, of every way, token by token.

    Args:
        noise: gap between two logits that rounding may turn round; where rows must be the same
            bits, there is none.
    """
    faults: list[str] = []
    greedy = parted = sampled = tested = accepted = 0
    gaps: list[float] = []
    ways, asked, plain = subject.ways(), list[str](), list[SubjectAnswer]()
    for number, name in deadline.within(product(range(effort.answers), ways)):
        drafting, told = ways[name], f"grammar, text {number + 1} of {effort.answers}"
        prompt = subject.tokens(ASKED.replace("{}", WHO[number % len(WHO)], 1))
        if number == len(plain):
            subject.tell(f"{told}: plain decoding")
            plain.append(subject.answer(prompt, _TOKENS, PLAIN, grammar=GRAMMAR))
        subject.tell(f"{told}: {name}")
        asked.append(name)
        said = subject.answer(prompt, _TOKENS, drafting, grammar=GRAMMAR)
        greedy += 1
        gap = _gap(subject, plain[number], said)
        if gap is not None:
            parted += 1
            gaps.append(gap)
            if subject.same_bits or not abs(gap) <= noise:
                faults.append(
                    f"{name} parts from plain decoding under the grammar where the logits are "
                    f"{abs(gap):.4f} apart: "
                    + (
                        "nothing may differ with localspec's kernels."
                        if subject.same_bits
                        else f"more than rounding moves ({noise:.4f})."
                    )
                )
        sampling = SamplingParams(temperature=1.0, seed=SEED + number)
        drawn = subject.answer(prompt, _TOKENS, drafting, sampling=sampling, grammar=GRAMMAR)
        sampled += 1
        for one in (said, drawn):
            tested += one.tested
            accepted += one.accepted
            at = _broken_at(subject, one.tokens)
            if at is not None:
                faults.append(f"{name} breaks the grammar at token {at}: {one.text[:60]!r}.")
    summary = (
        f"{greedy} greedy and {sampled} sampled answers, {accepted} of {tested} tested drafts "
        f"accepted in them: "
        + ("all obey the grammar" if not faults else "not all are right")
        + f", {greedy - parted} of {greedy} greedy ones equal plain decoding's"
        + (f", the others part at gaps of {max(map(abs, gaps)):.4f} at most." if gaps else ".")
        + left_out([name for name in ways if name not in asked], ())
    )
    return Outcome(
        check="grammar",
        faults=tuple(faults),
        summary=summary,
        figures={
            "greedy": greedy,
            "parted": parted,
            "gaps": gaps,
            "sampled": sampled,
            "tested": tested,
            "accepted": accepted,
            "seed": SEED,
            "grammar": GRAMMAR.strip(),
        },
        complete=len(asked) == effort.answers * len(ways),
    )


def _broken_at(subject: Subject, tokens: Sequence[int]) -> int | None:
    """Where an answer leaves the grammar; None where it does not. The grammar is asked anew, one
    token after the other, with nothing of the loop."""
    constraint = Grammar(subject.engine.model.vocabulary, GRAMMAR)
    for at, token in enumerate(tokens):
        if not constraint.allows(token):
            return at
        constraint.advance(token)
    return None


def _gap(subject: Subject, plain: SubjectAnswer, said: SubjectAnswer) -> float | None:
    """Logits between the two tokens where an answer parts from plain decoding's; None where it does
    not, infinite where one of them ends."""
    at = shared_prefix(plain.tokens, said.tokens)
    if at == len(plain.tokens) == len(said.tokens):
        return None
    if at == min(len(plain.tokens), len(said.tokens)):
        return float("inf")
    prompt = plain.context[: len(plain.context) - len(plain.tokens)]
    subject.engine.clear()
    subject.row([*prompt, *plain.tokens[: max(0, at - 1)]])
    row = subject.row([*prompt, *plain.tokens[:at]])
    return float(row[plain.tokens[at]] - row[said.tokens[at]])

"""Answers that have to match a grammar: drafts do not lead out of it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from localspec.decoding.params import SamplingParams
from localspec.llama.grammar import Grammar
from localspec.verify.checks import Deadline, Effort, Outcome, beyond, left_out
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


def check_grammar(subject: Subject, effort: Effort, deadline: Deadline) -> Outcome:
    """Greedy answers against plain ones, and sampled ones, of every way."""
    faults, gaps, limit = list[str](), list[float](), subject.limit(subject.noise)
    tested = accepted = 0
    ways, asked, plain = subject.ways(), list[str](), list[SubjectAnswer]()
    for number, name in deadline.within(product(range(effort.answers), ways)):
        where = f"grammar, text {number + 1} of {effort.answers}"
        prompt = subject.tokens(ASKED.replace("{}", WHO[number % len(WHO)], 1))
        if number == len(plain):
            subject.tell(f"{where}: plain decoding")
            plain.append(subject.answer(prompt, _TOKENS, PLAIN, grammar=GRAMMAR))
        subject.tell(f"{where}: {name}")
        asked.append(name)
        sampling = SamplingParams(temperature=1.0, seed=SEED + number)
        greedy = subject.answer(prompt, _TOKENS, ways[name], grammar=GRAMMAR)
        drawn = subject.answer(prompt, _TOKENS, ways[name], sampling=sampling, grammar=GRAMMAR)
        if greedy.tokens != plain[number].tokens:
            gaps.append(subject.parting(prompt, plain[number].tokens, greedy.tokens)[1])
            if not gaps[-1] <= limit:
                faults.append(
                    f"{name} differs from plain decoding under the grammar where the logits are "
                    f"{gaps[-1]:.4f} apart: {beyond(limit)}."
                )
        for one in (greedy, drawn):
            tested += one.stats.tested
            accepted += one.stats.accepted
            at = _broken_at(subject, one.tokens)
            if at is not None:
                faults.append(f"{name} breaks the grammar at token {at}: {one.text[:60]!r}.")
    summary = (
        f"{len(asked)} greedy and as many sampled answers, {accepted} of {tested} tested drafts "
        f"accepted in them: {'not all are right' if faults else 'all obey the grammar'}, "
        f"{len(asked) - len(gaps)} of {len(asked)} greedy ones equal plain decoding's"
        + (f", the others differ at gaps of {max(gaps):.4f} at most." if gaps else ".")
        + left_out([name for name in ways if name not in asked], ())
    )
    return Outcome(
        check="grammar",
        faults=tuple(faults),
        summary=summary,
        figures={
            "answers": 2 * len(asked),
            "gaps": gaps,
            "tested": tested,
            "accepted": accepted,
            "seed": SEED,
            "grammar": GRAMMAR.strip(),
        },
        complete=len(asked) == effort.answers * len(ways),
    )


def _broken_at(subject: Subject, tokens: Sequence[int]) -> int | None:
    """Where an answer leaves the grammar, asked again token by token without the loop."""
    constraint = Grammar(subject.engine.model.vocabulary, GRAMMAR)
    for at, token in enumerate(tokens):
        if not constraint.allows(token):
            return at
        constraint.advance(token)
    return None

"""The KV cache after whatever can befall it, against a fresh reading of the same text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import product
from statistics import median
from threading import Timer

import numpy as np

from localspec.decoding.interfaces import PassRequest
from localspec.decoding.params import SamplingParams
from localspec.decoding.sampling import Row
from localspec.decoding.tree import ROOT, TokenTree
from localspec.errors import NativeError
from localspec.prompting.prompt import Tokens
from localspec.verify.effort import Deadline, Effort
from localspec.verify.greedy import PlainReference
from localspec.verify.outcome import Outcome, left_out
from localspec.verify.rows import Best, digest
from localspec.verify.subject import PlainAnswer, Subject

MARGIN = 2.0
"""A row may be so many times farther from a fresh one than the farthest of those that rounding was
measured on: among other rows there is now and then a farther one."""
SEED = 7
_SAMPLING = SamplingParams(temperature=1.0, top_k=40, top_p=1.0, min_p=0.0, seed=SEED)
_WRONG, _NODES = 2, 5
"""Wrong tokens behind a right one, and the most that a tree made here has."""
_APART = 4
"""Tokens between the wrong ones that are tried."""
_TOKENS = 12
_SOURCE = "verify"

Found = tuple[str, float]
"""What befell the cache, and how far a row behind it is from the fresh one."""


def check_cache_state(
    subject: Subject, reference: PlainReference, effort: Effort, deadline: Deadline
) -> Outcome:
    """Rejections, trees, cancelled answers and prompts that begin like others."""
    found: dict[str, list[float]] = defaultdict(list)
    fresh: list[float] = []
    failed: dict[str, str] = {}
    # Each text is read a dozen times over for every way: short ones.
    answers = sorted(reference.answers, key=lambda answer: len(answer.prompt))[: 1 + effort.answers]
    ways, asked = list(subject.ways()), list[str]()
    for number, name in deadline.within(product(range(len(answers)), ways)):
        answer, told = answers[number], f"caches, text {number + 1} of {len(answers)}"
        if name == ways[0]:
            subject.tell(f"{told}: rejection and trees")
            for what, moved in _trees(subject, answer, fresh):
                found[what].append(moved)
        others = [other for other in answers if other is not answer]
        asked.append(name)
        subject.tell(f"{told}: answers by {name}")
        try:
            for what, moved in _by_answers(subject, answer, name, others, fresh):
                found[what].append(moved)
        except NativeError as error:
            # What is left in a cache may be such that llama.cpp refuses the next pass.
            failed[name] = str(error)
    subject.engine.clear()
    limit = MARGIN * max(reference.noise.most, max(fresh, default=0.0))
    if subject.same_bits:
        limit = 0.0
        beyond = "nothing may differ with localspec's kernels"
    else:
        beyond = f"where rounding moves them by {limit / MARGIN:.4f}"
    faults = [
        f"After {what} the model reads another text than was committed: its logits are "
        f"{max(moved):.4f} from those of a fresh prompt, {beyond}."
        for what, moved in found.items()
        if not max(moved) <= limit
    ]
    faults += [f"An answer by {name} ended in an error: {why}" for name, why in failed.items()]
    rows = sum(map(len, found.values()))
    if not rows:
        faults.append("There was no text to compare, so nothing was verified.")
    most = max((max(moved) for moved in found.values()), default=0.0)
    return Outcome(
        check="KV cache",
        faults=tuple(faults),
        summary=f"{rows} rows after {', '.join(found)}: "
        + (
            "those of a fresh prompt, bit for bit."
            if subject.same_bits and not most
            else f"at most {most:.4f} logits from those of a fresh prompt; up to {limit:.4f} is "
            "rounding."
        )
        + left_out([name for name in ways if name not in asked], ()),
        figures={
            "limit": limit,
            "margin": MARGIN,
            "seed": SEED,
            "cases": {
                what: {"rows": len(moved), "most": max(moved), "median": median(moved)}
                for what, moved in found.items()
            },
        },
        complete=len(asked) == len(answers) * len(ways),
    )


def _trees(subject: Subject, answer: PlainAnswer, rounding: list[float]) -> Iterator[Found]:
    """As far as the target verifies what it takes.

    A committed branch leaves cells in another order, in which sums round otherwise than in any pass
    over a chain. What that moves is added to `rounding`, but only where it can be nothing else: the
    rows are the same bits whatever was rejected, and a text that really has a wrong token is at
    least twice as far away.
    """
    if subject.limits.max_draft >= _NODES:
        yield from (("rejections", moved) for moved, _ in _by_hand(subject, answer, branches=False))
    if subject.branches:
        found = list(_by_hand(subject, answer, branches=True))
        yield from (("tree commits", moved) for moved, _ in found)
        others = _by_hand(subject, answer, branches=True, rank=1 + _WRONG)
        same = [bits for _, bits in found] == [bits for _, bits in others]
        most = max((moved for moved, _ in found), default=0.0)
        if same and 2.0 * most <= _of_a_wrong_token(subject, answer):
            rounding.append(most)


def _of_a_wrong_token(subject: Subject, answer: PlainAnswer) -> float:
    """How far a row is at least moved by one wrong token, the last but one of its text."""
    tokens, best, found = answer.tokens, answer.best, list[float]()
    for at in range(0, len(tokens) - 2, _APART):
        text = [*answer.prompt, *tokens[:at], int(best[at].ids[1]), tokens[at + 1]]
        subject.target.rollback(text[:-2])
        found.append(best[at + 2].moved(subject.row(text)))
    return min(found, default=0.0)


def _by_hand(
    subject: Subject, answer: PlainAnswer, *, branches: bool, rank: int = 1
) -> Iterator[tuple[float, bytes]]:
    """Drafts at the seam of which the first token is right and the rest is not, the whole answer
    along; the rows behind them are those that plain decoding had. How far each row is from that,
    and a digest of its bits.

    Args:
        branches: have a wrong branch come before the right one.
        rank: among the best tokens, from which on wrong ones are taken.
    """
    tokens, best = answer.tokens, answer.best
    subject.engine.clear()
    known = list(answer.prompt)
    target, start = subject.target, 0

    def told(at: int, row: Row) -> tuple[float, bytes]:
        return best[at].moved(row), digest(row)

    while start + 2 < len(tokens):
        known.append(tokens[start])
        tree = TokenTree()
        if branches:
            wrong = tree.add(int(best[start + 1].ids[rank]), ROOT, _SOURCE)
            tree.add(int(best[start + 2].ids[rank + 1]), wrong, _SOURCE)
        right = tree.add(tokens[start + 1], ROOT, _SOURCE)
        node = right
        for more in range(_WRONG):
            node = tree.add(int(best[start + 2].ids[rank + more]), node, _SOURCE)
        rows = target.forward(PassRequest(known, tree)).rows
        if start:  # behind what was rejected before
            yield told(start + 1, rows[0])
            yield told(start + 2, rows[1 + right])
        target.commit(tree, [right])
        known.append(tokens[start + 1])
        start += 2
    if start < len(tokens):
        known.append(tokens[start])
        row = subject.row(known)
        if start + 1 < len(tokens):
            yield told(start + 1, row)


def _by_answers(
    subject: Subject,
    answer: PlainAnswer,
    name: str,
    others: Sequence[PlainAnswer],
    fresh: list[float],
) -> Iterator[Found]:
    """Sampled answers in one way, ended in every manner, and what the caches hold then."""
    engine, drafting = subject.engine, subject.ways()[name]
    said = subject.answer(answer.prompt, _TOKENS, drafting, sampling=_SAMPLING)
    yield "answers", _kept_against_fresh(subject, said.context)
    fresh.append(_fresh_against_fresh(subject, said.context))
    for manner in ("cancelled answers", "answers cancelled in a pass", "answers left"):
        stream = engine.stream(
            Tokens(answer.prompt), max_tokens=_TOKENS, sampling=_SAMPLING, drafting=drafting
        )
        with closing(stream):
            next(stream, None)
            next(stream, None)
            if manner == "cancelled answers":
                stream.cancel()
                next(stream, None)
            elif manner == "answers cancelled in a pass":
                pace = engine.plain_seconds(len(answer.prompt)) or 0.001
                timer = Timer(0.5 * pace, stream.cancel)
                timer.start()
                for _ in stream:
                    pass
                timer.join()
        yield manner, _kept_against_fresh(subject, stream.context)
    # A prompt that begins like what the cache holds, and goes on otherwise.
    for other in others[:1]:
        subject.answer(answer.prompt, _TOKENS, drafting, sampling=_SAMPLING, reuse=True)
        half = [*answer.prompt, *other.prompt[-_TOKENS:]]
        said = subject.answer(half, _TOKENS, drafting, sampling=_SAMPLING, reuse=True)
        yield "reuse", _kept_against_fresh(subject, said.context)


def _kept_against_fresh(subject: Subject, text: Sequence[int]) -> float:
    """A row that goes on from what is cached, against one of a fresh prompt."""
    engine = subject.engine
    kept = np.array(engine.logits(text))
    engine.clear()
    return Best(engine.logits(text)).moved(kept)


def _fresh_against_fresh(subject: Subject, text: Sequence[int]) -> float:
    """What reading the last token by itself moves, with nothing else in between."""
    engine = subject.engine
    engine.clear()
    anew = Best(engine.logits(text))
    engine.clear()
    subject.row(text[:-1])
    return anew.moved(subject.row(text))

"""The KV cache after rejections, trees and cancelled answers, against a fresh one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import product
from threading import Timer

import numpy as np

from localspec.decoding.interfaces import PassRequest
from localspec.decoding.params import SamplingParams
from localspec.decoding.tree import ROOT, TokenTree
from localspec.errors import NativeError
from localspec.prompting.prompt import Tokens
from localspec.verify.checks import Deadline, Effort, Outcome, beyond, left_out
from localspec.verify.subject import Best, PlainAnswer, Subject

MARGIN = 2.0
"""A row may be so many times farther from a fresh one than the farthest of measured rounding."""
SEED = 7
_SAMPLING = SamplingParams(temperature=1.0, top_k=40, top_p=1.0, min_p=0.0, seed=SEED)
_WRONG, _NODES = 2, 5
"""Wrong tokens after a right one, and the most nodes of a tree made here."""
_APART = 4
"""Tokens between the wrong ones that are tried."""
_TOKENS = 12
_SOURCE = "verify"
_TREES = "tree commits"

Found = tuple[str, float]
"""What happened to the cache, and how far a row after it is from the fresh one."""


def check_cache_state(subject: Subject, effort: Effort, deadline: Deadline) -> Outcome:
    """Rejections, trees, cancelled answers, and prompts that begin like others."""
    found: dict[str, list[float]] = defaultdict(list)
    fresh, wrong = list[float](), list[float]()
    failed: dict[str, str] = {}  # by what was tried
    only_rounding = True
    # Each text is read a dozen times over for every way: short ones.
    answers = sorted(subject.answers, key=lambda answer: len(answer.prompt))[: 1 + effort.answers]
    ways, asked = list(subject.ways()), list[str]()
    for number, name in deadline.within(product(range(len(answers)), ways)):
        answer, where = answers[number], f"caches, text {number + 1} of {len(answers)}"
        if name == ways[0]:
            subject.tell(f"{where}: rejection and trees")
            if subject.limits.max_draft >= _NODES:
                try:
                    moved = _by_hand(subject, answer, branches=False)
                    found["rejections"] += moved
                except NativeError as error:  # as below
                    failed["After rejections llama.cpp refused the next pass"] = str(error)
            if subject.branches:
                by_trees = _by_hand(subject, answer, branches=True)
                found[_TREES] += by_trees
                if not subject.same_bits:
                    # What was rejected must not matter, or it is no rounding.
                    others_rejected = _by_hand(subject, answer, branches=True, rank=1 + _WRONG)
                    only_rounding = only_rounding and by_trees == others_rejected
                    wrong += _wrong_tokens(subject, answer)
        others = [other for other in answers if other is not answer]
        asked.append(name)
        subject.tell(f"{where}: answers by {name}")
        try:
            for what, distance in _by_answers(subject, answer, name, others, fresh):
                found[what].append(distance)
        except NativeError as error:  # what is left in a cache may make llama.cpp refuse a pass
            failed[f"An answer by {name} ended in an error"] = str(error)
    subject.engine.clear()
    rounding = MARGIN * max([subject.noise, *fresh])
    limits = dict.fromkeys(found, rounding)
    if wrong and only_rounding:
        # A committed branch leaves cells in another order, in which sums round otherwise. It has
        # to be at most half as far away as a text that has a wrong token.
        limits[_TREES] = max(rounding, min(wrong) / 2.0)
    faults = [f"{what}: {why}" for what, why in failed.items()]
    for what, moved in found.items():
        limit = subject.limit(limits[what])
        if any(not distance <= limit for distance in moved if distance):
            faults.append(
                f"After {what} the model reads another text than was committed: its logits are "
                f"{max(moved):.4f} from those of a fresh prompt: {beyond(limit)}."
            )
    rows, most = sum(map(len, found.values())), max(map(max, found.values()), default=0.0)
    if not (rows or faults):
        faults.append("There was no text to compare, so nothing was verified.")
    same = "those of a fresh prompt, bit for bit."
    near = f"at most {most:.4f} logits from those of a fresh prompt."
    return Outcome(
        check="KV cache",
        faults=tuple(faults),
        summary=f"{rows} rows after {', '.join(found)}: {near if most else same}"
        + left_out([name for name in ways if name not in asked], ()),
        figures={
            "seed": SEED,
            "cases": {
                what: {"rows": len(moved), "most": max(moved), "limit": limits[what]}
                for what, moved in found.items()
            },
        },
        complete=len(asked) == len(answers) * len(ways),
    )


def _wrong_tokens(subject: Subject, answer: PlainAnswer) -> list[float]:
    """How far rows are moved by one wrong token, the last but one of their text."""
    tokens, best, found = answer.tokens, answer.best, list[float]()
    for at in range(0, len(tokens) - 2, _APART):
        text = [*answer.prompt, *tokens[:at], int(best[at].ids[1]), tokens[at + 1]]
        subject.target.rollback(text[:-2])
        found.append(best[at + 2].moved(subject.row(text)))
    return found


def _by_hand(
    subject: Subject, answer: PlainAnswer, *, branches: bool, rank: int = 1
) -> list[float]:
    """How far rows move after drafts whose first token alone is right, along the whole answer.
    `branches`: have a wrong branch come before the right one; `rank`: the likeliest of the wrong
    tokens, 1 for the second best of its place."""
    tokens, best, found = answer.tokens, answer.best, list[float]()
    subject.engine.clear()
    known = list(answer.prompt)
    target, start = subject.target, 0
    while start + 2 < len(tokens):
        known.append(tokens[start])
        tree = TokenTree()
        if branches:
            wrong = tree.add(int(best[start + 1].ids[rank]), ROOT, _SOURCE)
            tree.add(int(best[start + 2].ids[rank + 1]), wrong, _SOURCE)
        right = node = tree.add(tokens[start + 1], ROOT, _SOURCE)
        for more in range(_WRONG):
            node = tree.add(int(best[start + 2].ids[rank + more]), node, _SOURCE)
        rows = target.forward(PassRequest(known, tree)).rows
        if start:  # after a rejection
            found.append(best[start + 1].moved(rows[0]))
            found.append(best[start + 2].moved(rows[1 + right]))
        target.commit(tree, [right])
        known.append(tokens[start + 1])
        start += 2
    if start + 1 < len(tokens):
        found.append(best[start + 1].moved(subject.row([*known, tokens[start]])))
    return found


def _by_answers(
    subject: Subject,
    answer: PlainAnswer,
    name: str,
    others: Sequence[PlainAnswer],
    fresh: list[float],
) -> Iterator[Found]:
    """Sampled answers, ended in every manner, and what the caches hold then. `fresh` gets how far
    reading the last token in a pass of its own moves a row."""
    engine, drafting = subject.engine, subject.ways()[name]
    whole = subject.answer(answer.prompt, _TOKENS, drafting, sampling=_SAMPLING)
    yield "answers", _kept_against_fresh(subject, whole.context)
    if not subject.same_bits:
        fresh.append(_last_token_alone(subject, whole.context))
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
    # A prompt that begins like the text in the cache, and continues otherwise.
    for other in others[:1]:
        subject.answer(answer.prompt, _TOKENS, drafting, sampling=_SAMPLING, reuse=True)
        half = [*answer.prompt, *other.prompt[-_TOKENS:]]
        whole = subject.answer(half, _TOKENS, drafting, sampling=_SAMPLING, reuse=True)
        yield "reuse", _kept_against_fresh(subject, whole.context)


def _kept_against_fresh(subject: Subject, text: Sequence[int]) -> float:
    """A row that continues from the cache, against one of a fresh prompt."""
    engine = subject.engine
    kept = np.array(engine.logits(text))
    engine.clear()
    return Best(engine.logits(text)).moved(kept)


def _last_token_alone(subject: Subject, text: Sequence[int]) -> float:
    subject.engine.clear()
    fresh = Best(subject.engine.logits(text))
    subject.engine.clear()
    subject.row(text[:-1])
    return fresh.moved(subject.row(text))

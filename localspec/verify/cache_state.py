"""Compare the KV cache after rejections, trees and cancelled answers with a fresh one."""

from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import product
from threading import Timer

import numpy as np

from localspec.decoding.interfaces import PassRequest
from localspec.decoding.params import SamplingParams
from localspec.decoding.tree import ROOT, TokenTree
from localspec.errors import NativeError
from localspec.prompting.prompt import Tokens
from localspec.verify.checks import Deadline, Effort, Outcome, excess, skipped_ways
from localspec.verify.subject import BestTokens, PlainAnswer, Subject

MARGIN = 2.0
"""Largest distance of a row from a fresh one, as a multiple of the largest rounding measured."""
SEED = 7
_SAMPLING = SamplingParams(temperature=1.0, top_k=40, top_p=1.0, min_p=0.0, seed=SEED)
_WRONG, _NODES = 2, 5
"""Wrong tokens after a right one, and the largest tree made here."""
_INTERVAL = 4
"""Tokens between positions at which a wrong one is tried."""
_TOKENS = 12
_SOURCE = "verify"
_TREES = "tree commits"


@dataclass(slots=True)
class _Distances:
    """Distances of rows from fresh ones, in logits. `found`: by what happened to the cache before;
    `fresh`: by a separate pass over the last token; `wrong`: by a wrong token in the text;
    `only_rounding`: whether those after trees are the same for other rejected tokens; `failed`:
    errors of llama.cpp, by what failed."""

    found: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    fresh: list[float] = field(default_factory=list)
    wrong: list[float] = field(default_factory=list)
    only_rounding: bool = True
    failed: dict[str, str] = field(default_factory=dict)

    def add(self, what: str, *distances: float) -> None:
        if distances:  # an answer of one token has none
            self.found[what] += distances

    def limits(self, noise: float) -> dict[str, float]:
        """The largest distance by rounding."""
        rounding = MARGIN * max([noise, *self.fresh])
        limits = dict.fromkeys(self.found, rounding)
        if self.wrong and self.only_rounding:
            # A committed branch leaves cells in another order, in which sums round differently. The
            # distance may be at most half of that of a text with a wrong token.
            limits[_TREES] = max(rounding, min(self.wrong) / 2.0)
        return limits


def check_cache_state(subject: Subject, effort: Effort, deadline: Deadline) -> Outcome:
    """Check rejections, trees, cancelled answers, and prompts with a common prefix."""
    moved = _Distances()
    # Short texts only: each is read a dozen times for every way of drafting.
    answers = sorted(subject.answers, key=lambda answer: len(answer.prompt))[: 1 + effort.answers]
    ways, done = list(subject.ways()), list[str]()
    for number, name in deadline.within(product(range(len(answers)), ways)):
        answer, where = answers[number], f"caches, text {number + 1} of {len(answers)}"
        if name == ways[0]:
            subject.report(f"{where}: rejection and trees")
            _add_drafts(moved, subject, answer)
        others = [other for other in answers if other is not answer]
        done.append(name)
        subject.report(f"{where}: answers by {name}")
        try:
            _add_answers(moved, subject, answer, name, others)
        except NativeError as error:  # llama.cpp may refuse a pass over stale cells
            moved.failed[f"An answer by {name} ended in an error"] = str(error)
    subject.engine.clear()
    found, limits = moved.found, moved.limits(subject.noise)
    faults = [f"{what}: {why}" for what, why in moved.failed.items()]
    for what, distances in found.items():
        limit = subject.limit(limits[what])
        if any(not distance <= limit for distance in distances if distance):
            faults.append(
                f"After {what} the cache does not match the committed text: its logits differ by "
                f"{max(distances):.4f} from those of a fresh prompt: {excess(limit)}."
            )
    rows, most = sum(map(len, found.values())), max(map(max, found.values()), default=0.0)
    if not (rows or faults):
        faults.append("There was no text to compare, so nothing was verified.")
    same = "equal to those of a fresh prompt, bit for bit."
    near = f"within {most:.4f} of those of a fresh prompt."
    return Outcome(
        faults=tuple(faults),
        summary=f"{rows:,} rows of logits after {', '.join(found)}: {near if most else same}"
        + skipped_ways([name for name in ways if name not in done], ()),
        figures={
            "seed": SEED,
            "cases": {
                what: {"rows": len(distances), "most": max(distances), "limit": limits[what]}
                for what, distances in found.items()
            },
        },
        complete=len(done) == len(answers) * len(ways),
    )


def _add_drafts(moved: _Distances, subject: Subject, answer: PlainAnswer) -> None:
    """Add distances after rejections and trees along an answer."""
    if subject.limits.max_draft >= _NODES:
        try:
            moved.add("rejections", *_distances_after_drafts(subject, answer, branches=False))
        except NativeError as error:  # as for answers
            moved.failed["After rejections llama.cpp refused the next pass"] = str(error)
    if subject.branches:
        by_trees = _distances_after_drafts(subject, answer, branches=True)
        moved.add(_TREES, *by_trees)
        if not subject.same_bits:
            # If the distance depends on the rejected tokens, it is not rounding.
            others = _distances_after_drafts(subject, answer, branches=True, rank=1 + _WRONG)
            moved.only_rounding = moved.only_rounding and by_trees == others
            moved.wrong += _wrong_token_distances(subject, answer)


def _wrong_token_distances(subject: Subject, answer: PlainAnswer) -> list[float]:
    """Distances of rows that a wrong second-to-last token of a text causes."""
    tokens, best, found = answer.tokens, answer.best, list[float]()
    for at in range(0, len(tokens) - 2, _INTERVAL):
        text = [*answer.prompt, *tokens[:at], int(best[at].ids[1]), tokens[at + 1]]
        subject.target.rollback(text[:-2])
        found.append(best[at + 2].distance(subject.row(text)))
    return found


def _distances_after_drafts(
    subject: Subject, answer: PlainAnswer, *, branches: bool, rank: int = 1
) -> list[float]:
    """How far rows move after drafts of which only the first token is right, along the answer.
    `branches`: put a wrong branch before the right one; `rank`: rank of the likeliest wrong token,
    1 for the second best."""
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
            found.append(best[start + 1].distance(rows[0]))
            found.append(best[start + 2].distance(rows[1 + right]))
        target.commit(tree, [right])
        known.append(tokens[start + 1])
        start += 2
    if start + 1 < len(tokens):
        found.append(best[start + 1].distance(subject.row([*known, tokens[start]])))
    return found


def _add_answers(
    moved: _Distances, subject: Subject, answer: PlainAnswer, name: str, others: list[PlainAnswer]
) -> None:
    """Add distances after sampled answers that end in different ways."""
    engine, drafting = subject.engine, subject.ways()[name]
    whole = subject.answer(answer.prompt, _TOKENS, drafting, sampling=_SAMPLING)
    moved.add("answers", _distance_from_fresh(subject, whole.context))
    if not subject.same_bits:
        moved.fresh.append(_single_token_distance(subject, whole.context))
    for ending in ("cancelled answers", "answers cancelled mid-pass", "abandoned answers"):
        stream = engine.stream(
            Tokens(answer.prompt), max_tokens=_TOKENS, sampling=_SAMPLING, drafting=drafting
        )
        with closing(stream):
            next(stream, None)
            next(stream, None)
            if ending == "cancelled answers":
                stream.cancel()
                next(stream, None)
            elif ending == "answers cancelled mid-pass":
                pace = engine.plain_seconds(len(answer.prompt)) or 0.001
                timer = Timer(0.5 * pace, stream.cancel)
                timer.start()
                for _ in stream:
                    pass
                timer.join()
        moved.add(ending, _distance_from_fresh(subject, stream.context))
    # A prompt that shares its beginning with the text in the cache.
    for other in others[:1]:
        subject.answer(answer.prompt, _TOKENS, drafting, sampling=_SAMPLING, reuse=True)
        half = [*answer.prompt, *other.prompt[-_TOKENS:]]
        whole = subject.answer(half, _TOKENS, drafting, sampling=_SAMPLING, reuse=True)
        moved.add("reuse", _distance_from_fresh(subject, whole.context))


def _distance_from_fresh(subject: Subject, text: Sequence[int]) -> float:
    """The distance of a row that uses the cache from one of a fresh prompt."""
    engine = subject.engine
    kept = np.array(engine.logits(text))
    engine.clear()
    return BestTokens(engine.logits(text)).distance(kept)


def _single_token_distance(subject: Subject, text: Sequence[int]) -> float:
    subject.engine.clear()
    fresh = BestTokens(subject.engine.logits(text))
    subject.engine.clear()
    subject.row(text[:-1])
    return fresh.distance(subject.row(text))

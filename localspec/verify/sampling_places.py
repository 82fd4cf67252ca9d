"""Texts after which sampling shows something: the target is undecided, and the n-gram drafts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from localspec.decoding.sampling import Sampler
from localspec.verify.effort import Deadline
from localspec.verify.subject import PlainAnswer, Subject

MOST, LEAST = 0.85, 0.03
"""Where the target prefers one token more, or the n-gram's proposal less, an acceptance rule can do
little wrong.
"""
_PHRASE = 4
_STEP = 3


def sampling_places(
    subject: Subject,
    answers: Sequence[PlainAnswer],
    sampler: Sampler,
    count: int,
    deadline: Deadline,
) -> list[tuple[int, ...]]:
    """Token ids of texts: a prompt with a plain answer, and a phrase of that answer once more.

    Chosen by the target's probabilities alone; those where the n-gram's proposal is unlikely come
    last.
    """
    found: list[tuple[int, ...]] = []
    spare: list[tuple[int, ...]] = []
    searches = [_of_answer(subject, answer, sampler) for answer in answers]
    while searches and len(found) < count and not (deadline.over and found):
        for search in list(searches):
            place, serves = next(search, ((), False))
            if not place:
                searches.remove(search)
            else:
                (found if serves else spare).append(place)
    return [*found, *spare][:count]


def _of_answer(
    subject: Subject, answer: PlainAnswer, sampler: Sampler
) -> Iterator[tuple[tuple[int, ...], bool]]:
    """Places where the target is undecided, and whether it may say what the n-gram proposes."""
    text = [*answer.prompt, *answer.tokens]
    ends = subject.engine.model.vocabulary.ends
    while text and ends(text[-1]):
        text.pop()
    if len(answer.tokens) < 2 * _PHRASE:
        return
    for start in range(len(answer.prompt), len(text) - _PHRASE - 1, _STEP):
        place = (*text, *text[start : start + _PHRASE])
        subject.tell("looking for places where the model is undecided")
        subject.target.rollback(text)
        p = sampler.distribution(subject.row(place))
        if p.probs.max() <= MOST:
            yield place, p.prob(text[start + _PHRASE]) >= LEAST

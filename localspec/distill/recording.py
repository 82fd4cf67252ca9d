"""Records a target's answers with their likeliest tokens, many prompts in one pass."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec.decoding.sampling import Rows
from localspec.distill.trace import TraceRecord
from localspec.llama.batch import PassPart
from localspec.llama.shared_context import SharedContext

HELD_BACK_SHARE = 0.05
"""Of the prompts, by their hash."""
TEMPERATURES = (0.0, 0.7, 1.0)
"""In turns."""

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class RecordedQuestion:
    """A prompt to be answered, of at least one token. `turn` counts the answers to the same prompt;
    `given`: the answer, where a text is only to be read."""

    tokens: tuple[int, ...]
    turn: int = 0
    given: tuple[int, ...] = ()

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(np.asarray(self.tokens, "<i4").tobytes()).digest()

    @property
    def key(self) -> bytes:
        asked = self.digest + self.turn.to_bytes(4, "little")
        return hashlib.sha256(asked + np.asarray(self.given, "<i4").tobytes()).digest()[:16]

    @property
    def held_back(self) -> bool:
        """Whether it is kept from training: all answers to a prompt, or none."""
        shown = self.digest if not self.given else self.key
        return shown[0] < HELD_BACK_SHARE * 256


def likeliest(rows: Rows, k: int) -> tuple[Array, Array, Array]:
    """Of logits [n, vocabulary]: ids [n, k], falling; log p [n, k]; what is left of p [n]."""
    log_p = log_softmax(rows)
    k = min(k, rows.shape[1])
    ids = np.argpartition(log_p, -k, axis=1)[:, -k:]
    found = np.take_along_axis(log_p, ids, 1)
    order = np.argsort(-found, axis=1, kind="stable")
    ids, found = np.take_along_axis(ids, order, 1), np.take_along_axis(found, order, 1)
    return ids, found, np.maximum(0.0, 1.0 - np.exp(found).sum(1))


def log_softmax(rows: Rows) -> Rows:
    shifted = rows - rows.max(1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(1, keepdims=True)), np.float32)


def drawn(rows: Rows, temperature: float, random: np.random.Generator) -> int:
    if not temperature:
        return int(rows.argmax())
    p = np.exp((rows - rows.max()) / temperature, dtype=np.float64)
    return int(min(np.searchsorted(np.cumsum(p), random.random() * p.sum()), len(rows) - 1))


@dataclass(slots=True)
class _Answer:
    """`text`: prompt and answer so far, or all of a given one that is read; `read` of it are."""

    question: RecordedQuestion
    sequence: int
    temperature: float
    random: np.random.Generator
    text: list[int]
    read: int = 0
    rows: list[tuple[Array, Array, Array]] = field(default_factory=list)

    @property
    def said(self) -> Sequence[int]:
        return self.question.given or self.text[len(self.question.tokens) :]


class Recorder:
    """Answers many prompts at once, with a lot of `context` for each. `k`: likeliest tokens to
    keep; `longest`: tokens of an answer at most; `progress`: called after each answer with tokens
    recorded so far."""

    def __init__(
        self,
        context: SharedContext,
        k: int,
        *,
        longest: int,
        seed: int = 0,
        temperatures: Sequence[float] = TEMPERATURES,
        progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._context, self._k, self._longest = context, k, longest
        self._seed, self._temperatures, self._progress = seed, temperatures, progress
        self.tokens = 0

    def record(
        self,
        questions: Iterable[RecordedQuestion],
        keys: Container[bytes],
        append: Callable[[TraceRecord], object],
        most: int | None = None,
    ) -> None:
        """Have questions answered whose key is not there yet, and each answer appended; none begins
        after `most` tokens. Raises what `append` does, and as `SharedContext`."""
        waiting = self._due(questions, keys, most)
        seats = [self._context.lot(i).first for i in range(self._context.answers)]
        at_work: list[_Answer] = []
        while True:
            while seats and (question := next(waiting, None)) is not None:
                at_work.append(self._begun(question, seats.pop()))
            if not at_work:
                return
            self._pass(at_work)
            for answer in [one for one in at_work if self._over(one)]:
                at_work.remove(answer)
                self._context.drop(answer.sequence)
                seats.append(answer.sequence)
                append(_record(answer))
                self.tokens += len(answer.said)
                self._progress(self.tokens)

    def _due(
        self, questions: Iterable[RecordedQuestion], keys: Container[bytes], most: int | None
    ) -> Iterator[RecordedQuestion]:
        begun: set[bytes] = set()
        for question in questions:
            if most is not None and self.tokens >= most:
                return
            room = self._context.capacity - len(question.tokens) - len(question.given)
            if room < 1 or question.key in keys or question.key in begun:
                continue
            begun.add(question.key)
            yield question

    def _begun(self, question: RecordedQuestion, sequence: int) -> _Answer:
        seed = np.random.SeedSequence([self._seed, *question.key])
        which = (question.digest[1] + question.turn) % len(self._temperatures)
        random = np.random.Generator(np.random.PCG64(seed))
        text = [*question.tokens, *question.given[:-1]]
        return _Answer(question, sequence, self._temperatures[which], random, text)

    def _pass(self, at_work: list[_Answer]) -> None:
        context = self._context
        room, rows = context.batch - len(at_work), context.rows - len(at_work)
        parts = []
        for answer in at_work:
            part = self._part(answer, 1 + max(0, room), 1 + max(0, rows))
            room, rows = room - len(part.tokens) + 1, rows - max(0, part.outputs - 1)
            parts.append(part)
        found = context.decode(parts)
        giving = [(answer, rows) for answer, rows in zip(at_work, found, strict=True) if len(rows)]
        if not giving:
            return
        told = likeliest(np.concatenate([rows for _, rows in giving]), self._k)
        ends = np.cumsum([len(rows) for _, rows in giving])[:-1]
        split = zip(*(np.split(each, ends) for each in told), strict=True)
        for (answer, logits), (ids, log_p, rest) in zip(giving, split, strict=True):
            answer.rows.append((ids, log_p, rest))
            if not answer.question.given:
                answer.text.append(drawn(logits[-1], answer.temperature, answer.random))

    def _part(self, answer: _Answer, room: int, rows: int) -> PassPart:
        start, last = answer.read, len(answer.question.tokens) - 1
        end = min(len(answer.text), start + room, max(start, last) + rows)
        answer.read = end
        outputs = max(0, end - max(start, last))
        return PassPart(answer.text[start:end], range(start, end), ((answer.sequence,),), outputs)

    def _over(self, answer: _Answer) -> bool:
        said = answer.said
        if answer.question.given:
            return answer.read == len(answer.text)
        full = len(answer.text) >= self._context.capacity or len(said) >= self._longest
        return bool(said) and (full or self._context.model.vocabulary.ends(said[-1]))


def _record(answer: _Answer) -> TraceRecord:
    ids, log_p, rest = (np.concatenate(each) for each in zip(*answer.rows, strict=True))
    return TraceRecord(
        answer.question.key,
        np.asarray(answer.question.tokens, np.int64),
        np.asarray(answer.said, np.int64),
        ids,
        log_p,
        rest,
        answer.question.held_back,
        bool(answer.question.given),
    )

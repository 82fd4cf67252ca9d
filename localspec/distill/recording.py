"""Record a target's answers with their likeliest tokens, many prompts in one pass."""

import hashlib
import math
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec.decoding.sampling import Rows
from localspec.distill.trace import TraceRecord
from localspec.llama.batch import PassPart
from localspec.llama.model import Model
from localspec.llama.options import ModelOptions
from localspec.llama.shared_context import SharedContext

SLOTS = 24
"""Concurrent answers."""
HELD_BACK_SHARE = 0.05
"""Share of the prompts, chosen by their hash."""
TEMPERATURES = (0.0, 0.7, 1.0)
"""Temperatures of answers, used alternately."""

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class RecordedQuestion:
    """A prompt to answer, of at least one token. `turn` counts the answers to the same prompt;
    `given`: the answer, if a text is only read."""

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
        """Whether the answer is held back from training: all answers to a prompt, or none."""
        return (self.key if self.given else self.digest)[0] < HELD_BACK_SHARE * 256


def top_tokens(rows: Rows, k: int) -> tuple[Array, Array, Array]:
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


def sample_token(rows: Rows, temperature: float, random: np.random.Generator) -> int:
    if not temperature:
        return int(rows.argmax())
    p = np.exp((rows - rows.max()) / temperature, dtype=np.float64)
    return int(min(np.searchsorted(np.cumsum(p), random.random() * p.sum()), len(rows) - 1))


@contextmanager
def open_context(path: Path, threads: int, context: int) -> Iterator[SharedContext]:
    """Open a model for many concurrent questions, with up to `context` tokens each."""
    options = ModelOptions(parallel=SLOTS, threads=threads)
    with Model(path, options) as model:
        options = replace(options, context=min(context, model.trained_context))
        with closing(SharedContext(model, options, each=True)) as shared:
            yield shared


@dataclass(slots=True)
class _Answer:
    """An answer in progress. `text`: prompt and answer so far, or a given text; `read`: number of
    its tokens that were read; `limit`: on its length."""

    question: RecordedQuestion
    sequence: int
    temperature: float
    random: np.random.Generator
    limit: int
    text: list[int]
    read: int = 0
    rows: list[tuple[Array, Array, Array]] = field(default_factory=list)

    @property
    def generated(self) -> Sequence[int]:
        return self.question.given or self.text[len(self.question.tokens) :]

    def record(self) -> TraceRecord:
        question = self.question
        ids, log_p, rest = (np.concatenate(each) for each in zip(*self.rows, strict=True))
        return TraceRecord(
            question.key,
            np.asarray(question.tokens, np.int64),
            np.asarray(self.generated, np.int64),
            ids,
            log_p,
            rest,
            question.held_back,
            bool(question.given),
        )


def record_answers(
    context: SharedContext,
    questions: Iterable[RecordedQuestion],
    k: int,
    *,
    longest: int,
    seed: int = 0,
    temperatures: Sequence[float] = TEMPERATURES,
    known: Container[bytes] = (),
    most: float = math.inf,
) -> Iterator[TraceRecord]:
    """The answers, as they are finished, each with its `k` likeliest tokens; many are given at
    once. Left out are questions whose key is `known`, and those without room for an answer.
    `longest`: tokens of an answer at most; `most`: of all answers. Raises as `SharedContext`."""

    def due() -> Iterator[RecordedQuestion]:
        begun: set[bytes] = set()
        for question in questions:
            room = context.capacity - len(question.tokens) - len(question.given)
            if room > 0 and question.key not in known and question.key not in begun:
                begun.add(question.key)
                yield question

    def start(question: RecordedQuestion, sequence: int, limit: int) -> _Answer:
        random = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *question.key])))
        which = (question.digest[1] + question.turn) % len(temperatures)
        text = [*question.tokens, *question.given[:-1]]
        return _Answer(question, sequence, temperatures[which], random, limit, text)

    def is_complete(answer: _Answer) -> bool:
        generated = answer.generated
        if answer.question.given:
            return answer.read == len(answer.text)
        full = len(answer.text) >= context.capacity or len(generated) >= answer.limit
        return bool(generated) and (full or context.model.vocabulary.ends(generated[-1]))

    waiting, active = due(), list[_Answer]()
    free = [context.answer_sequences(i).first for i in range(context.answers)]
    while True:
        while free:
            room = most - sum(answer.limit for answer in active)
            if room < (longest if active else 1) or (question := next(waiting, None)) is None:
                break
            limit = int(min(len(question.given) or longest, room))
            active.append(start(replace(question, given=question.given[:limit]), free.pop(), limit))
        if not active:
            return
        _pass(context, active, k)
        for answer in [answer for answer in active if is_complete(answer)]:
            active.remove(answer)
            context.drop(answer.sequence)
            free.append(answer.sequence)
            most -= len(answer.generated)
            yield answer.record()


def _pass(context: SharedContext, active: list[_Answer], k: int) -> None:
    room, rows = context.batch - len(active), context.rows - len(active)
    parts = []
    for answer in active:
        start, last = answer.read, len(answer.question.tokens) - 1
        most = max(start, last) + 1 + max(0, rows)
        end = answer.read = min(len(answer.text), start + 1 + max(0, room), most)
        outputs = max(0, end - max(start, last))
        tokens, positions = answer.text[start:end], range(start, end)
        parts.append(PassPart(tokens, positions, ((answer.sequence,),), outputs))
        room, rows = room - len(tokens) + 1, rows - max(0, outputs - 1)
    for answer, logits in zip(active, context.decode(parts), strict=True):
        if len(logits):
            answer.rows.append(top_tokens(logits, k))
            if not answer.question.given:
                answer.text.append(sample_token(logits[-1], answer.temperature, answer.random))

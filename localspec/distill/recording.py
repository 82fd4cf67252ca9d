"""Record a target's answers to prompts, many in one pass, and texts that it reads, with the
likeliest tokens."""

import hashlib
import math
from collections.abc import Container, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from threading import Event

import numpy as np

from localspec.bench.suites import load_suites, prompt_lines
from localspec.decoding.logprobs import TokenLogprob
from localspec.decoding.params import SamplingParams
from localspec.distill.trace import TraceRecord
from localspec.drafters.options import Drafting
from localspec.engine import Engine
from localspec.llama.options import ModelOptions
from localspec.llama.vocabulary import Vocabulary
from localspec.loading.load import load
from localspec.prompting.prompt import Prompt, PromptBuilder, Tokens
from localspec.retrieval.texts import SkippedFiles, texts_in

SLOTS = 24
"""Concurrent answers."""
HELD_BACK_SHARE = 0.05
"""Share of the prompts, chosen by their hash."""
RAREST = 1e-5
"""Probability ÷ that of the likeliest token, below which tokens are not drawn."""
TEMPERATURES = (0.0, 0.7, 1.0)
"""Temperatures of answers, used alternately."""
CHUNK = 256
"""Tokens of a text that form one question."""
MIN_TOKENS = 16
"""Minimum tokens of a chunk; shorter remainders of a text are left out."""


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

    def sampling(self, seed: int) -> SamplingParams:
        which = (self.digest[1] + self.turn) % len(TEMPERATURES)
        own = int.from_bytes(hashlib.sha256(b"%d " % seed + self.key).digest()[:8], "little")
        return SamplingParams(
            temperature=TEMPERATURES[which], top_k=0, top_p=1.0, min_p=RAREST, seed=own
        )


def open_recorder(path: Path, threads: int, context: int) -> AbstractContextManager[Engine]:
    """Open a model for many concurrent questions, with up to `context` tokens each."""
    options = ModelOptions(parallel=SLOTS, threads=threads, context=SLOTS * context)
    plain = Drafting(drafter="none")
    return load(path, draft="none", options=options, drafting=plain, offline=True)


def record_answers(
    engine: Engine,
    questions: Iterable[RecordedQuestion],
    k: int,
    *,
    longest: int,
    seed: int = 0,
    known: Container[bytes] = (),
    most: float = math.inf,
) -> Iterator[TraceRecord]:
    """Yield answers as they finish, each with its `k` likeliest tokens; many are generated at once.
    Skips questions whose key is `known`, and those without room for an answer. `longest`: maximum
    tokens of an answer; `most`: of all answers. Raises as `Engine.stream`."""
    capacity = min(engine.context_length // engine.parallel, engine.model.trained_context)
    ended = Event()

    def due() -> Iterator[RecordedQuestion]:
        begun: set[bytes] = set()
        for question in questions:
            room = capacity - len(question.tokens) - len(question.given)
            if room > 0 and question.key not in known and question.key not in begun:
                begun.add(question.key)
                yield question

    def answer(question: RecordedQuestion, limit: int) -> TraceRecord:
        found: list[TokenLogprob] = []
        if question.given:
            text = [*question.tokens, *question.given[:limit]]
            found = engine.likelihood(text, k, stopped=ended.is_set)[len(question.tokens) - 1 :]
        else:
            with engine.stream(
                Tokens(question.tokens),
                max_tokens=min(limit, capacity - len(question.tokens)),
                sampling=question.sampling(seed),
                logprobs=k,
            ) as stream:
                for chunk in stream:
                    found += () if chunk.step is None else chunk.step.logprobs
                    if ended.is_set():
                        break
        return TraceRecord.of(question.key, question.tokens, found, question.held_back)

    waiting, active = due(), dict[Future[TraceRecord], int]()  # maximum tokens of each
    with ThreadPoolExecutor(engine.parallel) as pool:
        try:
            while True:
                while len(active) < engine.parallel:
                    room = most - sum(active.values())
                    if room < (longest if active else 1):
                        break
                    if (question := next(waiting, None)) is None:
                        break
                    limit = int(min(len(question.given) or longest, room))
                    active[pool.submit(answer, question, limit)] = limit
                if not active:
                    return
                for done in wait(active, return_when=FIRST_COMPLETED).done:
                    del active[done]
                    record = done.result()
                    most -= len(record.answer)
                    yield record
        finally:
            ended.set()


def read_prompts(path: Path) -> Iterator[Prompt]:
    """The prompts of a file: JSON lines as of `load_suites`, or one prompt per line. A text is a
    user's message. A UsageError if the file cannot be read, or has none."""
    if path.suffix != ".jsonl":
        yield from (line for _, line in prompt_lines(path, "text"))
        return
    for prompt in load_suites((path,)):
        yield prompt.messages if len(prompt.messages) > 1 else prompt.text


def questions(
    prompts: Sequence[Prompt], builder: PromptBuilder, *, raw: bool, answers: int
) -> Iterator[RecordedQuestion]:
    """Every prompt `answers` times: all once, then all again. `raw`: use text without the chat
    template. A UsageError if the target has no chat template, or the template refuses messages."""
    for turn, prompt in product(range(answers), prompts):
        if isinstance(prompt, str) and raw:
            text = prompt
        else:
            chat = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
            text = builder.text(chat)
        if tokens := tuple(builder.rendered(text)):
            yield RecordedQuestion(tokens, turn)


def text_questions(
    path: Path, vocabulary: Vocabulary, skipped: SkippedFiles
) -> Iterator[RecordedQuestion]:
    """The texts of a file or folder in chunks, each after a BOS if the model has one. A UsageError
    for a missing path."""
    begins = (vocabulary.bos,) if vocabulary.adds_bos and vocabulary.bos >= 0 else ()
    for text in texts_in(path, skipped):
        tokens = vocabulary.tokenize(text)
        for start in range(0, len(tokens), CHUNK):
            piece = tokens[start : start + CHUNK]
            given = tuple(piece if begins else piece[1:])
            if len(given) >= MIN_TOKENS:
                yield RecordedQuestion(begins or (piece[0],), 0, given)

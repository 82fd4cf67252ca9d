"""One answer while it is generated, and after."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from types import TracebackType
from typing import Protocol

from localspec.decoding import repetition
from localspec.decoding.interfaces import Step
from localspec.decoding.session import Session
from localspec.decoding.stats import GenerationStats
from localspec.errors import Cancelled
from localspec.prompting.detokenizer import Detokenizer


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one step added.

    Attributes:
        text: whole characters; may be empty while half of one, or what may be the beginning of a
            stop string, is held back.
        token_ids: tokens committed in this step.
        sources: who proposed each of them: a drafter's name, or "target".
        step: the whole record, None for the text released after the last step.
    """

    text: str
    token_ids: tuple[int, ...]
    sources: tuple[str, ...]
    step: Step | None


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished answer.

    Attributes:
        text: the answer without the stop string.
        finish_reason: "stop" (end of generation or stop string), "length" (max_tokens, or the
            context is full) or "cancelled".
        stats: its figures.
    """

    text: str
    finish_reason: str
    stats: GenerationStats


class Holder(Protocol):
    """Who owns the caches that a stream uses; the engine."""

    def acquire(self, stream: Stream) -> None: ...

    def release(self, stream: Stream) -> None: ...

    def interrupt(self, stream: Stream) -> None: ...


class Stream(Iterator[Chunk]):
    """Generates as it is iterated. Close it, finish it, or use it as a context manager.

    The engine is held from the first chunk to the last; leaving early releases it and keeps the
    text so far valid.

    Attributes:
        stats: figures, growing while the stream runs.
        finish_reason: None while it runs; see Completion.
        prompt: token ids of the prompt.
    """

    def __init__(
        self,
        holder: Holder,
        session: Session,
        assembler: Detokenizer,
        stats: GenerationStats,
        start: Callable[[], Generator[Step, None, None]],
        *,
        when_full: str | None = None,
    ) -> None:
        """`start` prepares the caches and returns the steps; called with the engine held.
        `when_full` is the notice for an answer that the end of the context cuts off."""
        self.stats = stats
        self.finish_reason: str | None = None
        self.prompt: Sequence[int] = tuple(session.context)
        self._holder = holder
        self._session = session
        self._assembler = assembler
        self._start = start
        self._when_full = when_full
        self._cancelled = False
        self._chunks = self._generate()

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Chunk:
        return next(self._chunks)

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def text(self) -> str:
        """The answer so far."""
        return self._assembler.text

    @property
    def context(self) -> Sequence[int]:
        """Token ids of the prompt and of the answer so far, without what left a context that was
        full."""
        return self._session.context

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the answer, None where another end came."""
        return self._assembler.stopped

    @property
    def truncated(self) -> bool:
        """Whether the answer ended because the context was full, or went on without its
        beginning."""
        full = self.finish_reason == "length" and self._when_full is not None
        return full or self._session.dropped > 0

    def cancel(self) -> None:
        """Stop before the next pass, or inside the one that runs. From any thread."""
        self._cancelled = True
        self._holder.interrupt(self)

    def close(self) -> None:
        """Stop here; the same as leaving the iteration."""
        self._chunks.close()
        if self.finish_reason is None:
            self.finish_reason = "cancelled"

    def completion(self) -> Completion:
        """Run to the end and return the whole answer."""
        for _ in self:
            pass
        assert self.finish_reason is not None
        return Completion(self.text, self.finish_reason, self.stats)

    def _explain_length(self) -> None:
        if self._when_full is not None:
            self.stats.notices.append(self._when_full)
        answer = self._session.context[-self.stats.generated_tokens :]
        if length := repetition.period(answer):
            what = "one token" if length == 1 else f"{length} tokens"
            self.stats.notices.append(
                f"The answer repeats {what} over and over at its end. A repeat penalty of 1.1, or "
                "a higher temperature, often helps."
            )

    def _generate(self) -> Generator[Chunk, None, None]:
        self._holder.acquire(self)
        steps: Generator[Step, None, None] | None = None
        try:
            started = perf_counter()
            if self._cancelled:
                raise Cancelled("Stopped on request.")
            steps = self._start()
            elapsed = perf_counter() - started
            self.stats.prompt_seconds = max(0.0, elapsed - self.stats.calibration_seconds)
            for step in steps:
                self.stats.add(step)
                text = self._assembler.take()
                yield Chunk(text, tuple(step.tokens), tuple(step.sources), step)
                if self._cancelled and self._session.finish is None:
                    raise Cancelled("Stopped on request.")
            self.finish_reason = self._session.finish
            if self.finish_reason == "length":
                self._explain_length()
        except Cancelled:
            self.finish_reason = "cancelled"
        except GeneratorExit:
            self.finish_reason = "cancelled"
            raise
        finally:
            try:
                if steps is not None:
                    steps.close()
            finally:  # whatever that raises: the next answer must not wait for ever
                self._holder.release(self)
        self._assembler.finish()
        rest = self._assembler.take()
        if rest:
            yield Chunk(rest, (), (), None)

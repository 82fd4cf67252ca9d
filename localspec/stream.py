"""One answer while it is generated, and after."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, Protocol

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
        text: whole characters; what may begin a stop string is held back.
        token_ids: tokens committed in this step.
        sources: who proposed each of them: a drafter's name, or "target".
        step: None for the text released after the last step.
    """

    text: str
    token_ids: tuple[int, ...]
    sources: tuple[str, ...]
    step: Step | None


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished answer.

    Attributes:
        text: without the stop string.
        finish_reason: "stop" (end of generation or stop string), "length" (max_tokens, or the
            context is full) or "cancelled".
    """

    text: str
    finish_reason: str
    stats: GenerationStats


class Piece(NamedTuple):
    """What a reader gets of a step.

    Attributes:
        length: tokens of prompt and answer with it.
        finish: why the answer ended with it, None where it goes on.
    """

    step: Step
    text: str
    length: int
    finish: str | None


class Pieces(Protocol):
    """Where the pieces of a stream come from; `localspec.reader.Reader`."""

    @property
    def ready(self) -> bool:
        """Whether the next piece, or the end, is there."""
        ...

    @property
    def runs(self) -> bool:
        """Whether it has begun, and not ended."""
        ...

    @property
    def cancelled(self) -> bool:
        """Whether an interrupt ended it."""
        ...

    def begin(self, told: Callable[[], object] | None = None) -> None:
        """Take a place in the queue; `told` is called, from any thread, at each piece and at the
        end, and its owner waits for `ready` before each piece."""
        ...

    def read(self) -> Iterator[Piece]: ...

    def interrupt(self) -> None:
        """End it before the next pass, or inside the one that runs."""
        ...

    def close(self) -> None:
        """End it, and wait for that."""
        ...


class Stream(Iterator[Chunk]):
    """Generates as it is iterated. Close it, finish it, or use it as a context manager.

    The engine is held from the first chunk to the last; leaving early releases it and keeps the
    text so far valid.

    Attributes:
        stats: figures, growing while it runs.
        prompt: token ids of the prompt.
    """

    def __init__(
        self,
        pieces: Pieces,
        session: Session,
        assembler: Detokenizer,
        stats: GenerationStats,
        *,
        when_full: str | None = None,
    ) -> None:
        """`when_full` is the notice for an answer that the end of the context cuts off."""
        self.stats = stats
        self._finish_reason: str | None = None
        self.prompt: Sequence[int] = tuple(session.context)
        self._pieces = pieces
        self._session = session
        self._assembler = assembler
        self._texts: list[str] = []
        self._length = len(session.context)
        self._when_full = when_full
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
    def finish_reason(self) -> str | None:
        """None while it runs; see `Completion`."""
        if self._finish_reason is None and self._pieces.cancelled:
            return "cancelled"
        return self._finish_reason

    @property
    def text(self) -> str:
        """The answer so far."""
        return "".join(self._texts)

    @property
    def context(self) -> Sequence[int]:
        """Token ids of prompt and answer so far, without what a context shift dropped."""
        return self._session.context[: self._length - self._session.dropped]

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the answer, None where another end came."""
        return self._assembler.stopped

    @property
    def truncated(self) -> bool:
        """Whether the context was full: the answer ended there, or lost its beginning."""
        full = self.finish_reason == "length" and self._when_full is not None
        return full or self._session.dropped > 0

    def begin(self, told: Callable[[], object]) -> None:
        """Take a place in the queue now, instead of at the first step. `told` is called, from any
        thread, when there may be something to read: a step waits for nothing while `ready`."""
        self._pieces.begin(told)

    @property
    def ready(self) -> bool:
        """Whether the next chunk, or the end, is there."""
        return self._pieces.ready or self.finish_reason is not None

    @property
    def runs(self) -> bool:
        """Whether it has begun, and is not over yet."""
        return self._pieces.runs

    def cancel(self) -> None:
        """Stop before the next pass, or inside the one that runs. From any thread. What was made
        before can still be read."""
        self._pieces.interrupt()

    def close(self) -> None:
        """Stop here; the same as leaving the iteration."""
        self._chunks.close()
        if self._finish_reason is None:
            self._finish_reason = "cancelled"

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
        finish = None
        try:
            for piece in self._pieces.read():
                step, self._length, finish = piece.step, piece.length, piece.finish
                self.stats.add(step)
                self._texts.append(piece.text)
                yield Chunk(piece.text, tuple(step.tokens), tuple(step.sources), step)
            self._finish_reason = finish
        except (Cancelled, GeneratorExit) as ended:
            self._finish_reason = "cancelled"
            if isinstance(ended, GeneratorExit):
                raise
        finally:
            self._pieces.close()
        if finish == "length":
            self._explain_length()
        self._assembler.finish()
        if rest := self._assembler.take():
            self._texts.append(rest)
            yield Chunk(rest, (), (), None)

"""The stream of one answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from localspec.decoding import repetition
from localspec.decoding.interfaces import Step
from localspec.decoding.session import Session
from localspec.decoding.stats import GenerationStats
from localspec.errors import Cancelled, EngineBusy, UsageError
from localspec.llama import compute_thread
from localspec.prompting.detokenizer import Detokenizer
from localspec.scheduling.task import Task
from localspec.text import counted


@dataclass(frozen=True, slots=True)
class Chunk:
    """The output of one step.

    Attributes:
        text: whole characters; the possible beginning of a stop string is held back.
        token_ids: tokens committed in this step.
        sources: of each token, the name of the source that proposed it, or "target".
        step: None for the text released after the last step.
    """

    text: str
    token_ids: tuple[int, ...]
    sources: tuple[str, ...]
    step: Step | None


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished answer, with its `stats`.

    Attributes:
        text: without the stop string.
        finish_reason: "stop" (end of generation or stop string), "length" (max_tokens, or the
            context is full) or "cancelled".
    """

    text: str
    finish_reason: str
    stats: GenerationStats


class Unique:
    """Owns threads or models, which copies cannot share."""

    def __reduce__(self) -> str:
        raise UsageError(
            f"{type(self).__name__} cannot be copied or sent to another process. Load the model "
            "there, and ask it."
        )


class Stream(Unique, AbstractContextManager["Stream"], Iterator[Chunk]):
    """An answer that is generated while iterated. Finish it, close it, or use it as a context
    manager.

    It occupies the engine from the first chunk to the last. Leaving early releases the engine and
    keeps the text so far valid.

    `stats`: updated while it runs; `prompt`: its token ids.
    """

    _task: Task | None = None  # for finalizers, if an interrupt came before the other fields

    def __init__(
        self,
        submit: Callable[..., Task],
        cancel: Callable[[Task], None],
        session: Session,
        detokenizer: Detokenizer,
        stats: GenerationStats,
        when_full: str | None = None,
    ) -> None:
        """`submit`, called with `owner` and `on_item`, starts the task, whose items are steps with
        their texts; `cancel` ends it: both as in `Scheduler`. `when_full`: the notice for an answer
        cut off by a full context."""
        self.stats = stats
        self._finish_reason: str | None = None
        self.prompt: Sequence[int] = tuple(session.context)
        self._submit, self._cancel = submit, cancel
        self._items: Iterator[Any] = iter(())  # of the task
        self._cancelled = self._ended = False
        self._reading = threading.RLock()  # by one thread at a time
        self._session = session
        self._detokenizer = detokenizer
        self._texts: list[str] = []
        self._when_full = when_full

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Chunk:
        if compute_thread.is_current():
            raise EngineBusy("An answer's callback cannot read answers. Use another thread.")
        with self._reading:
            if self._ended:
                raise StopIteration
            if self._task is None:
                self.begin()  # can be repeated if the engine is busy
            try:
                step, text = next(self._items)
                self.stats.add(step)
                self._texts.append(text)
                return Chunk(text, tuple(step.tokens), tuple(step.sources), step)
            except StopIteration:
                self._finish_reason = self._session.finish
            except Cancelled:
                self._finish_reason = "cancelled"
            except BaseException:
                self._end()
                raise
            self._end()
            if self._finish_reason == "length":
                self._explain_length()
            self._detokenizer.finish()
            rest = self._detokenizer.take()
            if not rest:
                raise StopIteration
            self._texts.append(rest)
            return Chunk(rest, (), (), None)

    def __del__(self) -> None:
        # Without waiting: this thread may hold a lock that the computing one needs.
        if self.runs:
            self.cancel()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def finish_reason(self) -> str | None:
        """None while it runs; see `Completion`."""
        task = self._task
        if self._finish_reason is None and task is not None and isinstance(task.error, Cancelled):
            return "cancelled"
        return self._finish_reason

    @property
    def text(self) -> str:
        """The answer so far."""
        return "".join(self._texts)

    @property
    def context(self) -> Sequence[int]:
        """Token ids of prompt and answer so far, without what a context shift dropped."""
        end = len(self.prompt) + self.stats.generated_tokens
        return self._session.context[: end - self._session.dropped]

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the answer, or None."""
        return self._detokenizer.stopped

    @property
    def truncated(self) -> bool:
        """Whether a full context ended the answer, or dropped its beginning."""
        full = self.finish_reason == "length" and self._when_full is not None
        return full or self._session.dropped > 0

    def begin(
        self, on_ready: Callable[[], object] | None = None, owner: Hashable | None = None
    ) -> None:
        """Join the queue now, instead of at the first step. `on_ready` is called, from any thread,
        when an item may be available: a step does not wait while `ready`. `owner`: as for
        `Scheduler.submit`; without `on_ready` it is this thread."""
        owner = threading.get_ident() if on_ready is None else owner
        self._task = self._submit(owner=owner, on_item=on_ready)
        self._items = self._task.items()
        if self._cancelled:
            self._cancel(self._task)

    @property
    def ready(self) -> bool:
        """Whether the next chunk, or the end, is available."""
        begun = self._task is not None and self._task.ready
        return begun or self.finish_reason is not None

    @property
    def runs(self) -> bool:
        """Whether it has begun, and has not ended."""
        return self._task is not None and not self._task.over

    def cancel(self) -> None:
        """Stop before the next pass, or inside the current one. From any thread. Earlier chunks can
        still be read."""
        self._cancelled = True
        if self._task is not None and not self._task.over:
            self._cancel(self._task)

    def close(self) -> None:
        """Stop, as leaving the iteration does. From any thread."""
        self._cancelled = True
        self._finish_reason = self._finish_reason or "cancelled"
        self._end()

    def completion(self) -> Completion:
        """Run to the end; the whole answer, or each time the error of one that failed."""
        try:
            for _ in self:
                pass
        finally:
            if self.runs:  # after an interrupt, perhaps, so that nobody reads it
                self.cancel()
        if self.finish_reason is None and self._task is not None and self._task.error is not None:
            raise self._task.error
        return Completion(self.text, self.finish_reason or "cancelled", self.stats)

    def _explain_length(self) -> None:
        if self._when_full is not None:
            self.stats.notices.append(self._when_full)
        answer = self._session.context[-self.stats.generated_tokens :]
        if length := repetition.period(answer):
            self.stats.notices.append(
                f"The answer repeats {counted(length, 'token')} over and over at its end. "
                "A repeat penalty of 1.1, or a higher temperature, often helps."
            )

    def _end(self) -> None:
        self._ended = True
        task = self._task
        if task is None or task.over:
            return
        self._cancel(task)
        if not compute_thread.is_current():
            task.wait()
            if task.error is not None and not isinstance(task.error, Cancelled):
                raise task.error

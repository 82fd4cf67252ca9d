"""One request in a thread of its own; the main thread waits for its events."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from time import sleep
from typing import Any, Generic, TypeVar

from localspec import Chunk, Completion, Engine, GenerationStats, Stream, paths
from localspec.chat.figures import Figures, Meter, baseline, measure_baseline
from localspec.cli import crashes
from localspec.cli import request as requests
from localspec.cli.interrupts import on_interrupt
from localspec.cli.output import Console
from localspec.cli.request import AnswerRequest, OpeningOptions, uses_model
from localspec.cli.run_session import RunSession
from localspec.engine_thread import EngineThread
from localspec.errors import NativeError, UsageError
from localspec.prompting.detokenizer import OPENS
from localspec.prompting.pieces import Plain, Reader

_POLL = 0.1
"""Seconds between looks for a signal, which does not always wake a waiting main thread."""
INTERRUPTED = "Interrupted while the model was loading."


@dataclass(frozen=True, slots=True)
class Ready:
    """The models are open and the prompt is tokenized.

    Attributes:
        model, draft: paths.
        stats: figures, growing.
        built_in: whether the model is the embedded one.
        reader: tells the answer's reasoning from its text.
    """

    model: str
    model_name: str
    draft: str | None
    draft_name: str | None
    stats: GenerationStats
    built_in: bool
    notices: tuple[str, ...]
    reader: Reader = field(default_factory=Plain)


@dataclass(frozen=True, slots=True)
class Finished:
    """The answer is complete or cancelled; `figures` compare it with plain decoding."""

    completion: Completion
    figures: Figures


Own = TypeVar("Own")
"""A job's events besides progress (text), an error, and None for a cancellation."""


class EngineJob(ABC, Generic[Own]):
    last: type
    """The event that ends it where nothing fails."""

    def __init__(self, request: AnswerRequest, *, shows_progress: bool) -> None:
        self._request = request
        self._shows_progress = shows_progress
        self._queue: SimpleQueue[str | BaseException | Own | None] = SimpleQueue()
        self._cancelled = self._lost = False
        self._thread = EngineThread("localspec-worker")
        # The main thread raises again what comes out of it.
        self._thread.submit(self._run, failed=self._queue.put)
        self._thread.finish()

    def follow(
        self,
        console: Console,
        handle: Callable[[Own], object],
        *,
        writing: Callable[[], bool],
        restore: str = "",
    ) -> None:
        """Run the job and hand its events to `handle`, up to its end.

        Raises what made the job fail and what `handle` raises, once the job is over.

        Args:
            writing: whether progress would erase a part of standard output.
            restore: sent to standard output before a second Ctrl+C leaves at once.
        """
        crashes.watch()
        with on_interrupt(self.cancel, restore.encode()):
            try:
                for event in self._events():
                    if isinstance(event, str):
                        console.progress(event)
                    elif isinstance(event, BaseException):
                        raise event
                    elif event is not None:
                        handle(event)
                    elif not writing():
                        stopping = "stopping; press Ctrl+C again to exit at once"
                        console.progress(stopping, at_once=True)
            except BaseException:
                self.cancel()
                raise
            finally:
                console.erase_progress()
                while not self._lost and self._thread.is_alive():
                    self._thread.join(_POLL)

    def _events(self) -> Iterator[str | BaseException | Own | None]:
        self._thread.start()
        while True:
            try:
                event = self._queue.get(timeout=_POLL)
            except Empty:
                continue
            yield event
            if isinstance(event, self.last):
                return

    def cancel(self) -> None:
        """Stop as soon as possible; may be called from a signal handler."""
        if self._cancelled:
            return
        self._cancelled = True
        self._thread.cancel()
        self._queue.put(None)

    def _run(self) -> None:
        from localspec.llama import library

        library.on_abort(self._abort)
        with self._load() as engine:
            self._answer(engine)

    @abstractmethod
    def _answer(self, engine: Engine) -> None:
        """Do the work and report it, the last event included."""

    def _abort(self, error: NativeError) -> None:
        """llama.cpp is lost: the main thread prints it and ends the process.

        Returns where only the passes of another job are lost.
        """
        self._lost = True
        self._queue.put(error)
        while self._thread.is_alive():
            sleep(_POLL)

    def _load(self) -> Engine:
        from localspec.self_draft.recipe import is_self

        opening = self._opening()
        what = "loading the model"
        if is_self(opening.draft):
            what += " (finding a draft in its own file takes some minutes, once)"
        self._report(what)

        def progress(fraction: float) -> None:
            self._thread.require_going_on(INTERRUPTED)
            self._report(f"{what}: {fraction:.0%}" if fraction else what)

        return opening.load(progress)

    def _opening(self) -> OpeningOptions:
        return self._request.opening

    def _stream(
        self,
        engine: Engine,
        prompt: str | list[dict[str, Any]],
        progress: Callable[[int, int], None] | None,
    ) -> Stream:
        request = self._request
        return engine.stream(
            prompt,
            max_tokens=request.max_tokens,
            stop=request.stop,
            sampling=request.opening.sampling,
            grammar=request.grammar,
            json_schema=request.json_schema,
            regex=request.regex,
            thinks=self._thinks(engine, prompt),
            progress=progress,
        )

    def _thinks(self, engine: Engine, prompt: str | list[dict[str, Any]]) -> bool | None:
        request = self._request
        free = not (request.grammar or request.json_schema or request.regex)
        return engine.prompts.thinks(prompt, free=free)

    def _ready(self, engine: Engine, stats: GenerationStats, notices: list[str]) -> Ready:
        draft = engine.draft
        return Ready(
            model=str(engine.model.path),
            model_name=engine.model.name,
            draft=None if draft is None else str(draft.path),
            draft_name=None if draft is None else draft.name,
            stats=stats,
            built_in=engine.model.path == paths.embedded(paths.EMBEDDED_TARGET),
            notices=(*engine.notices, *notices, *self._drafting_notices(engine, stats)),
        )

    def _prompt(self, engine: Engine) -> tuple[str | list[dict[str, Any]], list[str]]:
        """The prompt to stream, and notices about it."""
        request = self._request
        if request.raw:
            return request.prompt, []
        if engine.model.chat_template is None:
            name = engine.model.path.name
            if request.system is not None:
                raise UsageError(
                    f"{name} has no chat template that --system could go into. "
                    "Leave it out, or begin the prompt with that text."
                )
            if request.images:
                raise UsageError(f"{name} has no chat template that --image could go into.")
            return request.prompt, [f"{name} has no chat template; the prompt is passed as it is."]
        messages: list[dict[str, Any]] = [{"role": "user", "content": request.prompt}]
        if request.images:
            shown = [{"type": "image", "image": image} for image in request.images]
            messages[0]["content"] = [*shown, {"type": "text", "text": request.prompt}]
        if request.system is not None:
            messages.insert(0, {"role": "system", "content": request.system})
        return messages, []

    def _drafting_notices(self, engine: Engine, stats: GenerationStats) -> list[str]:
        opening = self._request.opening
        drafter = opening.drafting.drafter
        notices = []
        if engine.draft is not None and not uses_model(drafter):
            notices.append(f"The draft model is not used: drafter '{drafter}' does without it.")
        why = engine.why_no_draft or engine.why_draft
        if opening.draft == "auto" and why is not None and opening.named:
            notices.append(f"-d auto: {why}.")
        if engine.draft is not None and uses_model(drafter) and stats.vocabulary is not None:
            notices.append(f"The draft model has a {stats.vocabulary}.")
        if not stats.lossless:
            notices.append(f"Rule '{stats.rule}' is lossy: it can change the output.")
        return notices

    def _reading(self, done: int, total: int) -> None:
        self._report(f"reading the prompt: {done / total:.0%}")

    def _report(self, text: str) -> None:
        if self._shows_progress:
            self._queue.put(text)


class Worker(EngineJob[Ready | Chunk | Finished]):
    """Answers one prompt. `shows_figures`: measure the speed-up."""

    last = Finished

    def __init__(
        self, request: AnswerRequest, *, shows_progress: bool, shows_figures: bool = False
    ) -> None:
        super().__init__(request, shows_progress=shows_progress)
        self._shows_figures = shows_figures

    def _answer(self, engine: Engine) -> None:
        self._thread.require_going_on(INTERRUPTED)
        prompt, notices = self._prompt(engine)
        session = None
        if self._request.session is not None:
            session = RunSession(engine, self._request.session)
            prompt, notices = session.behind(prompt), [*notices, *session.notices]
        stream = self._stream(engine, prompt, self._reading)
        meter = Meter(stream.stats, engine.plain_seconds, engine.context_length)
        thinks = self._thinks(engine, prompt)
        reader = engine.prompts.reader(prompt, thinks=thinks)
        self._queue.put(replace(self._ready(engine, stream.stats, notices), reader=reader))
        with self._thread.cancels(stream):
            for chunk in stream:
                self._queue.put(chunk)
                if chunk.step is not None:
                    meter.add(chunk.step)
        assert stream.finish_reason is not None
        cut = stream.finish_reason == "length" and not stream.truncated
        if cut and self._opening().max_tokens is None:
            stream.stats.notices.append(
                f"The answer is cut off at {requests.LONGEST:,} tokens. Give -n N for a longer one."
            )
        if session is not None:
            begins = f"{OPENS}\n" if thinks else ""
            stream.stats.notices += session.keep(prompt, begins + stream.text)
        meter.baseline = baseline(engine)
        if self._shows_figures and stream.finish_reason != "cancelled":
            self._report("measuring plain llama.cpp, once")
            meter.baseline = measure_baseline(engine, self._request.opening.options)
        completion = Completion(stream.text, stream.finish_reason, stream.stats)
        self._queue.put(Finished(completion, meter.figures()))

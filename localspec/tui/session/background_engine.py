"""The chat's engine in a thread of its own: the screen never waits for it.

Methods return at once; results come as events, called in the engine's thread.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING

from localspec import ModelOptions, paths
from localspec.chat.conversation import REPEATS
from localspec.chat.figures import measure_baseline
from localspec.errors import Cancelled, ContextOverflow, LocalspecError, describe
from localspec.prompting.detokenizer import OPENS
from localspec.text import listed
from localspec.tui.session import events
from localspec.tui.session.answer import ShownAnswer

if TYPE_CHECKING:
    # The engine and its company import numpy, and the screen is painted before that.
    from localspec import Drafting, Engine, Stream
    from localspec.decoding.logprobs import TokenLogprob
    from localspec.distill.trace import TraceHeader

logger = logging.getLogger("localspec.tui")

KEEP_EVERY = 0.4
"""Seconds between two savings of a growing answer."""
_TELL_EVERY = 0.1
"""Seconds between two reports of progress."""
_PATIENCE = 2.0
"""Seconds to wait for another process that learns or records."""
_RECORDED = 32
"""As `localspec.distill.trace.TOP_K`."""
_STOPPED = "Stopped while the model was loading."

Loader = Callable[..., "Engine"]
Failure = Callable[[BaseException], object]


class BackgroundEngine:
    """One engine, and the thread that opens, uses and replaces it once `start` is called. Until
    then tasks wait. `tell`: called in that thread with each event; `options`, `drafting`,
    `offline`: as for `localspec.load`; `loader`: `localspec.load`, or a test's own; `session`: file
    from which caches are read, and into which they are saved at the end."""

    def __init__(
        self,
        tell: Callable[[events.Event], object],
        *,
        options: ModelOptions | None = None,
        drafting: Drafting | None = None,
        offline: bool | None = None,
        loader: Loader | None = None,
        session: Path | None = None,
    ) -> None:
        self._tell = tell
        self._session = session
        self._offline = offline
        self._options, self._drafting = options or ModelOptions(), drafting
        self._adapted: events.PairReference | None = None  # what the adapters among the options fit
        self._loader = loader
        self._engine: Engine | None = None
        self._opened: events.Opened | None = None
        self._header: TraceHeader | None = None  # of the trace of the model that is open
        self._text = ""  # of the answer that comes
        self._forgotten: set[str] = set()  # conversations
        # Tasks are numbered, and a cancellation reaches all that were submitted before it.
        self._tasks: SimpleQueue[tuple[int, Callable[[], object], Failure] | None] = SimpleQueue()
        self._submitted = self._running = self._cancelled = 0
        self._stream: Stream | None = None
        # A daemon, so that no failure of the screen could leave the process hanging on it.
        self._thread = threading.Thread(target=self._work, name="localspec-engine", daemon=True)
        self.start = self._thread.start

    def open(self, pair: events.PairReference) -> None:
        self._submit(partial(self._open, pair), partial(self._not_opened, pair))

    def ask(self, question: events.Question) -> None:
        self._submit(partial(self._answer, question), partial(self._not_answered, question))

    def learn(self, conversation: str, texts: Sequence[str]) -> None:
        self._submit(partial(self._learn, conversation, texts), self._not_learned)

    def forget(self, conversation: str) -> None:
        """A conversation is deleted: learn and record nothing more of it."""
        self._forgotten.add(conversation)

    def stop(self) -> None:
        """Cancel what runs, and all that waits."""
        self._cancelled = self._submitted
        stream = self._stream
        if stream is not None:
            stream.cancel()

    def close(
        self,
        timeout: float | None = None,
        *,
        last: Callable[[], object] = lambda: None,
        content: Callable[[], object] = lambda: None,
    ) -> str | None:
        """Stop, end the thread, free the models; returns why a session could not be saved.
        `timeout`: seconds to wait for the thread; `last`: called after generation, while tokens can
        still be taken; `content`: what else goes into the session's file; called after `last`."""
        trouble = None
        self._tasks.put(None)
        self.stop()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        last()
        if self._engine is not None and not self._thread.is_alive():
            try:
                if self._session is not None:
                    self._engine.save_session(self._session, content())
            except LocalspecError as error:
                trouble = str(error)
            self._engine.close()
            self._engine = None
        return trouble

    def _submit(self, task: Callable[[], object], failed: Failure) -> None:
        self._submitted += 1
        self._tasks.put((self._submitted, task, failed))

    def _work(self) -> None:
        while (submitted := self._tasks.get()) is not None:
            self._running, task, failed = submitted
            try:
                task()
            except BaseException as error:  # none may end the thread, or be lost with it
                failed(error)

    @property
    def _stops(self) -> bool:
        """Whether the task that runs is cancelled."""
        return self._running <= self._cancelled

    def _go_on(self, otherwise: str) -> None:
        """Raise Cancelled, which says `otherwise`, if it is."""
        if self._stops:
            raise Cancelled(otherwise)

    @contextmanager
    def _cancels(self, stream: Stream) -> Iterator[None]:
        # In this order: a cancellation before the assignment is seen below, one after it reaches
        # the stream itself.
        self._stream = stream
        try:
            if self._stops:
                stream.cancel()
            yield
        finally:
            self._stream = None

    def _open(self, pair: events.PairReference) -> None:
        before = self._opened
        try:
            self._go_on(_STOPPED)
            self._tell(events.Progress("looking at the files"))
            self._try_unknown(pair)
            # The old pair goes first: two may not fit into the memory.
            if self._engine is not None:
                self._engine.close()
                self._engine = self._opened = None
            self._load(pair)
        except BaseException:
            if before is not None and self._engine is None:
                with suppress(Exception):  # back to the pair before, which cannot be stopped
                    self._load(before.pair, stoppable=False)
            raise
        assert self._opened is not None
        self._tell(self._opened)

    def _not_opened(self, pair: events.PairReference, error: BaseException) -> None:
        cancelled = isinstance(error, Cancelled)
        self._tell(events.NotOpened(pair, _sentence(error), cancelled, self._opened))

    def _load(self, pair: events.PairReference, *, stoppable: bool = True) -> None:
        from localspec import load

        reported = 0.0

        def progress(fraction: float) -> None:
            nonlocal reported
            if stoppable:
                self._go_on(_STOPPED)
            now = monotonic()
            if now - reported >= _TELL_EVERY or fraction == 1.0:
                reported = now
                self._tell(events.Progress(f"loading the model: {fraction:.0%}"))

        options, left_out = self._options_for(pair)
        engine = (self._loader or load)(
            pair.model,
            draft=pair.draft,
            offline=self._offline,
            options=options,
            drafting=self._drafting,
            progress=progress,
        )
        model, draft = engine.model, engine.draft
        chosen = engine.why_draft if pair.draft == "auto" else None
        self._engine, self._header = engine, None
        notices = [*engine.notices, *left_out]
        if self._session is not None:
            notices += engine.open_session(self._session).notices
        self._opened = events.Opened(
            pair,
            model.name,
            str(model.path),
            None if draft is None else draft.name,
            engine.context_length,
            tuple(notices if chosen is None else [*notices, f"-d auto: {chosen}."]),
        )

    def _options_for(self, pair: events.PairReference) -> tuple[ModelOptions, list[str]]:
        """Options without another pair's adapters and projector, and notices about it."""
        if self._adapted is None:
            self._adapted = pair
        first, options = self._adapted, self._options
        if pair == first:
            return options, []
        kept = replace(
            options,
            lora=options.lora if pair.model == first.model else (),
            lora_draft=options.lora_draft if pair.draft == first.draft else (),
            mmproj=options.mmproj if pair.model == first.model else None,
        )
        names = [
            one.path.name
            for one in (*options.adapters, *options.draft_adapters)
            if one not in (*kept.adapters, *kept.draft_adapters)
        ]
        if options.mmproj is not None and kept.mmproj is None:
            names.append(Path(options.mmproj).name)
        if not names:
            return kept, []
        return kept, [f"Without {listed(names)}, which belongs to the previous model."]

    def _try_unknown(self, pair: events.PairReference) -> None:
        """Open a file that is new here in a child process first."""
        if self._loader is not None:
            return
        from localspec.gguf import description
        from localspec.hub.resolution import resolve
        from localspec.llama.crash_test import require_survivable
        from localspec.self_draft.recipe import is_self

        # One on RPC servers is opened in a process of its own anyway, and may not fit in here.
        for reference in (None if self._options.rpc else pair.model, pair.draft):
            # What is made of the model's own file is that model.
            if reference not in (None, "auto", "none") and not is_self(reference):
                path = resolve(reference, offline=self._offline)
                if description.describe(path).problem is None:  # heads need their target
                    self._tell(events.Progress("trying the file in a separate process (once)"))
                    require_survivable(path, cancelled=lambda: self._stops)

    def _answer(self, question: events.Question) -> None:
        from localspec.decoding import repetition

        self._text = ""
        self._go_on("Stopped before it began.")
        if self._engine is None or self._opened is None:
            raise LocalspecError("No model is open. Choose one with Ctrl+O or /model.")

        def progress(done: int, total: int) -> None:
            self._tell(
                events.Progress(f"reading the prompt: {done / max(1, total):.0%}", question.message)
            )

        thinks = self._engine.prompts.thinks(question.messages, free=True)
        begins = f"{OPENS}\n" if thinks else ""
        stream = self._engine.stream(
            question.messages,
            max_tokens=question.max_tokens,
            sampling=question.sampling,
            overflow=question.overflow,
            logprobs=None if question.record_of is None else _RECORDED,
            thinks=thinks,
            progress=progress,
        )
        logprobs: list[TokenLogprob] = []
        written: deque[int] = deque(maxlen=repetition.LOOKED_AT)
        unseen, finish = 0, None
        answer = ShownAnswer(stream.stats, self._engine, begins)
        with self._cancels(stream):
            self._tell(events.AnswerBegan(question.message, answer))
            if self._engine.plain_seconds(0) is None:
                what = "measuring what a pass costs here (once, about 2 s) …"
                self._tell(events.Progress(what, question.message))
            kept = monotonic()
            try:
                for chunk in stream:
                    answer.put(chunk)
                    if chunk.step is not None:
                        logprobs += chunk.step.logprobs
                    now = monotonic()
                    if now - kept >= KEEP_EVERY:
                        kept = now
                        question.keep(begins + stream.text)
                    written.extend(chunk.token_ids)
                    unseen += len(chunk.token_ids)
                    if question.max_tokens is None and unseen >= repetition.LEAST:
                        unseen = 0
                        if repetition.period(written, repetition.LOOKED_AT):
                            finish = REPEATS
                            stream.close()
                            break
            finally:
                self._text = begins + stream.text if stream.text else ""
        finish = finish or stream.finish_reason
        assert finish is not None
        # A session keeps the caches, which measuring would empty.
        if finish != "cancelled" and self._session is None:
            options = self._options_for(self._opened.pair)[0]
            answer.meter.baseline = measure_baseline(self._engine, options)
        self._tell(events.AnswerEnded(question.message, self._text, finish))
        if question.record_of is not None and logprobs:
            self._record(question.record_of, stream, logprobs)

    def _learn(self, conversation: str, texts: Sequence[str]) -> None:
        from localspec.retrieval.learning import forget_conversations
        from localspec.retrieval.manifest import CONVERSATION

        engine = self._engine
        if engine is not None:
            # What another process keeps locked is learned with the next answer.
            named = {CONVERSATION + conversation: texts}
            self._keep(
                conversation, partial(engine.learn, named, patience=_PATIENCE), forget_conversations
            )

    def _not_learned(self, error: BaseException) -> None:
        if not isinstance(error, Cancelled):
            self._tell(events.NotKept(f"This conversation was not learned: {_sentence(error)}"))

    def _record(self, conversation: str, stream: Stream, logprobs: Sequence[TokenLogprob]) -> None:
        from localspec.distill import chats, folders

        assert self._engine is not None
        try:
            model = self._engine.model
            if self._header is None:
                self._header = folders.header_of(model.path, model.vocabulary)
            folder = folders.folder_of(model.path, self._header.identity)
            keep = partial(chats.keep, folder, self._header, conversation, stream.prompt, logprobs)
            self._keep(conversation, keep, chats.forget)
        except (LocalspecError, OSError) as error:
            self._tell(events.NotKept(f"This answer was not recorded: {_sentence(error)}"))

    def _keep(
        self,
        conversation: str,
        keep: Callable[[], object],
        forget: Callable[[Sequence[str]], object],
    ) -> None:
        """Keep something of a conversation, unless it was deleted."""
        if conversation in self._forgotten:
            return
        keep()
        if conversation in self._forgotten:  # while it was being kept
            forget([conversation])

    def _not_answered(self, question: events.Question, error: BaseException) -> None:
        if isinstance(error, Cancelled):
            self._tell(events.AnswerEnded(question.message, self._text, "cancelled"))
        else:
            overflow, told = isinstance(error, ContextOverflow), _sentence(error)
            self._tell(events.AnswerFailed(question.message, self._text, told, overflow))


def _sentence(error: BaseException) -> str:
    """An error for the screen; internal ones go into the log as a whole."""
    if not isinstance(error, LocalspecError | MemoryError):
        logger.error("in the engine's thread", exc_info=error)
        return (
            f"Internal error, {type(error).__name__}: {error}. Please report it, with the log in "
            f"{paths.cache_folder()}."
        )
    return describe(error)[0]

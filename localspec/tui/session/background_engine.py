"""The chat's engine in a background thread, so that the screen never waits for it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial, wraps
from pathlib import Path
from queue import SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from localspec import ModelOptions, paths
from localspec.chat.conversation import REPEATS
from localspec.chat.figures import baseline, measure_baseline
from localspec.errors import Cancelled, LocalspecError, describe
from localspec.prompting.detokenizer import OPENS
from localspec.text import listed
from localspec.tui.session.answer import Answer

if TYPE_CHECKING:
    # These import numpy, which would delay the first paint.
    from localspec import Drafting, Engine, SamplingParams, Stream
    from localspec.distill.trace import TraceHeader
    from localspec.prompting.template import Message

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger("localspec.tui")

_REPORT_EVERY = 0.1
"""Seconds between two reports of progress."""
_PATIENCE = 2.0
"""Seconds to wait for another process that learns or records."""
_RECORDED = 32
"""As `localspec.distill.trace.TOP_K`."""

Loader = Callable[..., "Engine"]
Progress = Callable[[str], object]
"""Called in the screen's thread with a description of the current work."""
_Task = tuple[int, Callable[[], object], asyncio.Future[Any]]


@dataclass(frozen=True, slots=True)
class PairReference:
    """References as for `localspec.load`."""

    model: str | None
    draft: str | None = "auto"


@dataclass(frozen=True, slots=True)
class OpenPair:
    """A pair that is open."""

    pair: PairReference
    model: str
    model_path: str
    draft: str | None
    context_length: int
    notices: tuple[str, ...] = ()


def _in_thread(
    method: Callable[Concatenate[BackgroundEngine, P], T],
) -> Callable[Concatenate[BackgroundEngine, P], asyncio.Future[T]]:
    """Run calls of a method in the engine's thread, in order; they return futures."""

    @wraps(method)
    def submit(self: BackgroundEngine, /, *args: P.args, **named: P.kwargs) -> asyncio.Future[T]:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._submitted += 1
        self._tasks.put((self._submitted, partial(method, self, *args, **named), future))
        return future

    return submit


class BackgroundEngine:
    """An engine, and the thread that opens, uses and replaces it. Tasks wait until `start` is
    called. `call`: schedules a call in the screen's thread, in order; `options`, `drafting`,
    `offline`: as for `localspec.load`; `loader`: replaces `localspec.load` in tests; `session`:
    file that caches are read from, and saved to at the end. `opened`: the open pair.

    Futures belong to the screen's event loop, and complete in the order of the calls. Their errors
    are LocalspecErrors.
    """

    def __init__(
        self,
        call: Callable[[Callable[[], object]], object],
        *,
        options: ModelOptions | None = None,
        drafting: Drafting | None = None,
        offline: bool | None = None,
        loader: Loader | None = None,
        session: Path | None = None,
    ) -> None:
        self._call = call
        self._session, self.offline = session, offline
        self._options, self._drafting = options or ModelOptions(), drafting
        self._adapter_pair: PairReference | None = None  # the one that adapters belong to
        self._loader = loader
        self._engine: Engine | None = None
        self.opened: OpenPair | None = None
        self._header: TraceHeader | None = None  # of the trace of the model that is open
        self._forgotten: set[str] = set()  # conversations
        # Tasks are numbered, so that a cancellation applies to all submitted before it.
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._submitted = self._running = self._cancelled = 0
        self._stream: Stream | None = None
        # A daemon, so that the process can exit if the screen fails.
        self._thread = threading.Thread(target=self._work, name="localspec-engine", daemon=True)
        self.start = self._thread.start

    def forget(self, conversation: str) -> None:
        """Stop learning and recording a conversation, which is being deleted."""
        self._forgotten.add(conversation)

    def stop(self) -> None:
        """Cancel the running task and all waiting ones."""
        self._cancelled = self._submitted
        stream = self._stream
        if stream is not None:
            stream.cancel()

    def end(self, timeout: float | None = None) -> None:
        """Stop, and end the thread; `timeout`: seconds to wait for it. Call `close` then."""
        self._tasks.put(None)
        self.stop()
        if self._thread.ident is not None:
            self._thread.join(timeout)

    def close(self, content: object = None) -> str | None:
        """Save the session with `content`, its conversation, and free the models; returns why the
        session could not be saved."""
        trouble = None
        if self._engine is not None and not self._thread.is_alive():
            try:
                if self._session is not None:
                    self._engine.save_session(self._session, content)
            except LocalspecError as error:
                trouble = str(error)
            self._engine.close()
            self._engine = None
        return trouble

    def _work(self) -> None:
        while (submitted := self._tasks.get()) is not None:
            self._running, task, future = submitted
            try:
                settle = partial(future.set_result, task())
            except BaseException as error:  # no error may end the thread
                settle = partial(future.set_exception, _to_localspec_error(error))
            self._call(partial(_settle, future, settle))

    def _raise_if_cancelled(self) -> None:
        if self._is_cancelled:
            raise Cancelled("Stopped.")

    @property
    def _is_cancelled(self) -> bool:
        return self._running <= self._cancelled

    @_in_thread
    def open(self, pair: PairReference, progress: Progress) -> OpenPair:
        """Replace the open pair; on failure, the previous pair is reopened if possible."""

        def report(doing: str) -> None:
            self._call(partial(progress, doing))

        before = self.opened
        try:
            self._raise_if_cancelled()
            report("looking at the files")
            self._crash_test_new(pair, report)
            # Close the old pair first: two may not fit into memory.
            if self._engine is not None:
                self._engine.close()
                self._engine = self.opened = None
            return self._load(pair, report)
        except BaseException:
            if before is not None and self._engine is None:
                with suppress(Exception):  # reopen the previous pair, which cannot be cancelled
                    self._load(before.pair, report, stoppable=False)
            raise

    def _load(self, pair: PairReference, report: Progress, *, stoppable: bool = True) -> OpenPair:
        from localspec import load

        reported = 0.0

        def progress(fraction: float) -> None:
            nonlocal reported
            if stoppable:
                self._raise_if_cancelled()
            now = monotonic()
            if now - reported >= _REPORT_EVERY or fraction == 1.0:
                reported = now
                report(f"loading the model: {fraction:.0%}")

        options, left_out = self._options_for(pair)
        engine = (self._loader or load)(
            pair.model,
            draft=pair.draft,
            offline=self.offline,
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
        self.opened = OpenPair(
            pair,
            model.name,
            str(model.path),
            None if draft is None else draft.name,
            engine.context_length,
            tuple(notices if chosen is None else [*notices, f"-d auto: {chosen}."]),
        )
        return self.opened

    def _options_for(self, pair: PairReference) -> tuple[ModelOptions, list[str]]:
        """Options without another pair's adapters and projector, and notices about the removed
        ones."""
        self._adapter_pair = first = self._adapter_pair or pair
        options, same_model = self._options, pair.model == first.model
        kept = replace(
            options,
            lora=options.lora if same_model else (),
            lora_draft=options.lora_draft if pair.draft == first.draft else (),
            mmproj=options.mmproj if same_model else None,
        )
        names = [
            adapter.path.name
            for adapter in (*options.adapters, *options.draft_adapters)
            if adapter not in (*kept.adapters, *kept.draft_adapters)
        ]
        if options.mmproj is not None and kept.mmproj is None:
            names.append(Path(options.mmproj).name)
        if not names:
            return kept, []
        return kept, [f"Left out: {listed(names)}, for the previous model only."]

    def _crash_test_new(self, pair: PairReference, report: Progress) -> None:
        """Open files that were not opened before in a child process first, which may crash."""
        if self._loader is not None:
            return
        from localspec.gguf import description
        from localspec.hub.resolution import resolve
        from localspec.llama.crash_test import require_survivable
        from localspec.self_draft.recipe import is_self

        # With RPC servers the target is opened in a separate process anyway, and may not fit here.
        for reference in (None if self._options.rpc else pair.model, pair.draft):
            # A self-draft uses the model's own file.
            if reference not in (None, "auto", "none") and not is_self(reference):
                path = resolve(reference, offline=self.offline)
                if description.describe(path).problem is None:  # heads need their target
                    report("testing the model in a separate process, once")
                    require_survivable(path, cancelled=lambda: self._is_cancelled)

    @_in_thread
    def answer(
        self,
        answer: Answer,
        messages: Sequence[Message],
        sampling: SamplingParams,
        max_tokens: int | None,
        overflow: str = "error",
        *,
        records: bool = False,
        progress: Progress = lambda doing: None,
        on_begin: Callable[[], object] = lambda: None,
    ) -> None:
        """Generate an answer to `messages`, with arguments as for `Engine.stream`. `records`:
        whether `record` will be called for it; `on_begin`: called in the screen's thread before the
        first chunk."""
        from localspec.decoding import repetition

        self._raise_if_cancelled()
        if self._engine is None or self.opened is None:
            raise LocalspecError("No model is open. Choose one with Ctrl+O or /model.")

        def reading(done: int, total: int) -> None:
            self._call(partial(progress, f"reading the prompt: {done / max(1, total):.0%}"))

        thinks = self._engine.prompts.thinks(messages, free=True)
        stream = self._engine.stream(
            messages,
            max_tokens=max_tokens,
            sampling=sampling,
            overflow=overflow,
            logprobs=_RECORDED if records else None,
            thinks=thinks,
            progress=reading,
        )
        written: deque[int] = deque(maxlen=repetition.WINDOW)
        unseen, repeats = 0, False
        answer.begin(stream, self._engine, f"{OPENS}\n" if thinks else "")
        self._call(on_begin)
        if self._engine.plain_seconds(0) is None:
            self._call(partial(progress, "measuring what a pass costs here (once, about 2 s) …"))
        # In this order: a cancellation before the assignment is checked below; a later one cancels
        # the stream directly.
        self._stream = stream
        try:
            if self._is_cancelled:
                stream.cancel()
            for chunk in stream:
                answer.put(chunk)
                written.extend(chunk.token_ids)
                unseen += len(chunk.token_ids)
                if max_tokens is None and unseen >= repetition.LEAST:
                    unseen = 0
                    if repetition.period(written, repetition.WINDOW):
                        repeats = True
                        stream.close()
                        break
        finally:
            self._stream = None
        answer.finish_reason = REPEATS if repeats else stream.finish_reason

    @_in_thread
    def compare(self) -> bool:
        """Measure stock llama.cpp if it is due (once, some seconds). The result is whether the
        baseline has changed."""
        # Measuring would empty the caches, which a session saves.
        if self._engine is None or self.opened is None or self._session is not None:
            return False
        before, options = baseline(self._engine), self._options_for(self.opened.pair)[0]
        now = measure_baseline(self._engine, options, lambda _: self._raise_if_cancelled())
        return now != before

    @_in_thread
    def learn(self, conversation: str, texts: Sequence[str]) -> None:
        from localspec.retrieval.learner import forget_conversations
        from localspec.retrieval.manifest import CONVERSATION

        engine = self._engine
        if engine is not None:
            # If another process holds the lock, this is learned with the next answer.
            named = {CONVERSATION + conversation: texts}
            self._keep_unless_forgotten(
                conversation, partial(engine.learn, named, patience=_PATIENCE), forget_conversations
            )

    @_in_thread
    def record(self, answer: Answer) -> None:
        from localspec.distill import chats, folders

        assert self._engine is not None
        model, conversation = self._engine.model, answer.conversation.id
        if self._header is None:
            self._header = folders.header_of(model.path, model.vocabulary)
        folder = folders.folder_of(model.path, self._header.identity)
        what = self._header, conversation, answer.prompt, answer.logprobs
        self._keep_unless_forgotten(
            conversation, partial(chats.record_answer, folder, *what), chats.forget
        )

    def _keep_unless_forgotten(
        self,
        conversation: str,
        keep: Callable[[], object],
        forget: Callable[[Sequence[str]], object],
    ) -> None:
        """Store data of a conversation, unless it was deleted."""
        if conversation in self._forgotten:
            return
        keep()
        if conversation in self._forgotten:  # deleted meanwhile
            forget([conversation])


def _settle(future: asyncio.Future[Any], settle: Callable[[], object]) -> None:
    if not future.done():  # its waiter may have been cancelled
        settle()


def _to_localspec_error(error: BaseException) -> LocalspecError:
    """Convert an error for the screen; internal ones are logged with their traceback."""
    if isinstance(error, LocalspecError):
        return error
    logger.error("in the engine's thread", exc_info=error)
    report = f"Please report it, with the log in {paths.cache_folder()}."
    return LocalspecError(describe(error, report)[0])

"""The models of a server, and its session: the first is loaded at once, others on demand.

If memory is short, idle models are unloaded, least recently used first.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from localspec import ModelOptions, Stream
from localspec.cgroups import available_memory
from localspec.chat.figures import measure_baseline
from localspec.engine import Engine
from localspec.errors import Cancelled, SessionError
from localspec.llama.embeddings import Embedder, EmbeddingModel
from localspec.llama.model import Model
from localspec.loading.second_engine import open_embedder
from localspec.server.answer_figures import ServedTotals, text_of_tokens
from localspec.server.failures import ApiError, logger
from localspec.text import counted, printable
from localspec.worker_threads import run_in_thread

Value = TypeVar("Value")


class SlotQueue:
    """Runs at most one answer per slot, others wait; used only on the event loop's thread."""

    def __init__(self, slots: int, most_waiting: int) -> None:
        self.slots, self.most_waiting = slots, most_waiting
        self._free: asyncio.Queue[int] = asyncio.Queue()
        for slot in range(slots):
            self._free.put_nowait(slot)
        self._tasks: set[asyncio.Task[object]] = set()

    @property
    def waiting(self) -> int:
        return len(self._tasks) - self.running

    @property
    def running(self) -> int:
        return self.slots - self._free.qsize()

    def submit(self, *works: Callable[[int], Awaitable[Value]]) -> list[asyncio.Task[Value]]:
        """Queue each work, to be called with the number of a free slot. Raises ApiError if the
        queue is full."""
        if len(works) > (room := self.most_waiting + self.slots):
            fit = counted(room, "answer")
            why = f"The queue has room for {fit} (--max-queue). Ask for fewer at a time."
            raise ApiError(400, why)
        if len(self._tasks) + len(works) > room:
            why = f"The queue is full (--max-queue; waiting: {self.waiting}). Try again later."
            raise ApiError(429, why, code="queue_full", retry_after=1)
        tasks = [asyncio.create_task(self._run_in_slot(work)) for work in works]
        for task in tasks:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return tasks

    async def _run_in_slot(self, work: Callable[[int], Awaitable[Value]]) -> Value:
        slot = await self._free.get()
        try:
            return await work(slot)
        finally:
            self._free.put_nowait(slot)


_ROLES = ("system", "user", "assistant")

Prompted = str | Sequence[Mapping[str, Any]]


class ServedSession:
    """The conversation of `--session FILE`: the last one that was answered, also for `localspec
    run` and `localspec chat`. `notify` is called with notices about the file; `lost`: why it could
    not be saved, or ""."""

    def __init__(self, path: Path, notify: Callable[[str], object]) -> None:
        self._path, self._notify = path, notify
        self.lost = ""
        self._latest: tuple[Prompted | None, Stream] | None = None

    def restore(self, engine: Engine) -> None:
        """Continue the conversation in the file. Raises SessionError if it cannot be read."""
        for notice in engine.open_session(self._path).notices:
            self._notify(notice)

    def record_answer(self, prompt: Prompted | None, stream: Stream) -> None:
        """Remember the latest answer; `prompt` is None if token ids were sent."""
        self._latest = prompt, stream

    def save(self, engine: Engine) -> None:
        if self._latest is not None:
            try:
                engine.save_session(self._path, _conversation(engine, *self._latest))
            except SessionError as error:
                self.lost = str(error)


def _conversation(engine: Engine, prompt: Prompted | None, stream: Stream) -> Any:
    if isinstance(prompt, str):
        return prompt + stream.text
    if prompt is None or not all(
        one["role"] in _ROLES and isinstance(one.get("content"), str) for one in prompt
    ):
        return text_of_tokens(stream.context, engine, special=False)
    messages = [{"role": one["role"], "content": one["content"]} for one in prompt]
    begun = ""
    if messages[-1]["role"] == "assistant":  # the answer continued it
        begun = messages.pop()["content"]
    return [*messages, {"role": "assistant", "content": begun + stream.text}]


OpenModel = Engine | EmbeddingModel


@dataclass(kw_only=True, eq=False)
class ModelHost:
    """A model that clients may request, and its state. It is loaded in a thread; all else runs on
    the event loop's. `aliases`: other names from the user; `reference`: the argument that the user
    typed, also accepted as a name; `needs`: bytes of memory that it will take, 0 if unknown.
    `progress`: of loading, 0 to 1; None if it is not being loaded, or is loaded; `users`: running
    requests for it; `used`: monotonic time of the latest one; `slots`: the number, of `numbers`,
    and the stream of each running answer."""

    opener: Callable[[Callable[[float], None]], OpenModel]
    name: str
    path: Path
    aliases: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    reference: str | None = None
    options: ModelOptions = field(default_factory=ModelOptions)
    needs: Callable[[], int] = lambda: 0
    session: ServedSession | None = None

    def __post_init__(self) -> None:
        self.opened: OpenModel | None = None
        self.queue = SlotQueue(1, 0)
        self.totals, self.numbers = ServedTotals(), count(1)
        self.slots: dict[int, tuple[int, Stream]] = {}
        self.progress: float | None = None
        self.failed = False
        self.loaded_at = 0
        self.users = 0
        self.used = 0.0
        self._embedder: Embedder | None = None
        self._making = asyncio.Lock()
        self._closing = False
        self._loading: asyncio.Future[OpenModel] | None = None

    @property
    def engine(self) -> Engine | None:
        """None if it is not loaded, or the model only makes embeddings."""
        return None if isinstance(self.opened, EmbeddingModel) else self.opened

    @property
    def model(self) -> Model | None:
        return None if self.opened is None else self.opened.model

    def require(self) -> Engine:
        self.require_opened()
        if self.engine is None:
            why = (
                f"{self.name} makes only embeddings, not text. Use /v1/embeddings, or start "
                "the server with a chat model (-m)."
            )
            raise ApiError(400, why, param="model")
        return self.engine

    def require_opened(self) -> Model:
        if self.model is not None:
            return self.model
        if self.progress is not None:
            more = {"progress": round(self.progress, 3)}
            raise ApiError(503, "Loading model", retry_after=1, more=more)
        why = f"{self.name} is not loaded now. The next request for an answer loads it."
        if self.failed:
            why = "The model could not be loaded. The reason is in the server's output."
        raise ApiError(503, why)

    def has_name(self, name: str) -> bool:
        name = name.removesuffix(":latest")  # ollama's clients may add it
        file = () if self.aliases else (self.path.stem, self.path.name)
        return name in (self.name, self.reference, *self.aliases, *file)

    async def load(self) -> OpenModel:
        """Open the model. Raises LocalspecError if that fails."""
        # In a separate task, so that cancelling the request does not stop it.
        self._loading = asyncio.ensure_future(self._load())
        return await asyncio.shield(self._loading)

    async def _load(self) -> OpenModel:
        self.progress, self.failed = 0.0, False
        try:
            self.opened = await run_in_thread("localspec-load", self._open)
        except BaseException:
            self.failed = True
            raise
        finally:
            self.progress = None
        self.path = self.opened.model.path
        self.loaded_at = int(time.time())
        slots = 1 if isinstance(self.opened, EmbeddingModel) else self.opened.parallel
        self.queue = SlotQueue(slots, self.queue.most_waiting)
        return self.opened

    async def unload(self) -> None:
        opened, self.opened = self.opened, None
        embedder, self._embedder = self._embedder, None
        if self.session is not None and isinstance(opened, Engine):
            await asyncio.to_thread(self.session.save, opened)
        for one in (embedder, opened):
            if one is not None:
                await asyncio.to_thread(one.close)

    async def embedder(self) -> Embedder | EmbeddingModel:
        """Return the embedder, created on first use. Raises NativeError if the model has none."""
        self.require_opened()
        if isinstance(self.opened, EmbeddingModel):
            return self.opened
        async with self._making:
            if self._embedder is None:
                engine = self.require()
                self._embedder = await asyncio.to_thread(open_embedder, engine, self.options)
            return self._embedder

    async def close(self) -> None:
        self._closing = True
        if self._loading is not None:
            await asyncio.wait({self._loading})
        await self.unload()

    def _open(self) -> OpenModel:
        def report(fraction: float) -> None:
            if self._closing:
                raise Cancelled("Stopped while the model was loading.")
            self.progress = fraction

        opened = self.opener(report)
        if not isinstance(opened, EmbeddingModel):
            # Before a session fills the caches.
            measure_baseline(opened, self.options, report)
            if self.session is not None:
                self.session.restore(opened)
        return opened


class Models:
    def __init__(
        self, hosts: Sequence[ModelHost], max_queue: int, loaded: Callable[[OpenModel], None]
    ) -> None:
        self.hosts = hosts
        for host in hosts:
            host.queue.most_waiting = max_queue
        self.hosts[0].progress = 0.0
        self._loaded = loaded
        self._started = False
        self._one_at_a_time = asyncio.Lock()
        self._left = asyncio.Event()
        self._emptying = False

    async def start(self) -> None:
        async with self._one_at_a_time:
            self._loaded(await self.hosts[0].load())
        self._started = True

    @property
    def current(self) -> ModelHost:
        """The model that was used last, or else the first."""
        loaded = [host for host in self.hosts if host.opened is not None]
        return max(loaded, key=lambda host: host.used) if loaded else self.hosts[0]

    def find(self, name: str | None) -> ModelHost:
        """Find a model by name; the first for "" or None, the only one for any name."""
        if len(self.hosts) == 1 or not name:
            return self.hosts[0]
        return self.named(name)

    def named(self, name: str) -> ModelHost:
        for host in self.hosts:
            if host.has_name(name):
                return host
        names = ", ".join(host.name for host in self.hosts)
        why = f"There is no model '{printable(name, 100)}' here. Ask for one of: {names}."
        raise ApiError(404, why, code="model_not_found", param="model")

    def require_started(self) -> None:
        """Raise an ApiError until the first model has been loaded; it may be unloaded later."""
        if not self._started:
            self.hosts[0].require_opened()

    async def enter(self, host: ModelHost) -> None:
        """Load a model, and keep it until `leave`. Raises ApiError before the first is loaded, and
        LocalspecError if loading fails."""
        self.require_started()
        host.used = time.monotonic()
        # Only requests that can run count as users: counting those that wait could deadlock.
        while host.opened is None or self._emptying:
            async with self._one_at_a_time:
                if host.opened is None:
                    await self._make_room(host)
                    self._loaded(await host.load())
        host.users += 1

    def leave(self, host: ModelHost, *, unload: bool = False) -> None:
        host.users -= 1
        if unload and not host.users:
            self._unloading = asyncio.ensure_future(self.unload(host))
        self._left.set()

    async def unload(self, host: ModelHost) -> None:
        """Unload a model as soon as no request uses it; the next request loads it again."""
        self.require_started()
        async with self._one_at_a_time:
            while host.users:
                await self._wait_for_leave()
            await host.unload()

    async def _wait_for_leave(self) -> None:
        """Wait until a request is complete. New ones wait meanwhile, or a busy model would stay."""
        self._left.clear()
        self._emptying = True
        try:
            await self._left.wait()
        finally:
            self._emptying = False

    async def close(self) -> None:
        for host in self.hosts:
            await host.close()

    async def _make_room(self, host: ModelHost) -> None:
        """Unload other models, once no request uses them, until this one fits."""
        need = await asyncio.to_thread(host.needs)
        while need > available_memory()[0]:
            loaded = [one for one in self.hosts if one.opened is not None]
            if not loaded:
                return
            oldest = min(loaded, key=lambda one: (one.users > 0, one.used))
            if oldest.users:
                await self._wait_for_leave()
            else:
                logger.info("%s makes room for %s", oldest.name, host.name)
                await oldest.unload()

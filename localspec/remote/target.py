"""A target whose weights, caches and passes are in a child process, and on other machines."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import Any

from localspec.decoding.sampling import Rows
from localspec.decoding.tree import TokenTree
from localspec.errors import Cancelled, LocalspecError, ServerUnreachable
from localspec.llama.context import Context
from localspec.llama.devices import Device
from localspec.llama.model import Model, Progress
from localspec.llama.native_context import NativeCache
from localspec.llama.options import Adapter, ModelOptions
from localspec.llama.sequences import State
from localspec.remote import servers
from localspec.remote.process import MOST_CONTEXTS, ChildProcess, SharedRows

logger = logging.getLogger("localspec.remote")

PATIENCE = 10.0
"""Seconds that a pass waits for a lost server to return."""
HANGS = 20.0
"""Seconds that a cancelled pass may continue, as llama.cpp waits forever for a server."""
_AGAIN = 0.25


class RemoteModel(Model):
    """A `Model` of which this process holds only the vocabulary. `require_room` is called with the
    devices that can hold layers, and may raise. Raises ServerUnreachable if a server does not
    answer; otherwise as `Model`."""

    def __init__(
        self,
        path: Path,
        options: ModelOptions,
        *,
        progress: Progress | None = None,
        require_room: Callable[[Sequence[Device]], object] = lambda _devices: None,
        adapters: Sequence[Adapter] = (),
    ) -> None:
        self._servers = options.rpc
        self._options = replace(options, rpc=())
        self._require_room = require_room
        self._child: ChildProcess | None = None
        self.free_numbers = set(range(MOST_CONTEXTS))  # of contexts
        super().__init__(path, self._options, vocabulary_only=True, adapters=adapters)
        try:
            self.shared = SharedRows(self.vocabulary.size)
            self.child(progress)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> RemoteModel:
        return self

    def close(self) -> None:
        if self._child is not None:
            self._child.close()
            self.shared.close()
        super().close()

    def child(self, progress: Progress | None = None) -> ChildProcess:
        if self._child is not None and not self._child.lost:
            return self._child
        servers.require_answering(self._servers)
        child = self._child = ChildProcess(self._servers, self.shared)
        try:
            self._require_room(child.call(None, "connect", self._servers))
            opened = (self.path, self._options, self.adapters)
            facts = child.call(None, "open", *opened, progress=progress)
        except BaseException:
            child.close()
            raise
        for name, value in facts.items():
            setattr(self, name, value)
        return child


class RemoteContext(Context):
    """A `Context` whose cache and passes are the child's.

    `tokens` is the intended content of the cache; a restarted child prefills it again. If a server
    is lost during a pass, the pass is repeated for up to PATIENCE seconds. Then it fails, the cache
    counts as empty, and the next pass tries again.
    """

    def __init__(self, model: RemoteModel, options: ModelOptions) -> None:
        NativeCache.__init__(self, model)  # not Context's, as there is no native context here
        self.model: RemoteModel = model
        self._options = options
        self._number = model.free_numbers.pop()
        self._child: ChildProcess | None = None
        self._notices: list[str] = []
        self.resume()  # another context may have had this number
        self._open(model.child())

    def close(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            if not child.lost:
                with suppress(LocalspecError):
                    child.call(self._number, "close")
            self.model.free_numbers.add(self._number)

    def cancel(self) -> None:
        self.model.shared.flags[self._number] = 1
        child = self._child
        if child is not None:
            child.end_if_hanging(HANGS)

    def resume(self) -> None:
        self.model.shared.flags[self._number] = 0

    def take_notices(self) -> list[str]:
        notices, self._notices = self._notices, []
        return notices

    def set_threads(self, count: int) -> None:
        self._request("set_threads", count)

    def request_hidden(self, layers: tuple[int, ...]) -> None:
        self._request("request_hidden", layers)
        self._layers = layers

    def hidden(self, outputs: int) -> dict[int, Rows]:
        found: dict[int, Rows] = self._request("hidden", outputs)
        return found

    def extend(
        self,
        tokens: Sequence[int],
        outputs: int = 1,
        progress: Callable[[int, int], None] | None = None,
    ) -> Rows:
        return self._pass("extend", list(tokens), outputs, progress=progress)

    def branch(self, pending: Sequence[int], tree: TokenTree) -> Rows:
        return self._pass("branch", list(pending), _bare(tree))

    def commit(self, tree: TokenTree, path: Sequence[int]) -> None:
        self._or_empty("commit", _bare(tree), list(path))

    def truncate(self, length: int) -> None:
        if length < len(self.tokens):
            self._or_empty("truncate", length)

    def checkpoint(self) -> None:
        self._or_empty("checkpoint")

    def discard_branches(self) -> None:
        self._or_empty("discard_branches")

    def clear(self) -> None:
        self._or_empty("clear")

    def state(self) -> State:
        state: State = self._request("state")
        return state

    def set_state(self, tokens: Sequence[int], state: State) -> None:
        self._request("set_state", list(tokens), state)

    def _pass(self, name: str, *arguments: Any, progress: Any = None) -> Rows:
        """Run a pass, and repeat it if a server was lost but returns in time; returns rows."""
        lost_at, lost = 0.0, None
        while True:
            try:
                if lost is not None and self.model.shared.flags[self._number]:
                    raise Cancelled("Stopped on request.")
                had = self._child is not None and not self._child.lost
                child = self._current(progress)
                started = perf_counter()
                count = self._change(child, name, *arguments, progress=progress)
            except ServerUnreachable as error:
                # A server that was lost before has been waited for already.
                if lost is None and had:
                    lost_at, lost = monotonic(), error
                    logger.warning("%s", error)
                if lost is None or monotonic() - lost_at > PATIENCE:
                    self.tokens.clear()
                    raise (lost or error) from None
                sleep(_AGAIN)
                continue
            # The time of network and pipe is part of the pass cost.
            self.native_seconds += perf_counter() - started
            if lost is not None:
                self._notices.append(
                    "The connection to an RPC server was lost for "
                    f"{monotonic() - lost_at:.0f} s; the text was prefilled again, and the answer "
                    "continued."
                )
            return self.model.shared.rows[:count]

    def _request(self, name: str, *arguments: Any) -> Any:
        """Send a request to the child. If a server does not answer, the cache counts as empty."""
        try:
            return self._change(self._current(), name, *arguments)
        except ServerUnreachable:
            self.tokens.clear()
            raise

    def _or_empty(self, name: str, *arguments: Any) -> None:
        child = self._child
        try:
            if child is not None and not child.lost:
                self._change(child, name, *arguments)
                return
        except ServerUnreachable as error:
            logger.warning("%s", error)
        self.tokens.clear()

    def _current(self, progress: Any = None) -> ChildProcess:
        child = self.model.child()
        if child is not self._child:
            self._open(child)
            if self._layers:
                self._change(child, "request_hidden", self._layers)
            before = list(self.tokens)
            if before:
                self.tokens.clear()
                try:
                    self._change(child, "extend", before, 0, progress=progress)
                except BaseException:
                    self._child = None
                    self.tokens[:] = before
                    raise
        return child

    def _open(self, child: ChildProcess) -> None:
        limits = child.call(None, "context", self._number, self._options)
        self._child = child
        for name, value in limits.items():
            setattr(self, name, value)

    def _change(self, child: ChildProcess, name: str, *arguments: Any, progress: Any = None) -> Any:
        value, (same, rest) = child.call(self._number, name, *arguments, progress=progress)
        self.tokens[same:] = rest
        return value


def _bare(tree: TokenTree) -> TokenTree:
    """A copy without the proposal distributions, which may be large."""
    bare = copy(tree)
    bare.proposals = []
    return bare

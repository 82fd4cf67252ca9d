"""A target whose weights are in a child process, and on other machines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from localspec.llama.adapters import Adapter
from localspec.llama.devices import Device
from localspec.llama.model import Model, Progress
from localspec.llama.options import ModelOptions
from localspec.remote import servers
from localspec.remote.process import MOST_CONTEXTS, ChildProcess, SharedRows


class RemoteModel(Model):
    """A `Model` of which this process has only the vocabulary. `require_room` is called with the
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
        self._numbers: set[int] = set()
        self._shared: SharedRows | None = None
        super().__init__(path, self._options, vocabulary_only=True, adapters=adapters)
        try:
            self._shared = SharedRows(self.vocabulary.size)
            self.child(progress)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> RemoteModel:
        return self

    def close(self) -> None:
        if self._child is not None:
            self._child.close()
        if self._shared is not None:
            self._shared.close()
        super().close()

    @property
    def shared(self) -> SharedRows:
        assert self._shared is not None, "it is open"
        return self._shared

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

    def number(self) -> int:
        found = min(set(range(MOST_CONTEXTS)) - self._numbers)
        self._numbers.add(found)
        return found

    def release(self, number: int) -> None:
        self._numbers.discard(number)

"""The models of a server: the first is loaded at once, others on demand.

Where memory does not hold another one, idle models are unloaded, least recently used first.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import psutil

from localspec.server.failures import ApiError, logger
from localspec.server.model_host import ModelHost, Offer, Opened
from localspec.text import printable


class Models:
    def __init__(
        self, offers: Sequence[Offer], max_queue: int, loaded: Callable[[Opened], None]
    ) -> None:
        self.hosts = [ModelHost(offer, max_queue) for offer in offers]
        self._loaded = loaded
        self._started = False
        self._one_at_a_time = asyncio.Lock()
        self._left = asyncio.Event()

    async def start(self) -> None:
        async with self._one_at_a_time:
            self._loaded(await self.hosts[0].load())
        self._started = True

    @property
    def current(self) -> ModelHost:
        """The one that was used last, or else the first."""
        loaded = [host for host in self.hosts if host.opened is not None]
        return max(loaded, key=lambda host: host.used) if loaded else self.hosts[0]

    def find(self, name: str | None) -> ModelHost:
        """The model of a name: any name where there is one only, and "" for the first."""
        if len(self.hosts) == 1 or not name:
            return self.hosts[0]
        return self.named(name)

    def named(self, name: str) -> ModelHost:
        for host in self.hosts:
            if host.goes_by(name):
                return host
        names = ", ".join(host.name for host in self.hosts)
        raise ApiError(
            404,
            f"There is no model '{printable(name, 100)}' here. Ask for one of: {names}.",
            code="model_not_found",
            param="model",
        )

    def require_started(self) -> None:
        """Return once the first model was loaded; later none may be."""
        if not self._started:
            self.hosts[0].require_opened()

    async def enter(self, host: ModelHost) -> None:
        """Have a model loaded until `leave`; an ApiError before the first was, a LocalspecError
        where it cannot be."""
        self.require_started()
        host.users += 1
        host.used = time.monotonic()
        try:
            if host.opened is None:
                async with self._one_at_a_time:
                    if host.opened is None:
                        await self._make_room(host)
                        self._loaded(await host.load())
        except BaseException:
            self.leave(host)
            raise

    def leave(self, host: ModelHost) -> None:
        host.users -= 1
        self._left.set()

    async def unload(self, host: ModelHost) -> None:
        """Unload it as soon as no request needs it; the next one loads it again."""
        self.require_started()
        async with self._one_at_a_time:
            while host.users:
                self._left.clear()
                await self._left.wait()
            await host.unload()

    async def close(self) -> None:
        for host in self.hosts:
            await host.close()

    async def _make_room(self, host: ModelHost) -> None:
        """Unload other models until this one fits, as soon as no request needs them."""
        need = await asyncio.to_thread(host.offer.needs)
        while need > psutil.virtual_memory().available:
            loaded = [one for one in self.hosts if one.opened is not None]
            if not loaded:
                return
            idle = [one for one in loaded if not one.users]
            if idle:
                oldest = min(idle, key=lambda one: one.used)
                logger.info("%s makes room for %s", oldest.name, host.name)
                await oldest.unload()
            else:
                self._left.clear()
                await self._left.wait()

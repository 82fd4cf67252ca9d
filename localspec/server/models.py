"""The models of a server: the first is loaded at once, others when somebody asks for them.

Where memory does not hold another one, those leave that nobody uses, the one first that was not
used for longest.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

import psutil

from localspec.server.failures import ApiError
from localspec.server.model_host import ModelHost, Offer, Opened
from localspec.text import printable

logger = logging.getLogger("localspec.server")


class Models:
    """See the module. All of it belongs to the event loop's thread.

    Args:
        offers: at least one.
        max_queue: answers that may wait for each.
        loaded: told of everything that was opened.

    Attributes:
        hosts: of all models, in the order of the offers.
    """

    def __init__(
        self, offers: Sequence[Offer], max_queue: int, loaded: Callable[[Opened], None]
    ) -> None:
        self.hosts = [ModelHost(offer, max_queue) for offer in offers]
        self._loaded = loaded
        self._started = False
        self._one_at_a_time = asyncio.Lock()
        self._left = asyncio.Event()

    async def start(self) -> None:
        """Load the first model.

        Raises:
            LocalspecError: it cannot be loaded.
        """
        async with self._one_at_a_time:
            await self._bring(self.hosts[0])
        self._started = True

    @property
    def current(self) -> ModelHost:
        """The model that was used last, of those that are loaded; else the first."""
        there = [host for host in self.hosts if host.opened is not None]
        return max(there, key=lambda host: host.used) if there else self.hosts[0]

    def find(self, name: str | None) -> ModelHost:
        """The model that a client means. It may say anything where there is one only, and nothing
        for the first.

        Raises:
            ApiError: there is none of that name.
        """
        if len(self.hosts) == 1 or not name:
            return self.hosts[0]
        for host in self.hosts:
            if host.goes_by(name):
                return host
        raise self.unknown(name)

    def unknown(self, name: str) -> ApiError:
        """What to raise for a name that no model has."""
        names = ", ".join(host.name for host in self.hosts)
        return ApiError(
            404,
            f"There is no model '{printable(name, 100)}' here. Ask for one of: {names}.",
            code="model_not_found",
            param="model",
        )

    def require_started(self) -> None:
        """Return once the first model was there; others may be on their way, or none be loaded.

        Raises:
            ApiError: it is not there yet, or never will be.
        """
        if not self._started:
            self.hosts[0].require_opened()

    async def enter(self, host: ModelHost) -> None:
        """Have a model there until `leave`; it is loaded where it is not.

        Raises:
            ApiError: the server has only begun, and is loading its first one.
            LocalspecError: it cannot be loaded.
        """
        self.require_started()
        host.users += 1
        host.used = time.monotonic()
        try:
            if host.opened is None:
                async with self._one_at_a_time:
                    if host.opened is None:
                        await self._make_room(host)
                        await self._bring(host)
        except BaseException:
            self.leave(host)
            raise

    def leave(self, host: ModelHost) -> None:
        """A request does not need a model any more."""
        host.users -= 1
        self._left.set()

    def close(self) -> None:
        """Free all; waits until nothing runs on them."""
        for host in self.hosts:
            host.close()

    async def _bring(self, host: ModelHost) -> None:
        await host.load()
        if host.error is not None:
            raise host.error
        assert host.opened is not None
        self._loaded(host.opened)

    async def _make_room(self, host: ModelHost) -> None:
        """Unload what is in the way of a model, as soon as nobody uses it."""
        need = await asyncio.to_thread(host.offer.needs)
        while True:
            there = [one for one in self.hosts if one.opened is not None]
            if not there or need <= psutil.virtual_memory().available:
                return
            idle = [one for one in there if not one.users]
            if idle:
                oldest = min(idle, key=lambda one: one.used)
                logger.info("%s makes room for %s", oldest.name, host.name)
                await oldest.unload()
            else:
                self._left.clear()
                await self._left.wait()

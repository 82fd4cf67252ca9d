"""`/`: a chat in the browser, with what the server does beside it.

The page holds no text of anybody: conversations stay in the browser, and `/events` tells figures.
"""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp

from localspec import paths
from localspec.server.events import Streamed, event
from localspec.server.failures import ApiError
from localspec.server.service import Service

PAGE = Path(__file__).with_name("page.html")
_PAUSE = 1.0
"""Seconds between two looks."""


async def page(service: Service, request: Request) -> Response:
    """The page itself; what it shows comes by `events`."""
    _require_ui(service)
    nonce = secrets.token_urlsafe(16)
    html = PAGE.read_text(encoding="utf-8").replace("NONCE", nonce)
    policy = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; "
        "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'; trusted-types 'none'; require-trusted-types-for 'script'"
    )
    return HTMLResponse(
        html, headers={"Content-Security-Policy": policy, "Referrer-Policy": "no-referrer"}
    )


async def events(service: Service, request: Request) -> ASGIApp:
    """The state of the server, every second."""
    _require_ui(service)
    service.require_started()

    async def states() -> AsyncGenerator[bytes, None]:
        while not service.draining.is_set():
            yield event(state(service))
            try:
                await asyncio.wait_for(service.draining.wait(), _PAUSE)
            except asyncio.TimeoutError:
                continue

    return Streamed(states(), lambda: None)


def _require_ui(service: Service) -> None:
    """Return where there is a page.

    Raises:
        ApiError: the server was told to have none.
    """
    if not service.options.ui:
        raise ApiError(404, "There is no page here. Start the server without --no-ui.")


def state(service: Service) -> dict[str, Any]:
    """What the page shows."""
    # Between two models there may be none.
    engine, activity, gate = service.host.engine, service.activity, service.gate
    slots = []
    for number in range(gate.slots):
        working = activity.slots.get(number)
        slot: dict[str, Any] = {"slot": number, "answer": None}
        if working is not None:
            stats = working.stream.stats
            slot = {
                "slot": number,
                "answer": working.number,
                "prompt": stats.prompt_tokens,
                "cached": stats.cached_tokens,
                "written": stats.generated_tokens,
                "seconds": time.monotonic() - working.since,
            }
        slots.append(slot)
    return {
        "model": service.host.name,
        "demo": service.host.path == paths.embedded(paths.EMBEDDED_TARGET),
        "draft": None if engine is None or engine.draft is None else engine.draft.path.stem,
        "context": 0 if engine is None else engine.context_length,
        "threads": "" if engine is None else engine.threads,
        "now": activity.now(),
        "totals": dataclasses.asdict(activity.totals),
        "running": gate.running,
        "waiting": gate.waiting,
        "slots_total": gate.slots,
        "max_queue": service.options.max_queue,
        "slots": slots,
        "requests": service.common.traffic.requests,
        "refused": service.common.traffic.refused,
    }

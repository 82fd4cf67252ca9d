"""`/`: a chat in the browser. Conversations stay there; `/events` has only figures."""

import asyncio
import dataclasses
import secrets
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path
from typing import Any

from starlette.responses import HTMLResponse, PlainTextResponse, Response

from localspec import paths
from localspec.server.failures import ApiError
from localspec.server.reply import event, streaming_response
from localspec.server.service import Service

_PAGE = Path(__file__).with_name("page.html")
_PAUSE = 1.0


async def page(service: Service) -> Response:
    if not service.options.ui:
        return PlainTextResponse("localspec is running\n")  # clients probe it
    nonce = secrets.token_urlsafe(16)
    html = _PAGE.read_text(encoding="utf-8").replace("NONCE", nonce)
    policy = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; "
        "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'; trusted-types 'none'; require-trusted-types-for 'script'"
    )
    return HTMLResponse(
        html, headers={"Content-Security-Policy": policy, "Referrer-Policy": "no-referrer"}
    )


async def events(service: Service) -> Response:
    if not service.options.ui:
        raise ApiError(404, "There is no page here. Start the server without --no-ui.")
    figures(service)  # raises ApiError for an unknown model, before the stream begins
    draining = service.state.draining

    async def states() -> AsyncGenerator[bytes, None]:
        while not draining.is_set():
            yield event(figures(service))
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(draining.wait(), _PAUSE)

    return streaming_response(states())


def figures(service: Service) -> dict[str, Any]:
    """The figures of the page. Between two models no engine is loaded."""
    host, state = service.host, service.state
    engine, queue = host.engine, host.queue
    return {
        "model": host.name,
        "demo": host.path == paths.embedded(paths.EMBEDDED_TARGET),
        "draft": None if engine is None or engine.draft is None else engine.draft.name,
        "context": 0 if engine is None else engine.context_length,
        "threads": "" if engine is None else engine.threads,
        "totals": dataclasses.asdict(host.totals),
        "running": queue.running,
        "waiting": queue.waiting,
        "slots_total": queue.slots,
        "max_queue": service.options.max_queue,
        "requests": state.requests,
        "refused": state.refused,
    }

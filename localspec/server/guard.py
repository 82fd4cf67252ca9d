"""Who may talk to the server: by key, by the name it is called, by the page that asks.

A web page anywhere can have a name of its own point to 127.0.0.1 (DNS rebinding) and let the
browser of whoever looks at it talk to this port. So the name that a request was sent to has to be
one that nobody else can hand out, and a page that asks has to be the server's own, or allowed.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import socket
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from localspec.server.activity import Traffic
from localspec.server.failures import ApiError, error_body
from localspec.server.options import LOCAL, ServerOptions, is_loopback
from localspec.text import printable

logger = logging.getLogger("localspec.server")

OPEN = frozenset(["/", "/health", "/v1/health"])
"""Paths without secrets, which need no key."""


class Guard:
    """Lets requests through to an application, or answers them itself; logs every one."""

    def __init__(self, app: ASGIApp, options: ServerOptions, traffic: Traffic) -> None:
        self._app = app
        self._options = options
        self._traffic = traffic
        own = socket.gethostname().lower()
        self._names = {
            "localhost",
            own,
            f"{own.partition('.')[0]}.local",
            *(host.lower() for host in options.hosts),
            *(name.lower() for name in options.allowed_hosts),
        }
        self._key = None if options.api_key is None else options.api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.monotonic(), 0
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        self._traffic.requests += 1

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                answered = MutableHeaders(scope=message)
                answered.setdefault("X-Content-Type-Options", "nosniff")
                answered.setdefault("Cache-Control", "no-store")
                for name, value in self._cors(origin).items():
                    answered[name] = value
            await send(message)

        try:
            own = self._answer_by_itself(scope, headers, origin)
            await (own or self._app)(scope, receive, sending)
        finally:
            if status >= 400:
                self._traffic.refused += 1
            logger.info(
                "%s %s %s %.3f s",
                printable(scope["method"], 16),
                printable(scope["path"]),
                status or "gone",
                time.monotonic() - started,
            )

    def _answer_by_itself(
        self, scope: Scope, headers: Headers, origin: str | None
    ) -> Response | None:
        """The answer to a request that is none of the application's business."""
        try:
            self._require_short(scope)
            self._require_host(headers)
            self._require_origin(headers, origin)
            if scope["method"] == "OPTIONS":
                return Response()
            if scope["path"] not in OPEN:
                self._require_key(headers)
        except ApiError as error:
            # Whatever of its body is still to come would be taken for another request.
            close = {"Connection": "close", **error.headers}
            return JSONResponse(error_body(scope["path"], error), error.status, close)
        return None

    def _require_short(self, scope: Scope) -> None:
        size = len(scope["raw_path"]) + len(scope["query_string"])
        size += sum(len(name) + len(value) + 4 for name, value in scope["headers"])
        if size > self._options.headers:
            raise ApiError(
                431, f"The head of the request is longer than {self._options.headers:,}."
            )

    def _require_host(self, headers: Headers) -> None:
        hosts = headers.getlist("host")
        host = _host_of(hosts[0]) if len(hosts) == 1 else None
        if host is None or not (host in self._names or _is_address(host)):
            raise ApiError(
                403,
                "This server does not go by that name. Use its address, or allow the name with "
                "--allowed-host.",
                code="host_not_allowed",
            )

    def _require_origin(self, headers: Headers, origin: str | None) -> None:
        if origin is None or self._allows(origin):
            return
        parts = urlsplit(origin)
        if parts.scheme in ("http", "https") and parts.netloc == headers.get("host"):
            return
        raise ApiError(
            403,
            "Pages of that origin are not allowed here. Allow it with --cors.",
            code="origin_not_allowed",
        )

    def _require_key(self, headers: Headers) -> None:
        if self._key is None:
            return
        shown = headers.get("x-api-key")
        kind, _, token = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            shown = token.strip()
        if shown is None or not hmac.compare_digest(shown.encode("utf-8", "replace"), self._key):
            raise ApiError(
                401,
                "The API key is missing or wrong. Send it as 'Authorization: Bearer KEY'.",
                code="invalid_api_key",
            )

    def _allows(self, origin: str) -> bool:
        cors = self._options.cors
        if "*" in cors or origin in cors:
            return True
        parts = urlsplit(origin)
        own = parts.scheme in ("http", "https") and is_loopback(parts.hostname or "")
        return own and LOCAL in cors

    def _cors(self, origin: str | None) -> Mapping[str, str]:
        """What tells a browser that a page may read the answer."""
        if origin is None or not self._allows(origin):
            return {}
        return {
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Allow-Methods": "GET, POST, OPTIONS",
            "Access-Control-Allow-Headers": "*, Authorization, X-Api-Key",
            "Access-Control-Max-Age": "600",
            "Vary": "Origin",
        }


def _host_of(header: str) -> str | None:
    """The host in a Host header, without port and brackets."""
    try:
        parts = urlsplit(f"//{header}")
        _ = parts.port  # raises where it is none
    except ValueError:
        return None
    if parts.username is not None or parts.path or parts.query or parts.fragment:
        return None
    host = parts.hostname
    return host.rstrip(".") if host else None


def _is_address(host: str) -> bool:
    """An address is what it says: only names can be made to point elsewhere."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True

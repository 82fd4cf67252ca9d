"""Access control by API key, host name and origin.

A web page can point its own host name to 127.0.0.1 (DNS rebinding) and make a browser talk to this
port. So the host must be a name of this machine, and the origin allowed or the server's own.
"""

import hmac
import re
import socket
import time
from collections.abc import Mapping
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from localspec.server.failures import ApiError, error_body, logger
from localspec.server.server_options import LOCAL, address_of, is_loopback
from localspec.server.service import ServerState
from localspec.text import printable

_ABSOLUTE = re.compile("https?://([^/]*)", re.IGNORECASE)  # as in requests to a proxy
_PRIVATE = "Access-Control-Allow-Private-Network"
OPEN = frozenset(["/", "/health", "/v1/health"])
_RESERVED = (".localhost", ".internal")
"""Suffixes of names that public DNS must not resolve; Docker's containers use one of them."""


class Guard:
    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self._app, self._state = app, state
        self._options = options = state.options
        own = socket.gethostname()
        local = f"{own.partition('.')[0]}.local"
        names = "localhost", own, local, *options.hosts, *options.allowed_hosts
        self._names = {name.lower() for name in names}
        self._prefix = f"/{options.api_prefix.strip('/')}".rstrip("/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started, status = time.monotonic(), 0
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if absolute := _ABSOLUTE.match(scope["path"]):
            hosts.append(absolute[1])
        names = scope["path"][absolute.end() if absolute else 0 :].split("/")
        # Some clients join base address and path with two slashes, or append one.
        path = "/" + "/".join(filter(None, names))
        if f"{path}/".startswith(f"{self._prefix}/"):  # a proxy may have removed it
            path = path.removeprefix(self._prefix) or "/"
        scope = {**scope, "path": path}
        counted = path not in ("/events", "/health")  # which are polled
        self._state.requests += counted

        async def respond(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                response_headers = MutableHeaders(scope=message)
                response_headers.setdefault("X-Content-Type-Options", "nosniff")
                response_headers.setdefault("Cache-Control", "no-store")
                response_headers.update(self._cors(headers))
            await send(message)

        try:
            await (self._refusal(scope, headers, hosts) or self._app)(scope, receive, respond)
        finally:
            self._state.refused += counted and status >= 400
            logger.info(
                "%s %s %s %.3f s",
                printable(scope["method"], 16),
                printable(scope["path"]),
                status or "gone",
                time.monotonic() - started,
            )

    def _refusal(self, scope: Scope, headers: Headers, hosts: list[str]) -> Response | None:
        try:
            if len(self._state.connections) > self._options.connections:
                why = f"More than {self._options.connections} connections are open. Close some."
                raise ApiError(503, why, code="too_many_connections", retry_after=1)
            size = len(scope["raw_path"]) + len(scope["query_string"])
            size += sum(len(name) + len(value) + 4 for name, value in scope["headers"])
            if size > self._options.headers:
                most = self._options.headers
                raise ApiError(431, f"The request head has more than {most:,} bytes.")
            for host in hosts:  # HTTP/1.0, which no browser uses, may have none
                self._require_host(host)
            self._require_origin(headers)
            if scope["method"] == "OPTIONS":
                return Response()
            if scope["path"] not in OPEN:
                self._require_key(headers)
        except ApiError as error:
            # The rest of the body would be parsed as another request.
            close = {"Connection": "close", **error.headers}
            return JSONResponse(error_body(scope["path"], error), error.status, close)
        return None

    def _require_host(self, header: str) -> None:
        host = _host_of(header)
        # Only names can be rebound, addresses cannot.
        known = host is not None and (host in self._names or host.endswith(_RESERVED))
        if not known and (host is None or address_of(host) is None):
            why = (
                "This server does not answer to that name. Use its address, or allow the name with "
                "--allowed-host."
            )
            raise ApiError(403, why, code="host_not_allowed")

    def _require_origin(self, headers: Headers) -> None:
        origin = headers.get("origin")
        if origin is None or self._allows(origin):
            return
        parts = _split(origin)
        if parts.scheme not in ("http", "https") or parts.netloc != headers.get("host"):
            why = "Pages of that origin are not allowed here. Allow it with --cors."
            raise ApiError(403, why, code="origin_not_allowed")

    def _require_key(self, headers: Headers) -> None:
        key = self._options.api_key
        if key is None:
            return
        kind, _, token = headers.get("authorization", "").partition(" ")
        # Some clients send both, one of them with another provider's key.
        given = [token.strip() if kind.lower() == "bearer" else "", headers.get("x-api-key", "")]
        if not any(hmac.compare_digest(one.encode(), key.encode()) for one in given):
            why = "The API key is missing or wrong. Send it as 'Authorization: Bearer KEY'."
            raise ApiError(401, why, code="invalid_api_key")

    def _allows(self, origin: str) -> bool:
        cors = self._options.cors
        parts = _split(origin)
        own = parts.scheme in ("http", "https") and is_loopback(parts.hostname or "")
        return "*" in cors or origin in cors or (own and LOCAL in cors)

    def _cors(self, headers: Headers) -> Mapping[str, str]:
        origin = headers.get("origin")
        if origin is None or not self._allows(origin):
            return {}
        return {
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Allow-Methods": "GET, POST, OPTIONS",
            "Access-Control-Allow-Headers": headers.get("access-control-request-headers", "*"),
            "Access-Control-Allow-Credentials": "true",
            "Access-Control-Max-Age": "600",
            **({_PRIVATE: "true"} if "access-control-request-private-network" in headers else {}),
            "Vary": "Origin",
        }


def _host_of(header: str) -> str | None:
    parts = _split(f"//{header}")
    if parts.username is not None or parts.path or parts.query or parts.fragment:
        return None
    return (parts.hostname or "").rstrip(".") or None


def _split(address: str) -> SplitResult:
    """The parts of an address; empty ones if it is invalid."""
    try:
        parts = urlsplit(address)
        _ = parts.port  # raises where it is invalid
    except ValueError:
        return urlsplit("")
    return parts

"""Errors of requests, in the format of each protocol."""

import logging
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from localspec.errors import ContextOverflow, LocalspecError, ServerUnreachable, UsageError

logger = logging.getLogger("localspec.server")

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    501: "not_supported_error",
    503: "unavailable_error",
}
_ANTHROPIC = {413: "request_too_large", 503: "overloaded_error", 500: "api_error"}


@dataclass(eq=False)
class ApiError(Exception):
    """A request that is refused, or an answer that failed. `code` and `param` are OpenAI's names of
    the error, and of the invalid field, `more` further members of its object."""

    status: int
    message: str
    _: KW_ONLY
    code: str | None = None
    param: str | None = None
    retry_after: int | None = None
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        usual = "invalid_request_error" if self.status < 500 else "server_error"
        return _TYPES.get(self.status, usual)

    @property
    def headers(self) -> dict[str, str]:
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if self.status == 501:  # OpenAI's and Anthropic's clients would try again
            headers["X-Should-Retry"] = "false"
        if self.status in (408, 413, 415):  # the rest of the body would be parsed as a request
            headers["Connection"] = "close"
        return headers


def as_api_error(error: BaseException) -> ApiError:
    """Convert any exception to the error that clients see; unexpected ones are logged."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ContextOverflow):
        more = {"n_prompt_tokens": error.needed, "n_ctx": error.available}
        return ApiError(
            400,
            # llama.cpp's wording, which clients match.
            f"The request of {error.needed} tokens exceeds the available context size "
            f"({error.available} tokens), which has to hold the answer as well. Send less, or "
            "restart the server with a longer context (--ctx).",
            code="context_length_exceeded",
            more={"type": "exceed_context_size_error", **more},
        )
    if isinstance(error, MemoryError):
        return ApiError(503, "There is not enough memory for this request.")
    if isinstance(error, LocalspecError):
        status = 400 if isinstance(error, UsageError) else 500
        return ApiError(503 if isinstance(error, ServerUnreachable) else status, str(error))
    logger.error("internal error: %s", type(error).__name__, exc_info=error)
    return ApiError(500, f"Internal error, {type(error).__name__}. See the server's log.")


def error_body(path: str, error: ApiError) -> dict[str, Any]:
    if path.removeprefix("/v1").startswith("/messages"):
        kind, why = _ANTHROPIC.get(error.status, error.kind), error.message
        if "n_ctx" in error.more:  # the wording that makes Claude Code shorten its conversation
            needed, most = error.more["n_prompt_tokens"], error.more["n_ctx"]
            why = f"prompt is too long: {needed} tokens > {most} maximum. {why}"
        details = {"details": {"error_code": error.code}} if error.code else {}
        return {"type": "error", "error": {"type": kind, "message": why, **details}}
    if path.startswith("/api/"):
        return {"error": error.message}
    code = error.code or (None if path.startswith("/v1/") else error.status)  # llama.cpp's number
    fields = {"message": error.message, "type": error.kind, "param": error.param, "code": code}
    return {"error": {**fields, **error.more}}

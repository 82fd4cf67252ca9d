"""The body of a request: read within limits, parsed, checked for what no part of the server wants.

JSON allows more than anybody means: numbers that are none, texts that are no Unicode, a million
brackets. Refused here, nothing behind has to think of it.
"""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from localspec.server.failures import ApiError

DEEPEST = 64
"""Brackets inside brackets."""
MOST_VALUES = 200_000
"""Values in a body, token ids of a prompt included."""
_READ = 8
"""Times the most bytes of a body that are read, and forgotten, where it is too long: a client that
still sends would not see why it is refused."""
_SMALL = 1 << 16
"""Bytes that are parsed at once; a larger body is parsed beside the event loop."""

Wire = TypeVar("Wire", bound=BaseModel)


async def read_body(request: Request, *, most: int, timeout: float) -> bytes:
    """All of a body.

    Args:
        most: bytes.
        timeout: seconds for all of it.

    Raises:
        ApiError: it is longer, or takes longer.
    """
    length = request.headers.get("content-length", "")
    too_large = ApiError(
        413, f"The request is larger than {most:,} bytes. Send less.", code="request_too_large"
    )
    if length.isascii() and length.isdigit() and (len(length) > 12 or int(length) > _READ * most):
        raise too_large

    async def whole() -> bytes:
        body, size = bytearray(), 0
        async for part in request.stream():
            size += len(part)
            if size <= most:
                body += part
            elif size > _READ * most:
                break
        if size > most:
            raise too_large
        return bytes(body)

    try:
        return await asyncio.wait_for(whole(), timeout)
    except asyncio.TimeoutError:
        raise ApiError(408, f"The request did not arrive within {timeout:g} seconds.") from None
    except ClientDisconnect:
        raise ApiError(400, "The client went away before its request was complete.") from None


async def parse(body: bytes) -> Any:
    """The JSON value of a body.

    Raises:
        ApiError: it is none, or has something in it that is refused.
    """
    if len(body) <= _SMALL:
        return parse_now(body)
    return await asyncio.to_thread(parse_now, body)


def parse_now(body: bytes) -> Any:
    """See `parse`."""
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ApiError(400, f"The body is not UTF-8: byte {error.start}.") from None
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        # Python refuses integers of thousands of digits as well.
        reason = str(error) if isinstance(error, json.JSONDecodeError) else "a number is too long"
        raise ApiError(400, f"The body is not JSON: {reason}.") from None
    _check(value)
    return value


def validated(kind: type[Wire], value: Any) -> Wire:
    """The value as a record of the protocol.

    Raises:
        ApiError: it is something else; names the first field.
    """
    if not isinstance(value, dict):
        raise ApiError(400, "The body is not a JSON object. Wrap it in { }.")
    try:
        return kind.model_validate(_counted(value))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        # A union tells what is wrong with each of its members, and puts its name in the place.
        path = ".".join(str(part) for part in first["loc"])[:200]
        raise ApiError(400, f"{path or 'The body'}: {first['msg']}.", param=path or None) from None


def _counted(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields with 40 for 40.0, as clients write it whose language knows one kind of number."""
    found = {
        name: int(one) if isinstance(one, float) and one.is_integer() else one
        for name, one in fields.items()
    }
    options = found.get("options")  # ollama's
    return {**found, "options": _counted(options)} if isinstance(options, dict) else found


def _refuse_constant(name: str) -> Any:
    raise ApiError(400, f"The body has the number {name}, which JSON does not know.")


def _too_deep() -> ApiError:
    return ApiError(400, f"The body is nested deeper than {DEEPEST} levels. Flatten it.")


def _check(value: Any) -> None:
    """Look at every value once, level by level."""
    level, seen = [value], 0
    for _ in range(DEEPEST + 1):
        further: list[Any] = []
        for one in level:
            if isinstance(one, str):
                _require_unicode(one)
            elif isinstance(one, dict):
                for key in one:
                    _require_unicode(key)
                further.extend(one.values())
            elif isinstance(one, list):
                further.extend(one)
            elif isinstance(one, float) and not math.isfinite(one):
                raise ApiError(400, "The body has a number that is too large.")
        seen += len(further)
        if seen > MOST_VALUES:
            raise ApiError(400, f"The body has more than {MOST_VALUES:,} values. Send less.")
        if not further:
            return
        level = further
    raise _too_deep()


def _require_unicode(text: str) -> None:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ApiError(
                400, f"A text has half a surrogate pair in it, at character {error.start}."
            ) from None

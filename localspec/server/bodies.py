"""Bodies of requests: read within limits, parsed, validated."""

from __future__ import annotations

import asyncio
import codecs
import math
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails, from_json
from starlette.requests import ClientDisconnect, Request

from localspec.server.failures import ApiError
from localspec.server.wire import Record

MOST_VALUES = 200_000
"""Values in a body, token ids of a prompt included."""
_READ = 8
"""How many times the limit is read: a client that is still sending would not see the refusal."""

Wire = TypeVar("Wire", bound=Record)


async def read_body(request: Request, *, most: int, timeout: float) -> bytes:
    too_large = ApiError(
        413, f"The request is larger than {most:,} bytes. Send less.", code="request_too_large"
    )
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise ApiError(415, "The body is compressed. Send it without Content-Encoding.")
    if int(request.headers.get("content-length") or 0) > _READ * most:
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
        raise ApiError(400, "The client disconnected before its request was complete.") from None


def parsed(body: bytes, record: type[Wire]) -> Wire:
    try:
        value = from_json(body.removeprefix(codecs.BOM_UTF8), allow_inf_nan=False)
    except ValueError as error:
        why = f"is not JSON: {error}."
        if "surrogate" in why or "hex escape" in why:
            why = "has half a surrogate pair, such as \\ud800, alone. Send whole characters."
        raise ApiError(400, f"The body {why}") from None
    if not isinstance(value, dict):
        raise ApiError(400, "The body is not a JSON object. Wrap it in { }.")
    if _count(value) > MOST_VALUES:
        raise ApiError(400, f"The body has more than {MOST_VALUES:,} values. Send less.")
    try:
        return record.model_validate(_counted(value))
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False, include_context=False)
        places = [_place(value, one) for one in errors]
        # Of the forms that a field may have, the one that fits best.
        best = max(
            range(len(places)), key=lambda n: (places[n][:1] == places[0][:1], len(places[n]))
        )
        name = ".".join(places[best])[:200]
        why = f"{name or 'The body'}: {errors[best]['msg'].partition(' or instance of')[0]}."
        raise ApiError(400, why, param=name or None) from None


def _place(value: Any, error: ErrorDetails) -> list[str]:
    """Names and numbers on the way to it, without pydantic's names of the forms of a field."""
    found = []
    for part in error["loc"]:
        if isinstance(value, dict) and (part in value or error["type"] == "missing"):
            value = value.get(part)
        elif isinstance(value, list) and isinstance(part, int):
            value = value[part] if part < len(value) else None
        else:
            continue
        found.append(str(part))
    return found


def _counted(fields: dict[str, Any]) -> dict[str, Any]:
    """With 40 for 40.0, as clients write it whose language has one type of number, and without
    null, which others write for what they leave out."""
    found = {
        name: int(one) if isinstance(one, float) and one.is_integer() else one
        for name, one in fields.items()
        if one is not None
    }
    options = found.get("options")  # ollama's
    return {**found, "options": _counted(options)} if isinstance(options, dict) else found


def _count(value: Any) -> int:
    if isinstance(value, float) and not math.isfinite(value):  # 1e999
        raise ApiError(400, "The body has a number that is too large.")
    inner = value.values() if isinstance(value, dict) else value
    return 1 + (sum(map(_count, inner)) if isinstance(value, dict | list) else 0)

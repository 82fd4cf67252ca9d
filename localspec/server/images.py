"""Images in requests, in the words of three protocols."""

from __future__ import annotations

import base64
import binascii
import re

from localspec.server.failures import ApiError

IMAGES = ("image_url", "input_image")
"""Kinds of OpenAI's content parts that are images."""
_DATA = re.compile(r"data:[^,]{0,200};base64,", re.IGNORECASE)


def image_in(url: str | None) -> bytes:
    """The bytes of an image that came as a data: URL.

    Raises:
        ApiError: it is somewhere else, or is no base64.
    """
    found = _DATA.match(url or "")
    if url is None or found is None:
        raise ApiError(
            400,
            "An image has no data: URL. The server fetches nothing: send the image itself, as "
            "data:image/png;base64,…",
            param="messages",
        )
    try:
        return base64.b64decode(url[found.end() :], validate=True)
    except (binascii.Error, ValueError):
        raise ApiError(400, "An image is not valid base64.", param="messages") from None


def data_url(kind: str, data: str) -> str:
    """What Anthropic and ollama send, as a data: URL."""
    return f"data:{kind};base64,{data}"

"""Images in prompts: marks, limits, positions."""

import hashlib
import re
import secrets
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localspec.decoding.sampling import Rows
from localspec.errors import UsageError
from localspec.typed import convert

MAX_PIXELS = 64_000_000
"""Maximum pixels of an image, three bytes each."""
_NONCE = secrets.token_hex(8)  # keeps users' text from being taken for a mark
MARK = re.compile(rf"<image {_NONCE} ([0-9a-f]{{64}})>")
"""A placeholder for an image in a text; its group is the image's key."""


@dataclass(frozen=True, slots=True)
class PicturePart:
    """A projector's result for an image or a part of it.

    Attributes:
        ids: negative numbers by position, unique to the image.
        rows: float32 [positions, input width], computed on the first call.
        causal: positions attend only to earlier ones; otherwise the part needs a single pass.
    """

    ids: tuple[int, ...]
    rows: Callable[[], Rows]
    causal: bool


@dataclass(frozen=True, slots=True)
class Picture:
    start: int
    part: PicturePart

    @property
    def end(self) -> int:
        return self.start + len(self.part.ids)


def with_picture_ids(tokens: Sequence[int], pictures: Sequence[Picture]) -> Sequence[int]:
    """The prompt with the ids of images at their positions."""
    if not pictures:
        return tokens
    found = list(tokens)
    for picture in pictures:
        # The text of an earlier answer may end before the image.
        found[picture.start : picture.end] = picture.part.ids[: max(0, len(found) - picture.start)]
    return found


def mark_images(
    messages: Sequence[Mapping[str, Any]],
) -> tuple[list[dict[str, Any]], dict[str, bytes]]:
    """Messages as text with marks for images, and the images by key; a UsageError for bad ones.
    Contents may have the parts `{"type": "text", "text": …}` and
    `{"type": "image", "image": bytes}`."""
    images: dict[str, bytes] = {}

    def text(part: object) -> str:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if not (isinstance(part, Mapping) and isinstance(kind, str) and kind in ("text", "image")):
            shown = repr(part if kind is None else kind)[:80]
            raise UsageError(f"A part of a message is {shown}. Give parts of type text or image.")
        if kind == "text":
            return str(convert("text of a message", part.get("text"), str | None) or "")
        data = part.get("image")
        if not isinstance(data, bytes | bytearray | memoryview):
            raise UsageError(f"An image is {repr(data)[:80]}. Give the bytes of its file.")
        require_image(image := bytes(data))
        key = hashlib.sha256(image).hexdigest()
        images[key] = image
        return f"<image {_NONCE} {key}>"

    found = []
    for message in messages:
        content = message.get("content")
        if content and not isinstance(content, str):
            message = {**message, "content": "\n".join(map(text, content))}
        found.append(dict(message))
    return found, images


def require_image(image: bytes) -> None:
    """Raise a UsageError unless this is an image of a supported format and size. llama.cpp would
    run ffmpeg on other files."""
    try:
        size = _size(image)
    except (struct.error, IndexError):
        size = None
    if size is None:
        raise UsageError("An image cannot be read. Give one as PNG, JPEG, GIF or BMP.")
    width, height = size
    if not 0 < width * height <= MAX_PIXELS:
        raise UsageError(
            f"An image has {width} x {height} pixels. Give one of at most "
            f"{MAX_PIXELS // 1_000_000} million."
        )


def _size(image: bytes) -> tuple[int, int] | None:
    if image[:8] == b"\x89PNG\r\n\x1a\n":
        width, height = struct.unpack_from(">II", image, 16)
    elif image[:6] in (b"GIF87a", b"GIF89a"):
        width, height = struct.unpack_from("<HH", image, 6)
    elif image[:2] == b"BM":
        width, height = map(abs, struct.unpack_from("<ii", image, 18))
    elif image[:3] == b"\xff\xd8\xff":
        return _jpeg_size(image)
    else:
        return None
    return width, height


def _jpeg_size(image: bytes) -> tuple[int, int] | None:
    at = 2
    while image[at] == 0xFF:
        kind, length = image[at + 1], struct.unpack_from(">H", image, at + 2)[0]
        if kind in range(0xC0, 0xD0) and kind not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from(">HH", image, at + 5)
            return width, height
        at += 2 + length
    return None

"""Text files and images that go along with a message."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from localspec.chat.conversation import Attachment
from localspec.errors import UsageError
from localspec.text import decoded

MOST = 1 << 20
"""Bytes; what is longer fits no context."""
MOST_OF_AN_IMAGE = 16 << 20
"""Bytes; it is kept with the conversation."""
_IMAGES = (".png", ".jpg", ".jpeg", ".gif", ".bmp")


def read_attachment(name: str) -> Attachment:
    """A text file, or an image, which its name's ending tells.

    Raises:
        UsageError: there is none, it cannot be read, is too long, or holds no text, or no image.
    """
    path = Path(name).expanduser()
    try:
        _check(path, path.stat())
        data = path.read_bytes()
    except UsageError:
        raise
    except FileNotFoundError:
        raise UsageError(f"There is no file {path}. Check the path.") from None
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or error
        raise UsageError(f"{path} cannot be read: {cause}. Name a readable text file.") from None
    if path.suffix.lower() in _IMAGES:
        from localspec.llama.pictures import require_image

        require_image(data)
        return Attachment.of_image(path.name, data)
    text = decoded(data, str(path))
    if not text.strip():
        raise UsageError(f"{path} is empty. Name a file with some text.")
    return Attachment(path.name, text)


def _check(path: Path, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise UsageError(f"{path} is a folder. Name a text file in it.")
    if not stat.S_ISREG(status.st_mode):
        # A pipe or a device may have no end, or nothing to say for ever.
        raise UsageError(f"{path} is not a file, but a pipe or a device. Name a text file.")
    image = path.suffix.lower() in _IMAGES
    if image and status.st_size > MOST_OF_AN_IMAGE:
        raise UsageError(
            f"{path} is larger than {MOST_OF_AN_IMAGE >> 20} MiB. Make the image smaller: models "
            "see no more than a few hundred points a side."
        )
    if not image and status.st_size > MOST:
        raise UsageError(
            f"{path} is larger than {MOST >> 20} MiB, which fits no context. Cut out what matters."
        )

"""Text files that go along with a message."""

from __future__ import annotations

from pathlib import Path

from localspec.chat.conversation import Attachment
from localspec.errors import UsageError
from localspec.text import decoded

MOST = 1 << 20
"""Bytes; what is longer fits no context."""


def read_attachment(name: str) -> Attachment:
    """A text file.

    Raises:
        UsageError: there is none, it cannot be read, is too long, or holds no text.
    """
    path = Path(name).expanduser()
    try:
        if path.is_dir():
            raise UsageError(f"{path} is a folder. Name a text file in it.")
        if path.stat().st_size > MOST:
            raise UsageError(
                f"{path} is larger than {MOST >> 20} MiB, which fits no context. "
                "Cut out what matters."
            )
        data = path.read_bytes()
    except FileNotFoundError:
        raise UsageError(f"There is no file {path}. Check the path.") from None
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or error
        raise UsageError(f"{path} cannot be read: {cause}. Name a readable text file.") from None
    text = decoded(data, str(path))
    if not text.strip():
        raise UsageError(f"{path} is empty. Name a file with some text.")
    return Attachment(path.name, text)

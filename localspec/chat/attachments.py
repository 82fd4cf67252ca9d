"""Text files and images that go with a message."""

import errno
import os
import shlex
from contextlib import suppress

from localspec.chat.conversation import Attachment
from localspec.errors import UsageError
from localspec.files import read_file
from localspec.paths import expanded
from localspec.text import decoded

MAX_BYTES = 1 << 20
"""Maximum bytes of a text file."""
MAX_IMAGE_BYTES = 16 << 20
"""Maximum bytes of an image, which is stored with the conversation."""
_LARGE = f"{MAX_BYTES >> 20} MiB, which fits no context. Keep only what matters."
_LARGE_IMAGE = (
    f"{MAX_IMAGE_BYTES >> 20} MiB. Make the image smaller: models see no more than a few hundred "
    "pixels per side."
)
_IMAGES = (".png", ".jpg", ".jpeg", ".gif", ".bmp")


def unquoted(name: str) -> str:
    """A file's name without quotes and backslashes of a shell, in which terminals paste names."""
    with suppress(ValueError):  # of shlex
        if not os.path.exists(expanded(name)) and len(words := shlex.split(name)) == 1:
            return words[0]
    return name


def read_attachment(name: str) -> Attachment:
    """Read a text file, or an image by its extension. Raises UsageError for other files."""
    path = expanded(unquoted(name))
    image = path.suffix.lower() in _IMAGES
    try:
        data = read_file(path, most=MAX_IMAGE_BYTES if image else MAX_BYTES)
    except FileNotFoundError:
        raise UsageError(f"There is no file {path}. Check the path.") from None
    except OSError as error:
        why = f"cannot be read: {error.strerror}. Name a text file."
        if error.errno == errno.EFBIG:
            why = f"is larger than {_LARGE_IMAGE if image else _LARGE}"
        raise UsageError(f"{path} {why}") from None
    if image:
        from localspec.llama.pictures import require_image

        require_image(data)
        return Attachment.of_image(path.name, data)
    text = decoded(data, str(path))
    if not text.strip():
        raise UsageError(f"{path} is empty. Name a file with some text.")
    return Attachment(path.name, text)

"""Text as it may be read and shown: UTF-8, without control characters."""

from __future__ import annotations

from localspec.errors import UsageError

# A model, or a file name, must not be able to steer the terminal it is shown on.
_HARMLESS = dict.fromkeys([*range(0x20), 0x7F, *range(0x80, 0xA0)], "\ufffd")
_HARMLESS |= {ord("\n"): "\n", ord("\t"): "\t", ord("\r"): ""}


def harmless(text: str) -> str:
    """The text without control characters that a terminal would obey."""
    return text.translate(_HARMLESS)


def decoded(data: bytes, what: str) -> str:
    """The text that a file, or whatever `what` says, consists of.

    Raises:
        UsageError: it is not UTF-8, or has a NUL; the message names the byte.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise not_utf8(what, error.start) from None
    nul = data.find(b"\0")
    if nul >= 0:
        raise UsageError(f"{what} is no text: it has a NUL at byte {nul}. Give it a text file.")
    return text.removeprefix("\ufeff")


def not_utf8(what: str, byte: int) -> UsageError:
    """The error for bytes that are no text."""
    return UsageError(
        f"{what} is not UTF-8: byte {byte} cannot be decoded. "
        "Convert it first, as with iconv -f LATIN1 -t UTF-8."
    )

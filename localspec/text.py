"""Decode, sanitize and format text."""

import codecs
import math
import os
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from localspec.errors import UsageError
from localspec.paths import expanded

# Models and file names must not send control sequences to the terminal.
_HARMLESS = dict.fromkeys([*range(0x20), 0x7F, *range(0x80, 0xA0)], "\ufffd")
_HARMLESS |= {ord("\n"): "\n", ord("\t"): "\t", ord("\r"): ""}
# Nor change the direction of the text that follows.
_HARMLESS |= dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A)], "\ufffd")

_SIZE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) ?([KMGT]?i?B?)", re.IGNORECASE)
_UNITS = {
    f"{prefix}{suffix}": (1024 if suffix.startswith("I") else 1000) ** power
    for power, prefix in enumerate(("", "K", "M", "G", "T"))
    for suffix in ("", "B", "I", "IB")
}

_MANY = 4  # list at most this many names, and count the rest


def harmless(text: str) -> str:
    """Replace control characters that would affect a terminal."""
    return text.translate(_HARMLESS)


def printable(text: str, longest: int = 200) -> str:
    """One line without control characters, of at most `longest` characters."""
    text = "".join(map(_printable, text)).strip()
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _printable(char: str) -> str:
    # Python counts neither wide spaces among these, nor joiners within words and emoji.
    shown = char.isprintable() or unicodedata.category(char) == "Zs" or char in "\u200c\u200d"
    return " " if char in "\t\r\n" else char if shown else "\ufffd"


def listed(names: Sequence[str]) -> str:
    """Names for a sentence: the first few, and the number of others."""
    shown = [printable(name) for name in names[:_MANY]]
    more = len(names) - len(shown)
    if more:
        return f"{', '.join(shown)} and {more} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def counted(number: int, one: str, many: str = "") -> str:
    """A number of things: `1 token`, `2,000 tokens`."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def rate(value: float) -> str:
    """Format tokens per second, without insignificant digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def times(value: float) -> str:
    """Format a speed-up: `2.6×`; below 2 with one more digit, to show small losses."""
    return f"{value:.1f}×" if value >= 2 else f"{value:.2f}×"


def gigabytes(count: int) -> str:
    """Size of a file, or of memory, in decimal units: 4.7 GB."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def parameter_count(number: int | None) -> str:
    """Number of parameters: 1.7 B, 135 M, 172 K; "" for None."""
    if number is None:
        return ""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if number >= size:
            digits = 0 if number >= 100 * size else 1
            return f"{f'{number / size:.{digits}f}'.removesuffix('.0')} {unit}"
    return str(number)


def finite(value: Any) -> Any:
    """Replace infinities and NaN, which JSON does not have, with None."""
    if isinstance(value, dict):
        return {str(name): finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def size_in_bytes(text: str, what: str) -> int:
    """Parse a size on disk: 500MB, 2 GB, 1.5GiB, 0. Raises UsageError if it is invalid; `what`
    names the option."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"{what} is '{printable(text)}'. Give a size such as 500MB or 2GB, or 0.")
    return int(float(found[1]) * _UNITS[found[2].upper()])


def path_to_file(text: str) -> Path:
    """The expanded path of a file or folder. Raises UsageError if it ends with a slash, but there
    is no such folder."""
    path = expanded(text)
    if text.endswith("/") and not os.path.isdir(path):  # unlike Path.is_dir, it accepts any name
        raise UsageError(f"There is no folder {printable(text)}. Create it, or name a file.")
    return path


def decoded(data: bytes, what: str) -> str:
    """Decode UTF-8, and drop a byte order mark. Raises UsageError with the position if it is not
    UTF-8, or has a NUL; `what` names the source."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        utf16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))  # as PowerShell writes
        raise not_utf8(what, error.start, "UTF-16" if utf16 else "LATIN1") from None
    nul = data.find(b"\0")
    if nul >= 0:
        raise UsageError(f"{what} is not text: it has a NUL at byte {nul}. Give it a text file.")
    return text.removeprefix("\ufeff")


def not_utf8(what: str, byte: int, encoding: str = "LATIN1") -> UsageError:
    return UsageError(
        f"{what} is not UTF-8: byte {byte} cannot be decoded. "
        f"Convert it first, for example with iconv -f {encoding} -t UTF-8."
    )

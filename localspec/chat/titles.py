"""Titles and file names from messages."""

from __future__ import annotations

import re
import unicodedata

NEW = "New conversation"
"""The title of an empty conversation."""

TITLE_LENGTH = 48
"""Characters."""
_READ = 4000
SLUG_LENGTH = 60
"""Characters; with four bytes each short enough for every file system."""

_FENCE = re.compile(r"\s*(```|~~~)")
_IN_FRONT = re.compile(r"^(?:\s*(?:#{1,6}\s|>|[-*+]\s(?:\[[ xX]\]\s)?|\d{1,3}[.)]\s))*\s*")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_STARS = re.compile(r"(\*{1,3}|~~|`+)(?=\S)(.+?)(?<=\S)\1")
_UNDERSCORES = re.compile(r"(?<!\w)(_{1,3})(?=\S)(.+?)(?<=\S)\1(?!\w)")
_JOINERS = "\u200c\u200d"
"""Parts of words in some scripts and of emoji: format characters that stay."""
_RESERVED = {f"{port}{n}" for port in ("com", "lpt") for n in "123456789"}
_RESERVED |= {"con", "prn", "aux", "nul"}


def one_line(text: str) -> str:
    """Text in one line, without control and direction characters."""
    return " ".join("".join(map(_plain, text)).split())


def title_from(text: str) -> str:
    """From the first line with words: at most TITLE_LENGTH characters, without Markdown."""
    # Whatever is pasted, its beginning says what it is.
    text = text.lstrip()[:_READ]
    for line in text.splitlines():
        title = "" if _FENCE.match(line) else _without_marks(one_line(line))
        if any(character.isalnum() for character in title):
            return _cut(title)
    rest = one_line(text)
    return _cut(rest) if rest and not _FENCE.match(rest) else NEW


def slug(title: str) -> str:
    """A file name without ending that every system takes."""
    words = re.findall(r"[^\W_]+", unicodedata.normalize("NFC", title).lower())
    name = ""
    for word in words:
        longer = f"{name}-{word}" if name else word[:SLUG_LENGTH]
        if len(longer) > SLUG_LENGTH:
            break
        name = longer
    if not name:
        return "conversation"
    return f"{name}-conversation" if name in _RESERVED else name


def _plain(character: str) -> str:
    category = unicodedata.category(character)
    if category in ("Cc", "Zl", "Zp"):
        return " "
    if category == "Cs" or (category == "Cf" and character not in _JOINERS):
        return ""
    return character


def _without_marks(line: str) -> str:
    line = _LINK.sub(r"\1", _IN_FRONT.sub("", line, count=1))
    before = None
    while line != before:
        before, line = line, _UNDERSCORES.sub(r"\2", _STARS.sub(r"\2", line))
    return line.strip()


def _cut(title: str) -> str:
    if len(title) <= TITLE_LENGTH:
        return title
    kept = title[: TITLE_LENGTH - 1]
    if not title[TITLE_LENGTH - 1].isspace():
        kept = kept.rpartition(" ")[0] or kept
    return kept.rstrip(" ,;:.–—-") + "…"

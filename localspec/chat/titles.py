"""Titles and file names made from messages."""

import re
import unicodedata

NEW = "New conversation"
"""The title of an empty conversation."""

TITLE_LENGTH = 48
"""Maximum characters."""
_MAX_CHARACTERS = 4000  # of a message that are read
SLUG_LENGTH = 60
"""Maximum characters: at four bytes each, within the limit of every file system."""

_FENCE = re.compile(r"\s*(```|~~~)")
_LINE_PREFIX = re.compile(r"^(?:\s*(?:#{1,6}\s|>|[-*+]\s(?:\[[ xX]\]\s)?|\d{1,3}[.)]\s))*\s*")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_STARS = re.compile(r"(\*{1,3}|~~|`+)(?=\S)(.+?)(?<=\S)\1")
_UNDERSCORES = re.compile(r"(?<!\w)(_{1,3})(?=\S)(.+?)(?<=\S)\1(?!\w)")
_JOINERS = "\u200c\u200d"
"""Format characters that are kept: parts of words in some scripts, and of emoji."""
_RESERVED = {f"{port}{n}" for port in ("com", "lpt") for n in "123456789"}
_RESERVED |= {"con", "prn", "aux", "nul"}


def one_line(text: str) -> str:
    """Convert text to one line, without control and direction characters."""
    return " ".join("".join(map(_plain, text)).split())


def title_from(text: str) -> str:
    """Make a title of at most TITLE_LENGTH characters from the first line with words, without
    Markdown."""
    # The beginning of a long pasted text is enough.
    text = text.lstrip()[:_MAX_CHARACTERS]
    for line in text.splitlines():
        title = "" if _FENCE.match(line) else _strip_markdown(one_line(line))
        if any(character.isalnum() for character in title):
            return _shorten(title)
    rest = one_line(text)
    return _shorten(rest) if rest and not _FENCE.match(rest) else NEW


def slug(title: str) -> str:
    """A file name without extension that is valid on every system."""
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


def _strip_markdown(line: str) -> str:
    line = _LINK.sub(r"\1", _LINE_PREFIX.sub("", line, count=1))
    before = None
    while line != before:
        before, line = line, _UNDERSCORES.sub(r"\2", _STARS.sub(r"\2", line))
    return line.strip()


def _shorten(title: str) -> str:
    if len(title) <= TITLE_LENGTH:
        return title
    kept = title[: TITLE_LENGTH - 1]
    if not title[TITLE_LENGTH - 1].isspace():
        kept = kept.rpartition(" ")[0] or kept
    return kept.rstrip(" ,;:.–—-") + "…"

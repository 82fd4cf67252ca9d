"""Pasted text without what steers a terminal, as coloured logs have it, and keys in pieces."""

from __future__ import annotations

import re
from collections.abc import Iterable

from textual._xterm_parser import XTermParser
from textual.message import Message

_BEGIN, _END = "\x1b[200~", "\x1b[201~"
_STEERING = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~])?|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_BEGUN = re.compile(r"\x1b(\[[0-?]*|O)\Z")


class PasteParser(XTermParser):
    """Textual reads what follows an escape in a pasted text as keys, Enter and Ctrl+Q among
    them; and as text the rest of a key that comes later than its beginning, over a slow line."""

    _pasting = False
    _kept = ""
    """Of the last piece: what may be a part of the end, or of a key."""

    def feed(self, data: str) -> Iterable[Message]:
        if not data:  # the end of all input
            return super().feed(data)
        data, self._kept, parts = self._kept + data, "", []
        while data:
            pasted = self._pasting
            text, found, data = data.partition(_END if pasted else _BEGIN)
            if pasted and not found:
                start = text.rfind("\x1b")
                if start >= 0 and _END.startswith(text[start:]):
                    text, self._kept = text[:start], text[start:]
            parts += [_STEERING.sub("", text) if pasted else text, found]
            self._pasting = pasted != bool(found)
        clean = "".join(parts)
        if not self._pasting and (begun := _BEGUN.search(clean)):
            clean, self._kept = clean[: begun.start()], begun.group()
        return super().feed(clean) if clean else ()

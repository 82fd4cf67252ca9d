"""Reading keys and pasted text from the terminal."""

import re
from collections.abc import Iterable

from textual._xterm_parser import XTermParser
from textual.message import Message

_BEGIN, _END = "\x1b[200~", "\x1b[201~"
_CONTROL = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~])?|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_INCOMPLETE_KEY = re.compile(r"\x1b(\[[0-?]*|O)\Z")


class KeyParser(XTermParser):
    """A parser that fixes two faults of Textual's: after an escape in pasted text it reads the rest
    as keys, Enter and Ctrl+Q included; and over a slow line it reads the rest of a key as text."""

    _pasting = False
    _kept = ""
    """The end of the last chunk that may belong to the end marker, or to a key."""

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
            parts += [_CONTROL.sub("", text) if pasted else text, found]
            self._pasting = pasted != bool(found)
        clean = "".join(parts)
        if not self._pasting and (incomplete := _INCOMPLETE_KEY.search(clean)):
            clean, self._kept = clean[: incomplete.start()], incomplete.group()
        return super().feed(clean) if clean else ()

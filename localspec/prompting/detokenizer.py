"""From tokens to text, as they come: whole characters, and nothing of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Sequence


class Detokenizer:
    """Joins the bytes of tokens, releasing only what later tokens cannot change.

    Half a UTF-8 character waits for its other half, and the beginning of a stop string waits
    until it turns out to be one or not.

    Args:
        piece: bytes of a token.
        stop: strings that end the answer; they are not part of it.

    Attributes:
        text: everything released so far.
        stopped: the stop string that was met, None before.
    """

    def __init__(self, piece: Callable[[int], bytes], stop: Sequence[str]) -> None:
        self.stopped: str | None = None
        self._piece = piece
        self._stop = tuple(stop)
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._held = ""
        self._released: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._released)

    def push(self, tokens: Iterable[int]) -> str:
        """Append tokens; return the text that this made certain."""
        if self.stopped is not None:
            return ""
        self._held += self._decode(b"".join(map(self._piece, tokens)))
        return self._release(final=False)

    def finish(self) -> str:
        """No more tokens come: return what was held back, half a character as U+FFFD."""
        if self.stopped is not None:
            return ""
        self._held += self._decode(b"", final=True)
        return self._release(final=True)

    def _release(self, *, final: bool) -> str:
        text, found = self._held, None
        for stop in self._stop:
            at = text.find(stop)
            if at >= 0 and (found is None or at < found[0]):
                found = (at, stop)
        if found is not None:
            text, self.stopped = text[: found[0]], found[1]
            self._held = ""
        else:
            keep = 0 if final else max((_begins(text, stop) for stop in self._stop), default=0)
            self._held = text[len(text) - keep :]
            text = text[: len(text) - keep]
        if text:
            self._released.append(text)
        return text


def _begins(text: str, stop: str) -> int:
    """Length of the longest ending of `text` that is a beginning of `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0

"""A vocabulary as byte strings, so that different vocabularies can be compared.

A control token is spelled as its name between marks that occur in no text."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

OPENS, CLOSES = b"\xff\xfe", b"\xfe\xff"
"""Around the name of a control token; neither occurs in UTF-8."""
_CONTROL = re.compile(rb"\xff\xfe.*?\xfe\xff", re.DOTALL)
_LEAD = b"\n"
"""Prepended to a text to which a tokenizer would otherwise add a space."""
_ALL = b"\xff" * 8
"""Sorts after all spellings."""

Piece = tuple[int, int]
"""A token, and the offset in bytes of the end of its text."""


def control(name: bytes) -> bytes:
    return OPENS + name + CLOSES if name else b""


class SortedTokens:
    """Tokens in the order of their bytes: int64 [tokens]."""

    __slots__ = ("_keys", "tokens")

    def __init__(self, tokens: Iterable[int], spelled: Sequence[bytes]) -> None:
        ordered = sorted(tokens, key=lambda token: spelled[token])
        self.tokens = np.array(ordered, np.int64)
        self._keys = [spelled[token] for token in ordered]

    def beyond(self, start: bytes) -> npt.NDArray[np.int64]:
        """The tokens of which `start` is a proper prefix."""
        low = bisect_right(self._keys, start)
        return self.tokens[low : bisect_left(self._keys, start + _ALL, low)]


class ByteVocabulary:
    """The tokens of one model. `ids`: token by its bytes.

    `spelled`: bytes of each token, possibly empty, see `control`. `tokenize`: tokens of UTF-8
    text without control tokens; None picks the longest token that fits. `second_best`: tokens used
    only if no other one has the same bytes.
    """

    def __init__(
        self,
        spelled: Sequence[bytes],
        tokenize: Callable[[bytes], Sequence[int]] | None = None,
        *,
        second_best: Collection[int] = (),
    ) -> None:
        self.spelled = spelled
        self._tokenize = tokenize
        self.ids: dict[bytes, int] = {}
        for some in (set(range(len(spelled))) - set(second_best), second_best):
            for token in sorted(some):
                if spelled[token]:
                    self.ids.setdefault(spelled[token], token)
        self._longest = max(map(len, self.ids), default=0)

    def encode(self, text: bytes) -> list[Piece]:
        """Tokenize a text; bytes without a token are left out."""
        return list(self._pieces(text))

    def first(self, text: bytes) -> int:
        return next((token for token, _ in self._pieces(text)), -1)

    def _pieces(self, text: bytes) -> Iterator[Piece]:
        done = 0
        for match in _CONTROL.finditer(text):
            yield from self._plain(text[done : match.start()], done)
            done = match.end()
            token = self.ids.get(match.group())
            if token is not None:  # it has no other spelling
                yield token, done
        yield from self._plain(text[done:], done)

    def _plain(self, text: bytes, start: int) -> Iterator[Piece]:
        """Tokenize text without control tokens, at byte `start` of the whole."""
        while text:
            try:
                text.decode()
                end, bad = len(text), len(text)
            except UnicodeDecodeError as error:
                end, bad = error.start, error.end
            yield from self._valid(text[:end], start)
            # Incomplete or invalid UTF-8, which only byte tokens can spell.
            yield from self._longest_first(text[end:bad], start + end)
            text, start = text[bad:], start + bad

    def _valid(self, text: bytes, start: int) -> Iterable[Piece]:
        tokenize = self._tokenize
        if tokenize is None:
            return self._longest_first(text, start)
        for lead in (b"", _LEAD) if text else ():
            tokens = tokenize(lead + text)
            at, pieces = start + len(text), list[Piece]()
            # From the end, as a tokenizer may have added a space in front.
            for token in reversed(tokens):
                pieces.append((token, at))
                at -= len(self.spelled[token])
                if at <= start:
                    break
            pieces.reverse()
            joined = b"".join(self.spelled[token] for token, _ in pieces)
            if at == start and joined == text and (lead or len(pieces) == len(tokens)):
                return pieces
        return self._longest_first(text, start)  # the tokenizer normalises its input

    def _longest_first(self, text: bytes, start: int) -> Iterator[Piece]:
        at = 0
        while at < len(text):
            for size in range(min(self._longest, len(text) - at), 0, -1):
                token = self.ids.get(text[at : at + size])
                if token is not None:
                    at += size
                    yield token, start + at
                    break
            else:
                at += 1  # no token has this byte

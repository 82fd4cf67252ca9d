"""A draft model's cache in terms of the target's tokens, for models with other vocabularies."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from time import perf_counter

import numpy as np

from localspec.decoding.sampling import Row, Rows
from localspec.decoding.sources import Cache
from localspec.drafters.byte_vocabulary import CLOSES, OPENS
from localspec.drafters.vocabulary_map import FLOOR, VocabularyMap

MOST_ROWS = 64
"""Most rows of logits per pass."""
KEPT = 24
LONGEST = 16
"""Most draft tokens that make up one target token."""
WORD = 12
"""Most draft tokens to read again because their word continues."""
_SPACE = b" \t\r\n"


class MappedCache:
    """Implements `localspec.decoding.sources.Cache` in target ids over a draft model's cache.

    The draft model reads the same text in its own tokens. If a target token ends inside a word, the
    last of these are read again once the word continues. If a longer draft token is likely, its
    rest is the prediction, without a pass. If truncation is expensive (`recurrent`), tokens stay,
    and none are read ahead. Only this object appends to `inner`.

    Attributes:
        by_text: whether a row is for the token that the draft model would *write* next (SLEM),
            which may take several passes, or for the shared tokens (TLI).
        chosen: whether the written token becomes the best of its row.
        proposed: by number of tokens before a row, its most probable shared token and the written
            one (-1 for none).
    """

    def __init__(self, inner: Cache, mapping: VocabularyMap) -> None:
        self.inner = inner
        self.mapping = mapping
        self.tokens: list[int] = []
        self.by_text = False
        self.chosen = True
        self.proposed: dict[int, tuple[int, int]] = {}
        self.recurrent = inner.recurrent
        self._text = bytearray()
        self._ends = [0]  # offset in the text of the end of each of `tokens`, after a zero
        self._stops = [0]  # the same for each of `inner.tokens`
        self._kept: dict[int, Row] = {}  # rows by the number of `inner.tokens` before them
        self._full = False
        self._own = 0.0

    @property
    def native_seconds(self) -> float:
        return self.inner.native_seconds + self._own

    @property
    def capacity(self) -> int:
        """Estimated capacity in tokens of the target."""
        if self._full:
            return 0
        held, spent = len(self.tokens), len(self.inner.tokens)
        free = self.inner.capacity - spent - 1
        return held + int(free / max(1.0, spent / max(1, held)))

    @property
    def max_draft(self) -> int:
        return self.inner.max_draft

    def filler(self, count: int) -> list[int]:
        sample = self.mapping.sample
        return (sample * (1 + count // len(sample)))[:count]

    def extend(self, tokens: Sequence[int], outputs: int = 1) -> Rows:
        """As `Cache.extend`. If the text does not fit, all logits of the rows are equal."""
        started, before, held = perf_counter(), self.inner.native_seconds, len(self.tokens)
        try:
            return self._extend(tokens, outputs)
        except BaseException:
            self._forget(held)
            raise
        finally:
            native = self.inner.native_seconds - before
            self._own += max(0.0, perf_counter() - started - native)

    def truncate(self, length: int) -> None:
        if length >= len(self.tokens):
            return
        self._forget(length)
        self._full = False
        self._cut(bisect_right(self._stops, len(self._text)) - 1)

    def checkpoint(self) -> None:
        self.inner.checkpoint()

    def clear(self) -> None:
        self._forget(0)
        self._full = False
        self._cut(0)

    def alignment(self) -> tuple[list[int], list[int]]:
        """The tokens, and the offset of the end of each of `inner.tokens`, for `align`."""
        self._settle()
        return list(self.tokens), self._stops[1:]

    def align(self, tokens: Sequence[int], stops: Sequence[int]) -> None:
        """Restore the result of `alignment`, with the same contents of `inner`; rows are lost."""
        self._forget(0)
        self._kept.clear()
        self._append(tokens)
        self._stops[1:] = stops

    def _append(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._text += self.mapping.written[token]
            self._ends.append(len(self._text))
        self.tokens += tokens

    def _extend(self, tokens: Sequence[int], outputs: int) -> Rows:
        self._settle()
        before = len(self._text)
        self._append(tokens)
        wanted = self._ends[len(self._ends) - outputs :]
        if outputs == 1 and not self._full:
            found = self._inside(len(self._stops) - 1, len(self._text))
            if found is not None and found[1] > 1.0:  # the text likely ends inside a longer token
                self.proposed[len(self.tokens)] = int(found[0].argmax()), -1
                return found[0][None]
        rows = np.zeros((outputs, len(self.mapping.same)), np.float32)
        unread = self._retokenize(before)
        ends = [*self._stops, *(end for _, end in unread)]
        places = [bisect_right(ends, end) - 1 for end in wanted]
        if self._read(unread, places):
            first = len(self.tokens) - outputs + 1
            for number, (place, end) in enumerate(zip(places, wanted, strict=True), first):
                row = self._row(place, end, number)
                if row is not None:
                    rows[number - first] = row
        return rows

    # The draft model's tokens.

    def _settle(self) -> None:
        """Synchronise with `inner` after an interrupted pass, or with a recurrent memory."""
        self._cut(min(len(self.inner.tokens), len(self._stops) - 1))

    def _cut(self, count: int) -> None:
        """Keep `count` of the draft model's tokens, or fewer if its memory is recurrent."""
        self.inner.truncate(count)
        self._note(len(self.inner.tokens))

    def _note(self, count: int) -> None:
        del self._stops[count + 1 :]
        self._kept = {place: row for place, row in self._kept.items() if place <= count}

    def _forget(self, length: int) -> None:
        del self.tokens[length:]
        del self._ends[length + 1 :]
        del self._text[self._ends[-1] :]
        self.proposed = {at: tokens for at, tokens in self.proposed.items() if at <= length}

    def _count_agreeing(self, before: int) -> int:
        """Number of the draft model's tokens that agree with the text. Up to `before` they do;
        later ones are the draft model's own continuation."""
        count = bisect_right(self._stops, before) - 1
        spelled, text = self.mapping.draft.spelled, self._text
        while count < len(self._stops) - 1:
            start, here = self._stops[count], spelled[self.inner.tokens[count]]
            there = text[start : start + len(here)]
            if not there or not here.startswith(there):
                break
            count += 1
        return count

    def _retokenize(self, before: int) -> list[tuple[int, int]]:
        """Truncate the draft model's tokens to valid ones; returns those to read, with ends."""
        kept = self._count_agreeing(before)
        if kept and self._stops[kept] >= len(self._text):
            self._cut(kept)
            return []
        start = self._beginning_of_word(kept)
        at = self._stops[start]
        pieces = [
            (token, at + end) for token, end in self.mapping.draft.encode(bytes(self._text[at:]))
        ]
        bos = self.mapping.bos
        if start == 0 and bos >= 0 and (not pieces or pieces[0][0] != bos):
            pieces.insert(0, (bos, 0))
        same = 0
        for known in self._read_tokens(start, kept):
            if same == len(pieces) or pieces[same] != known:
                break
            same += 1
        self._cut(start + same)
        lost = start + same - len(self.inner.tokens)  # a recurrent memory's
        if lost <= same:
            return pieces[same - lost :]
        return self._retokenize(before)

    def _beginning_of_word(self, kept: int) -> int:
        """Index of the first draft token to tokenize again."""
        if self.recurrent or kept == 0:
            return kept
        covered = self._stops[kept]
        starts_word = self._text[covered] in _SPACE or self._text.startswith(OPENS, covered)
        if starts_word and covered and self._text[covered - 1] not in _SPACE:
            return kept
        for start in range(kept - 1, max(-1, kept - 1 - WORD), -1):
            at = self._stops[start]
            if self._text.endswith(CLOSES, 0, self._stops[start + 1]):
                return start + 1
            if at == 0 or (self._text[at] in _SPACE and self._text[at - 1] not in _SPACE):
                return start
        return kept - WORD // 3  # no spaces: go back a few tokens

    def _read_tokens(self, start: int, end: int) -> list[tuple[int, int]]:
        """Draft tokens from `start` to `end`, with their ends in the text."""
        return list(
            zip(self.inner.tokens[start:end], self._stops[start + 1 : end + 1], strict=True)
        )

    def _read(self, unread: list[tuple[int, int]], places: Sequence[int]) -> bool:
        """Read tokens, and keep the row at each of `places`, counts of tokens; False if there is no
        room."""
        held = len(self.inner.tokens)
        if held + len(unread) > self.inner.capacity or self._full:
            self._full = True
            return False
        missing = [place for place in places if place <= held and place not in self._kept]
        if missing and min(missing) > 0 and not self.recurrent:
            # That row is gone: read the token before it again.
            first = min(missing) - 1
            unread = [*self._read_tokens(first, held), *unread]
            self._cut(first)
            held = len(self.inner.tokens)
        least = min(places, default=held + len(unread) + 1)
        while unread:
            # Any number of tokens without rows, then as many rows as a pass may have.
            quiet = max(0, min(len(unread), least - held - 1))
            size = len(unread) if len(unread) - quiet <= MOST_ROWS else quiet or MOST_ROWS
            part, unread, outputs = unread[:size], unread[size:], size - quiet
            rows = self.inner.extend([token for token, _ in part], outputs)
            self._stops += [end for _, end in part]
            held += len(part)
            for place, row in enumerate(rows, held - outputs + 1):
                self._kept[place] = row.copy()
        self._note(held)
        for place in sorted(self._kept)[: -KEPT - len(places)]:
            del self._kept[place]
        return True

    # Rows.

    def _inside(self, place: int, end: int) -> tuple[Row, float] | None:
        """As `VocabularyMap.inside`, for a text that ends after a draft token."""
        row, start = self._kept.get(place), self._stops[place]
        if row is None or start >= end:
            return None
        return self.mapping.inside(row, bytes(self._text[start:end]))

    def _row(self, place: int, end: int, number: int) -> Row | None:
        """The row after the first `number` tokens; None if unknown."""
        row = self._kept.get(place)
        if row is None:
            return None
        if end > self._stops[place]:
            found = self._inside(place, end)
            return None if found is None else found[0]
        base, written, chance = self.mapping.on_shared(row), -1, 0.0
        if self.by_text and not self.recurrent:
            written, chance = self._write(place, last=number == len(self.tokens))
        best = int(base.argmax())
        self.proposed[number] = best, written
        if written in (-1, best):
            return base
        began = self.mapping.next_token(int(row.argmax()))
        return _with_token(base, written, chance, began, leads=self.chosen)

    def _write(self, place: int, *, last: bool) -> tuple[int, float]:
        """The target token that the draft model would write next, and its probability: its arg-max
        tokens, while they can be part of one target token. `last`: whether the text ends here,
        so that it may read ahead."""
        mapping, inner = self.mapping, self.inner
        text = b""
        likely, stops, chances = 1.0, list[int](), list[float]()
        while place in self._kept:
            row = self._kept[place]
            token = int(row.argmax())
            likely *= float(1.0 / np.exp(row - row[token]).sum())
            text += mapping.draft.spelled[token]
            stops.append(len(text))
            chances.append(likely)
            if not mapping.draft.spelled[token] or len(stops) == LONGEST:
                break
            if not mapping.may_grow(text):
                break
            if place < len(inner.tokens):
                if inner.tokens[place] != token:
                    break
            elif last and place < inner.capacity:
                self._kept[place + 1] = inner.extend((token,), 1)[0].copy()
                self._stops.append(self._stops[-1] + len(mapping.draft.spelled[token]))
            else:
                break
            place += 1
        first = mapping.target.first(text)
        if first < 0:
            return -1, 0.0
        needed = bisect_left(stops, len(mapping.target.spelled[first]))
        return first, chances[min(needed, len(chances) - 1)]


def _with_token(base: Row, token: int, chance: float, began: int, *, leads: bool) -> Row:
    """Return the row with a token that takes its probability `chance` from its prefix `began` (-1
    for none); `leads`: make it the best one."""
    best = base.max()
    row: Row = base - (best + np.log(np.exp(base - best).sum()))
    likely = np.float32(np.log(max(chance, 1e-6)))
    if began >= 0:
        left = np.exp(row[began]) - chance
        row[began] = max(row.min(), np.log(left) if left > 0.0 else FLOOR)
    if leads:
        np.minimum(row, likely - np.float32(0.1), out=row)
    row[token] = likely if leads else np.logaddexp(row[token], likely)
    return row

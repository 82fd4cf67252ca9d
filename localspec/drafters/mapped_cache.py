"""The draft model's cache as one over the target's tokens, for models with other vocabularies."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from time import perf_counter

import numpy as np

from localspec.decoding.caches import Cache
from localspec.decoding.sampling import Row, Rows
from localspec.drafters.byte_vocabulary import CLOSES, OPENS
from localspec.drafters.vocabulary_map import FLOOR, VocabularyMap

MOST_ROWS = 64
"""Rows of logits that a pass may be asked for."""
KEPT = 24
LONGEST = 16
"""Most tokens of the draft model that one token of the target is put together from."""
WORD = 12
"""Most of its tokens that are written anew because the word they are in goes on."""
_SPACE = b" \t\r\n"


class MappedCache:
    """Implements `localspec.decoding.caches.Cache` in target ids over a draft model's cache.

    The draft model reads its own tokens of the same text. Where a target token ends inside a word,
    its last ones are read anew as the word goes on. Where it expects the rest of a longer token,
    that is what follows, without a pass.

    Args:
        inner: nobody else appends to it.
        recurrent: it cannot be cut back cheaply: what was read stays, and nothing is looked ahead.

    Attributes:
        by_text: whether a row is for the token that the draft model would *write* next (SLEM), in
            as many passes as that takes, or for the shared tokens (TLI).
        chosen: whether the token written heads its row.
        said: by tokens before a row, its most probable shared token and the one written (-1 for
            none).
    """

    def __init__(self, inner: Cache, mapping: VocabularyMap, *, recurrent: bool = False) -> None:
        self.inner = inner
        self.mapping = mapping
        self.tokens: list[int] = []
        self.by_text = False
        self.chosen = True
        self.said: dict[int, tuple[int, int]] = {}
        self.recurrent = recurrent
        self._text = bytearray()
        self._ends: list[int] = []  # bytes of text up to each of `tokens`
        self._stops: list[int] = []  # the same for each of `inner.tokens`
        self._kept: dict[int, Row] = {}  # rows by the number of `inner.tokens` before them
        self._full = False
        self._own = 0.0

    @property
    def native_seconds(self) -> float:
        return self.inner.native_seconds + self._own

    @property
    def capacity(self) -> int:
        """Tokens of the target for which there is room, an estimate."""
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
        """As `Cache.extend`. Without room for the text the rows prefer nothing."""
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
        self._cut(bisect_right(self._stops, len(self._text)))

    def checkpoint(self) -> None:
        self.inner.checkpoint()

    def clear(self) -> None:
        self._forget(0)
        self._full = False
        self._cut(0)

    def alignment(self) -> tuple[list[int], list[int]]:
        """The tokens, and where in their text each of `inner.tokens` ends: for `align`."""
        self._settle()
        return list(self.tokens), list(self._stops)

    def align(self, tokens: Sequence[int], stops: Sequence[int]) -> None:
        """Hold these tokens, `inner` being what it was when `alignment` said so; rows are lost."""
        self._forget(0)
        self._kept.clear()
        for token in tokens:
            self._text += self.mapping.written(token)
            self._ends.append(len(self._text))
        self.tokens += tokens
        self._stops[:] = stops

    def _extend(self, tokens: Sequence[int], outputs: int) -> Rows:
        self._settle()
        before = len(self._text)
        for token in tokens:
            self._text += self.mapping.written(token)
            self._ends.append(len(self._text))
        self.tokens += tokens
        wanted = self._ends[len(self._ends) - outputs :]
        if outputs == 1 and not self._full:
            row = self._without_a_pass(wanted[0])
            if row is not None:
                return self._result([row])
        unread = self._rewritten(before)
        places = self._places(wanted, unread)
        if not self._read(unread, places):
            return self._result([self._nothing()] * outputs)
        rows = []
        first = len(self.tokens) - outputs + 1
        for number, (place, inside) in enumerate(places, first):
            rows.append(self._row(place, inside, number))
        return self._result(rows)

    def _result(self, rows: list[Row]) -> Rows:
        return np.stack(rows) if rows else np.empty((0, len(self.mapping.same)), np.float32)

    # The draft model's tokens.

    def _settle(self) -> None:
        """Take note of what an interrupted pass, or a recurrent memory, left behind."""
        held = len(self.inner.tokens)
        if held > len(self._stops):
            self._cut(len(self._stops))
        self._note(len(self.inner.tokens))

    def _cut(self, count: int) -> None:
        """Keep so many of the draft model's tokens; fewer where its memory is recurrent."""
        self.inner.truncate(count)
        self._note(len(self.inner.tokens))

    def _note(self, count: int) -> None:
        del self._stops[count:]
        self._kept = {place: row for place, row in self._kept.items() if place <= count}

    def _forget(self, length: int) -> None:
        del self.tokens[length:]
        del self._ends[length:]
        del self._text[self._ends[-1] if length else 0 :]
        self.said = {at: said for at, said in self.said.items() if at <= length}

    def _agreeing(self, before: int) -> int:
        """How many of the draft model's tokens the text bears out. Up to `before` it does; beyond
        that the draft model went on by itself."""
        count = bisect_right(self._stops, before)
        spelled, text = self.mapping.draft.spelled, self._text
        while count < len(self._stops):
            start = self._stops[count - 1] if count else 0
            here = spelled[self.inner.tokens[count]]
            there = text[start : start + len(here)]
            if not there or not here.startswith(there):
                break
            count += 1
        return count

    def _rewritten(self, before: int) -> list[tuple[int, int]]:
        """Cut the draft model's tokens to those that stay; returns those to be read, with ends."""
        kept = self._agreeing(before)
        covered = self._stops[kept - 1] if kept else 0
        if covered >= len(self._text) and kept:
            self._cut(kept)
            return []
        start = self._beginning_of_word(kept)
        at = self._stops[start - 1] if start else 0
        pieces = [
            (token, at + end) for token, end in self.mapping.draft.encode(bytes(self._text[at:]))
        ]
        bos = self.mapping.bos
        if start == 0 and bos >= 0 and (not pieces or pieces[0][0] != bos):
            pieces.insert(0, (bos, 0))
        same = 0
        for token, end in zip(self.inner.tokens[start:kept], self._stops[start:kept], strict=True):
            if same == len(pieces) or pieces[same] != (token, end):
                break
            same += 1
        self._cut(start + same)
        lost = start + same - len(self.inner.tokens)  # a recurrent memory's
        if lost <= same:
            return pieces[same - lost :]
        return self._rewritten(before)

    def _beginning_of_word(self, kept: int) -> int:
        """From which of the draft model's tokens on the text is written anew."""
        if self.recurrent or kept == 0:
            return kept
        covered = self._stops[kept - 1]
        starts_word = self._text[covered] in _SPACE or self._text.startswith(OPENS, covered)
        if starts_word and covered and self._text[covered - 1] not in _SPACE:
            return kept
        for start in range(kept - 1, max(-1, kept - 1 - WORD), -1):
            at = self._stops[start - 1] if start else 0
            if self._text.endswith(CLOSES, 0, self._stops[start]):
                return start + 1
            if at == 0 or (self._text[at] in _SPACE and self._text[at - 1] not in _SPACE):
                return start
        return kept - WORD // 3  # no spaces: a few tokens make it right again, if not at once

    def _places(
        self, wanted: Sequence[int], unread: list[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        """For each end of a wanted token: the draft model's tokens before it, and bytes beyond."""
        read, beyond = len(self._stops), [end for _, end in unread]
        places = []
        for end in wanted:
            place = bisect_right(self._stops, end)
            if place == read:
                place += bisect_right(beyond, end)
            stop = 0
            if place:
                stop = beyond[place - read - 1] if place > read else self._stops[place - 1]
            places.append((place, end - stop))
        return places

    def _read(self, unread: list[tuple[int, int]], places: list[tuple[int, int]]) -> bool:
        """Read tokens, and keep the rows at the places; False where there is no room for them."""
        held = len(self.inner.tokens)
        if held + len(unread) > self.inner.capacity or self._full:
            self._full = True
            return False
        missing = [place for place, _ in places if place <= held and place not in self._kept]
        if missing and min(missing) > 0 and not self.recurrent:
            # Its row is gone: the token before it is read once more.
            first = min(missing) - 1
            again = list(zip(self.inner.tokens[first:held], self._stops[first:held], strict=True))
            self._cut(first)
            unread, held = [*again, *unread], len(self.inner.tokens)
        least = min((place for place, _ in places), default=held + len(unread) + 1)
        while unread:
            # Without rows as many at once as there are, with rows as many as there may be.
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

    # What they say.

    def _nothing(self) -> Row:
        return np.zeros(len(self.mapping.same), np.float32)

    def _without_a_pass(self, end: int) -> Row | None:
        """The row behind the text if it likely stopped inside a longer draft token."""
        place = len(self._stops)
        row = self._kept.get(place)
        start = self._stops[-1] if place else 0
        if row is None or start >= end:
            return None
        found = self.mapping.inside(row, bytes(self._text[start:end]))
        if found is None or found[1] <= 1.0:
            return None
        self.said[len(self.tokens)] = int(found[0].argmax()), -1
        return found[0]

    def _row(self, place: int, inside: int, number: int) -> Row:
        """What follows the first `number` tokens, which end so many bytes beyond a place."""
        row = self._kept.get(place)
        if row is None:
            return self._nothing()
        if inside:
            start = self._stops[place - 1] if place else 0
            found = self.mapping.inside(row, bytes(self._text[start : start + inside]))
            return self._nothing() if found is None else found[0]
        base, written, chance = self.mapping.on_shared(row), -1, 0.0
        if self.by_text and not self.recurrent:
            written, chance = self._write(place, last=number == len(self.tokens))
        best = int(base.argmax())
        self.said[number] = best, written
        if written in (-1, best):
            return base
        began = self.mapping.begins(int(row.argmax()))
        return _with(base, written, chance, began, leads=self.chosen)

    def _write(self, place: int, *, last: bool) -> tuple[int, float]:
        """The target token that the draft model would write next, and its probability: its arg-max
        tokens for as long as the target might read all of them as one.

        Args:
            last: whether the text ends here, so that it may read on.
        """
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
                start = self._stops[-1] if self._stops else 0
                self._stops.append(start + len(mapping.draft.spelled[token]))
            else:
                break
            place += 1
        first = mapping.target.first(text)
        if first < 0:
            return -1, 0.0
        needed = bisect_left(stops, len(mapping.target.spelled[first]))
        return first, chances[min(needed, len(chances) - 1)]


def _with(base: Row, token: int, chance: float, began: int, *, leads: bool) -> Row:
    """The row with a token that takes its probability `chance` from `began` (-1 for none), the one
    it begins with; `leads`: it is to be the best one."""
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

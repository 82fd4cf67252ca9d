"""A target and a draft model that say what is written: nothing is computed, but time passes.

They stand in for models whose context of 32,768 tokens would take minutes to fill. What calls
them (loop, planner, drafters, the draft model's wrapper) is localspec's own, and cannot tell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter

import numpy as np

from localspec.decoding.interfaces import PassRequest, PassResult
from localspec.decoding.sampling import Rows
from localspec.decoding.tree import TokenTree
from localspec.drafters.byte_vocabulary import ByteVocabulary

TARGET_SECONDS, PER_TOKEN, DRAFT_SECONDS = 4e-3, 1e-3, 3e-4
"""Of a target pass over one token, of each further one, and of a pass of the draft model."""
MOST_ROWS = 65


def target_seconds(tokens: int) -> float:
    """T(n)."""
    return TARGET_SECONDS + PER_TOKEN * (tokens - 1)


class Script:
    """What a model says behind each place of a text.

    Args:
        says: the token, by place: `says[n]` follows n tokens.
        size: of the vocabulary.
        margins: by how much its logit stands out of the others', which are normally distributed.
    """

    def __init__(self, says: Sequence[int], size: int, margins: Sequence[float]) -> None:
        self._says = says
        self._margins = margins
        rows: Rows = np.random.default_rng(1).standard_normal((MOST_ROWS, size)).astype(np.float32)
        self._rows = rows
        self._raised: list[tuple[int, int, float]] = []

    def rows(self, places: Sequence[int]) -> Rows:
        """Logits behind so many tokens each, valid until the next call."""
        rows = self._rows
        for number, token, value in self._raised:
            rows[number, token] = value
        self._raised.clear()
        for number, place in enumerate(places):
            token = self._says[place]
            self._raised.append((number, token, float(rows[number, token])))
            rows[number, token] = self._margins[place]
        return rows[: len(places)]


def idle(until: float) -> None:
    """Let a pass take until then, and leave the processor's caches alone."""
    # Asleep, it would be woken some time later, and what comes after it would be slower.
    while perf_counter() < until:
        pass


class Weights:
    """What a real pass reads: more than the processor's caches hold, so that whatever was in them
    before is gone."""

    SIZE, PIECE = 256 << 20, 1 << 20

    def __init__(self) -> None:
        self._bytes = np.ones(self.SIZE // 8, np.int64)
        self._at = 0

    def read(self, until: float) -> None:
        """Let a pass take until then, reading."""
        step = self.PIECE // 8
        while perf_counter() < until:
            self._bytes[self._at : self._at + step].sum()
            self._at = (self._at + step) % len(self._bytes)


class ScriptedTarget:
    """An `interfaces.Target` that goes on with its script whatever is drafted."""

    max_leaves, max_draft = 16, 64

    def __init__(self, script: Script, capacity: int, wait: Callable[[float], None] = idle) -> None:
        self.capacity = capacity
        self.native_seconds = 0.0
        self.tokens: list[int] = []
        self._script = script
        self._wait = wait

    def forward(self, request: PassRequest) -> PassResult:
        started, context, tree = perf_counter(), request.context, request.tree
        self.tokens += context[len(self.tokens) :]
        held = len(context)
        rows = self._script.rows([held, *(held + depth for depth in tree.depths)])
        self._wait(started + target_seconds(1 + len(tree)))
        seconds = perf_counter() - started
        self.native_seconds += seconds
        return PassResult(rows, seconds)

    def commit(self, tree: TokenTree, path: Sequence[int]) -> None:
        self.tokens += [tree.tokens[node] for node in path]

    def rollback(self, context: Sequence[int]) -> None:
        del self.tokens[len(context) :]


class ScriptedCache:
    """A `draft_model.Cache` that goes on with its script whatever it reads."""

    max_draft = 64

    def __init__(self, script: Script, capacity: int, wait: Callable[[float], None] = idle) -> None:
        self.capacity = capacity
        self.native_seconds = 0.0
        self.tokens: list[int] = []
        self._script = script
        self._wait = wait

    def extend(self, tokens: Sequence[int], outputs: int = 1) -> Rows:
        started = perf_counter()
        self.tokens += tokens
        held = len(self.tokens)
        rows = self._script.rows(range(held - outputs + 1, held + 1))
        self._wait(started + DRAFT_SECONDS)
        self.native_seconds += perf_counter() - started
        return rows

    def truncate(self, length: int) -> None:
        del self.tokens[length:]

    def checkpoint(self) -> None:
        """Nothing: it can be cut anywhere."""


def words(size: int) -> list[bytes]:
    """What the tokens of a vocabulary spell: four letters each, and a space before them."""
    letters = b"abcdefghijklmnopqrstuvwxyz"
    return [b" " + bytes(letters[n // 26**place % 26] for place in range(4)) for n in range(size)]


def other_vocabulary(spelled: Sequence[bytes]) -> ByteVocabulary:
    """The same words under other ids, but every third, which is written with two tokens."""
    kept = [word for number, word in enumerate(spelled) if number % 3]
    parts = sorted({part for word in spelled for part in (word[:3], word[3:])})
    every = [*kept, *parts]
    return ByteVocabulary([every[n] for n in np.random.default_rng(2).permutation(len(every))])

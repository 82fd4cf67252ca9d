"""From a row of logits to the distribution to sample from, for target and drafters alike.

The order is llama.cpp's: logit bias, grammar, penalties, top-k, top-p, min-p, temperature."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from localspec.decoding.distribution import Distribution, Ids
from localspec.decoding.occurrences import NONE, Occurrences, PenaltyWindow
from localspec.decoding.params import SamplingParams as SamplingParams
from localspec.errors import NativeError, UsageError

Row = npt.NDArray[np.float32]
"""Logits of one position, float32 [vocabulary]."""
Rows = npt.NDArray[np.float32]
"""Logits of one pass over a tree, float32 [1 + nodes, vocabulary]: row 0 follows the committed
tokens, row i + 1 follows node i."""

NEVER = -math.inf
"""The logit of an impossible token."""
NO_TOKEN = -1  # stands for the token after a draft if none is possible
DEAD_ENDS = (NativeError, UsageError)
"""Raised where grammar or bias leaves no token. They end a draft but not the answer, which may end
before that position."""
_IMPOSSIBLE = (
    "No token is possible here: the grammar or the logit bias rules all of them out. "
    "Loosen the grammar, or remove the bias."
)
GROUPS = 1024
"""Groups of `top_ids`; few enough that sorting their maxima is cheap."""


class Constraint(Protocol):
    """The state of a grammar at one position of the text."""

    def allows(self, token: int) -> bool:
        """Whether a token may come next; far cheaper than `masked`."""
        ...

    def masked(self, row: Row) -> Row:
        """A copy of a row, with minus infinity for all tokens that may not come next."""
        ...

    def likeliest(self, row: Row, k: int) -> Ids:
        """Like `top_ids`, for the allowed tokens only."""
        ...

    def advance(self, token: int) -> None: ...

    def fork(self) -> Constraint: ...

    def forced(self) -> Sequence[int]:
        """Tokens of the only text that may follow; other tokenizations may be allowed. Cheap at
        successive positions."""
        ...


_MOST = 1e30  # bound of a bias, so that sums stay finite
_COLDEST = 1e300
"""Upper bound of 1 ÷ temperature, which would be infinite for a subnormal temperature."""


class Sampler:
    """Applies `SamplingParams` to rows of logits of one vocabulary."""

    def __init__(self, params: SamplingParams, vocabulary: int) -> None:
        self.params = params
        self.greedy = params.greedy
        self._bias_ids = np.array(list(params.logit_bias), np.int64)
        finite = [min(x, _MOST) if x > -_MOST else NEVER for x in params.logit_bias.values()]
        self._bias = np.array(finite, np.float32)
        if any(not 0 <= token < vocabulary for token in params.logit_bias):
            raise UsageError(
                f"logit-bias names a token id outside 0 … {vocabulary - 1}. "
                "Look ids up with Engine.tokenize(), or /tokenize of localspec serve."
            )
        self._vocabulary = vocabulary
        penalties = params.repeat_penalty, params.frequency_penalty, params.presence_penalty
        self._penalises = params.penalty_last_n != 0 and penalties != (1.0, 0.0, 0.0)
        self.adjusts = bool(self._bias_ids.size) or self._penalises
        """Whether logits depend on more than the row, so that its argmax is not enough."""

    def window(self, text: Sequence[int]) -> PenaltyWindow | None:
        if not self._penalises:
            return None
        return PenaltyWindow(text, self.params.penalty_last_n, self._vocabulary)

    def best(
        self, row: Row, recent: Occurrences = NONE, constraint: Constraint | None = None
    ) -> int:
        """The token that greedy decoding picks, lowest id on ties."""
        row = self._adjusted(row, recent) if self.adjusts else row
        best = argmax(row)
        if constraint is None or constraint.allows(best):
            return best
        return int(_possible(row, constraint.likeliest(row, 1))[0])

    def top(
        self, row: Row, recent: Occurrences, k: int, constraint: Constraint | None = None
    ) -> list[int]:
        row = self._adjusted(row, recent) if self.adjusts else row
        ids = top_ids(row, k) if constraint is None else constraint.likeliest(row, k)
        top: list[int] = _possible(row, ids).tolist()
        return top

    def distribution(
        self, row: Row, recent: Occurrences = NONE, constraint: Constraint | None = None
    ) -> Distribution:
        """The distribution that a token is drawn from after `recent`.

        Raises:
            NativeError: the constraint allows no token at all, or every logit is -inf or NaN.
        """
        params = self.params
        if params.temperature == 0.0:
            return Distribution.certain(self.best(row, recent, constraint))
        row = self._adjusted(row, recent) if self.adjusts else row
        few = 0 < (k := params.top_k) < len(row)
        if constraint is not None and not few:
            row = constraint.masked(row)
        if few:
            ids = top_ids(row, k) if constraint is None else constraint.likeliest(row, k)
            ids, total = _possible(row, ids), None
        elif params.top_p < 1.0:
            ids, total = _nucleus(row, params.top_p)
        else:
            best = row[argmax(row)]
            bound = best + math.log(params.min_p) if params.min_p > 0.0 else -np.inf
            ids = np.flatnonzero(row >= bound).astype(np.int32)
            ids = _possible(row, ids[(-row[ids]).argsort(kind="stable")])
            total = None
        # Logits descend from 0 here, so each truncation keeps a prefix of them.
        logits = row[ids].astype(np.float64)
        logits -= logits[0]
        keep = len(ids)
        if params.top_p < 1.0:
            cumulative = np.add.accumulate(np.exp(logits))
            whole = cumulative[-1] if total is None else total
            keep = min(keep, int(cumulative.searchsorted(params.top_p * whole)) + 1)
        if params.min_p > 0.0:
            keep = min(keep, int((-logits).searchsorted(-math.log(params.min_p), side="right")))
        ids, logits = ids[:keep], logits[:keep]
        order = ids.argsort()
        return Distribution.normalised(
            ids[order], np.exp(logits[order] * min(1.0 / params.temperature, _COLDEST))
        )

    def _adjusted(self, row: Row, recent: Occurrences) -> Row:
        row = row.copy()
        if self._bias_ids.size:
            row[self._bias_ids] += self._bias
        if self._penalises and len(recent.ids):
            ids, counts = recent.ids, recent.counts
            logits = row[ids]
            rate = self.params.repeat_penalty
            logits = np.where(logits > 0, logits / rate, logits * rate)
            logits -= counts * self.params.frequency_penalty + self.params.presence_penalty
            row[ids] = logits
        return row


def _nucleus(row: Row, top_p: float) -> tuple[Ids, float]:
    """Ids, best first, that hold at least `top_p` of the mass, and the softmax normaliser relative
    to the largest logit. Only the head is sorted."""
    weights = np.exp(row - row[argmax(row)])
    total = float(weights.sum(dtype=np.float64))
    k = 256
    while True:
        ids = _possible(row, top_ids(row, k))
        if k >= len(row) or weights[ids].sum(dtype=np.float64) >= top_p * total:
            return ids, total
        k *= 16


def _possible(row: Row, ids: Ids) -> Ids:
    """Drop tokens with logit -inf from `ids`, which are best first."""
    if len(ids) and row.item(ids.item(-1)) == NEVER:
        ids = ids[row[ids] > -np.inf]
    if not len(ids):
        raise NativeError(_IMPOSSIBLE)
    return ids


def argmax(row: Row) -> int:
    """The token with the largest logit; a NativeError if there is none, or logits are NaN or
    infinite."""
    best = int(row.argmax())
    if not NEVER < row.item(best) < math.inf:  # also true of NaN, which is the largest for numpy
        wrong = "The model computes NaN or infinity. Try another file, or --kernels off."
        raise NativeError(_IMPOSSIBLE if row.item(best) == NEVER else wrong)
    return best


def top_ids(row: Row, k: int) -> Ids:
    """Ids of the k largest logits, descending, the lower id first among equals; of more than k, a
    NativeError if any is NaN or infinite.

    For a long row, the k-th largest of the maxima of GROUPS interleaved groups bounds the k-th
    largest logit; only groups whose maximum reaches it are searched."""
    n = len(row)
    if k >= n:
        return (-row).argsort(kind="stable").astype(np.int32)
    if n < 4 * GROUPS or k > GROUPS // 2:
        largest = row.max()
        ids = (row >= np.partition(row, n - k)[n - k]).nonzero()[0]
        values = row[ids]
    else:
        whole = n - n % GROUPS
        grid = row[:whole].reshape(-1, GROUPS)
        # Array methods wrap these functions, and take 1.5 times as long.
        maxima = np.maximum.reduce(grid, axis=0)
        largest = np.maximum(maxima.max(), row[whole:].max(initial=NEVER))
        ranked = maxima.copy()
        ranked.partition(GROUPS - k)
        bound = ranked[GROUPS - k]
        groups = (maxima >= bound).nonzero()[0]
        searched = grid.take(groups, axis=1).ravel()
        places = (searched >= bound).nonzero()[0]
        ids, group = np.divmod(places, len(groups))
        ids *= GROUPS
        ids += groups[group]
        values = searched[places]
        rest = (row[whole:] >= bound).nonzero()[0]
        if len(rest):
            rest += whole
            ids, values = np.concatenate((ids, rest)), np.concatenate((values, row[rest]))
    if not largest < math.inf:
        argmax(row)  # raises
    best: Ids = ids[(-values).argsort(kind="stable")[:k]].astype(np.int32)
    return best


def top_few(row: Row, k: int, best: int) -> list[int]:
    """Like `top_ids` for small k, by k arg-maxes; `best` is the first. Overwrites the row."""
    found = [best]
    while len(found) < k:
        row[best] = NEVER
        best = int(row.argmax())
        if row.item(best) == NEVER:
            break
        found.append(best)
    return found


def confidence(row: Row) -> float:
    """Softmax probability of the most probable token, before truncation."""
    return float(1.0 / np.exp(row - row.max()).sum())

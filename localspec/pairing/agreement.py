"""How often a draft's tokens would be accepted, from what both models say in a text they read.

Nothing is generated: a large target reads a text in a fraction of the time that it takes to write
one, and every place of it tells. At T = 1 a token drawn from the draft's q is accepted with chance
β = Σ min(p, q) (Leviathan et al. 2023, definition 3.1 and theorem 3.5). That varies less from place
to place than whether both would say the same token does, and two drafts that read the same text are
compared place by place, so that some 64 places are enough.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from localspec.decoding.sampling import Rows
from localspec.llama.context import Context
from localspec.pairing import texts

UNSURE, PLACES = 4, 16
"""Tokens at the beginning of a text, where nobody can tell what it is about, and those behind them
whose continuations are compared. Together they have to fit into one pass that gives rows."""


def acceptances(target: Context, drafts: Sequence[Context]) -> npt.NDArray[np.float64]:
    """Chance that a token of each draft is accepted, at each place of the texts.

    Args:
        target, drafts: of one vocabulary, with room for UNSURE + PLACES tokens. All are left empty.

    Returns:
        float64 [drafts, places].

    Raises:
        NativeError, Cancelled: as `Context.extend`.
    """
    found: list[list[npt.NDArray[np.float64]]] = [[] for _ in drafts]
    for text in (*texts.SEARCHED, *texts.JUDGED):
        tokens = target.model.vocabulary.tokenize(text, special=False, add_bos=True)
        tokens = tokens[: UNSURE + PLACES]
        said = _said(target, tokens)
        for mine, draft in zip(found, drafts, strict=True):
            mine.append(overlap(said, _said(draft, tokens)))
    return np.array([np.concatenate(mine) for mine in found])


def overlap(one: Rows, other: Rows) -> npt.NDArray[np.float64]:
    """Σ min(p, q) for each row.

    Args:
        one, other: probabilities, float32 [places, vocabulary]; either may have more tokens at the
            end, which the other one never says.

    Returns:
        float64 [places].
    """
    both = min(one.shape[1], other.shape[1])
    found: npt.NDArray[np.float64] = np.minimum(one[:, :both], other[:, :both]).sum(
        axis=1, dtype=np.float64
    )
    return found


def _said(context: Context, tokens: list[int]) -> Rows:
    """Probabilities behind the tokens of a text, all but the first few."""
    context.clear()
    try:
        rows = context.extend(tokens, max(1, len(tokens) - UNSURE))
        return _softmax(rows)
    finally:
        context.clear()


def _softmax(rows: Rows) -> Rows:
    raised: Rows = np.exp(rows - rows.max(axis=1, keepdims=True))
    raised /= raised.sum(axis=1, keepdims=True)
    return raised

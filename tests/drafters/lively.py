"""A toy draft model whose choices depend on two tokens, and a text for it."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.drafters.draft_model import DraftModel
from tests.support.toys import START, ToyCache, started

LIVELY = started(
    [[[5, 3, 2], [1, 5, 4], [4, 1, 5]], [[2, 3, 5]] * 3, [[6, 1, 2], [1, 2, 6], [1, 1, 1]]]
)
"""What follows depends on two tokens."""
TEXT = [0, 1, 2]


def model_of(cache: ToyCache) -> DraftModel:
    return DraftModel(cache, START + 1)


def begun(cache: ToyCache) -> DraftModel:
    """Behind TEXT, whose last token is unread."""
    model = model_of(cache)
    model.begin(TEXT)
    assert cache.tokens == TEXT[:-1]
    return model


def rows_behind(*texts: Sequence[int]) -> list[list[float]]:
    return [LIVELY.logits([text])[0].tolist() for text in texts]

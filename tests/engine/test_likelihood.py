"""Texts that are there already, read as drafts."""

from __future__ import annotations

import numpy as np
import pytest

from localspec import Engine, SamplingParams
from localspec.decoding.likelihood import _AT_ONCE
from localspec.errors import Cancelled
from tests.engine.conftest import tiny, tiny_pair

__all__ = ["tiny", "tiny_pair"]


def expected(engine: Engine, tokens: list[int]) -> list[float]:
    """Log-probabilities by a pass for every token."""
    found = []
    for at in range(1, len(tokens)):
        row = engine.logits(tokens[:at]).astype(np.float64)
        found.append(float(row[tokens[at]] - np.logaddexp.reduce(row)))
    return found


@pytest.mark.parametrize("length", [1, 2, _AT_ONCE + 1, _AT_ONCE + 2, 2 * _AT_ONCE + 7])
def test_every_token_but_the_first_is_told(tiny: Engine, length: int) -> None:
    tokens = [5 + (7 * i) % 90 for i in range(length)]
    told = tiny.likelihood(tokens, 2)
    assert [one.token for one in told] == tokens[1:]
    assert all(len(one.top) == 2 for one in told)
    assert [one.logprob for one in told] == pytest.approx(expected(tiny, tokens), abs=0.05)


def test_it_leaves_the_engine_as_it_was(tiny: Engine) -> None:
    greedy = SamplingParams(temperature=0.0)
    before = tiny.generate("abc", max_tokens=12, sampling=greedy).text
    with pytest.raises(Cancelled):
        tiny.likelihood(list(range(5, 90)), stopped=lambda: True)
    tiny.likelihood(list(range(5, 90)))
    assert tiny.generate("abc", max_tokens=12, sampling=greedy).text == before

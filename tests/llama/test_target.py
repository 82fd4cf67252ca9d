"""The target's own part: what a cache shares with a prompt."""

from __future__ import annotations

import random
from typing import Any

import pytest

from localspec.llama.target import shared_prefix


def one_by_one(a: list[int], b: list[int]) -> int:
    shared = 0
    while shared < min(len(a), len(b)) and a[shared] == b[shared]:
        shared += 1
    return shared


@pytest.mark.parametrize("seed", range(50))
def test_longest_common_beginning(seed: int) -> None:
    dice = random.Random(seed)
    a = [dice.randint(0, 3) for _ in range(dice.randint(0, 40))]
    b = a[: dice.randint(0, len(a))] + [dice.randint(0, 3) for _ in range(dice.randint(0, 9))]
    assert shared_prefix(a, b) == shared_prefix(b, tuple(a)) == one_by_one(a, b)


def test_comparing_does_not_go_token_by_token() -> None:
    """The texts of a long chat differ near their end, if at all."""

    class Watched(list[int]):
        asked = 0

        def __getitem__(self, index: Any) -> Any:
            Watched.asked += 1
            return super().__getitem__(index)

    text = list(range(50_000))
    assert shared_prefix(Watched(text), [*text[:-5], 0, 0, 0, 0, 0]) == len(text) - 5
    assert Watched.asked < 50

"""What a generation commits, and where it ends."""

from __future__ import annotations

import pytest

from localspec.decoding.random_source import SeededRandom
from localspec.decoding.sampling import Sampler
from localspec.decoding.session import Session
from tests.support.toys import GREEDY, Forbids

END = 9


def session(limit: int = 10, *, constraint: Forbids | None = None) -> Session:
    """Three tokens of a prompt, and room for the rest."""
    return Session(
        (1, 2, 3),
        Sampler(GREEDY, 10),
        SeededRandom(0),
        limit=limit,
        ends=lambda token: token == END,
        constraint=constraint,
    )


@pytest.mark.parametrize(
    ("tokens", "kept"),
    [([END], [END]), ([4, END, 5], [4, END]), ([END, END], [END]), ([4, 5, END], [4, 5, END])],
)
def test_text_stops_at_the_first_end_token_and_keeps_it(tokens: list[int], kept: list[int]) -> None:
    ended = session()
    assert ended.extend(tokens, None) == kept
    assert ended.context == [1, 2, 3, *kept]
    assert ended.finish == "stop"


def test_text_stops_at_the_token_that_completes_it() -> None:
    seen: list[int] = []
    ended = Session(
        (1, 2, 3),
        Sampler(GREEDY, 10),
        SeededRandom(0),
        limit=10,
        ends=lambda token: False,
        completes=lambda token: seen.append(token) or token == 5,  # type: ignore[func-returns-value]
    )
    assert ended.extend([4], None) == [4]
    assert ended.extend([4, 5, 6], None) == [4, 5]
    assert (ended.finish, seen) == ("stop", [4, 4, 5])


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_text_stops_at_the_limit(count: int) -> None:
    full = session(limit=6)
    kept = full.extend([4, 5, 6, 7, 8][:count], None)
    assert kept == [4, 5, 6, 7, 8][: min(count, 3)]
    assert full.context == [1, 2, 3, *kept]
    assert full.finish == ("length" if count >= 3 else None)


def test_end_token_as_the_last_that_fits_is_a_stop() -> None:
    ended = session(limit=5)
    assert ended.extend([4, END, 5], None) == [4, END]
    assert ended.finish == "stop"

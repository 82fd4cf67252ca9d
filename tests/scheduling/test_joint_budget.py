"""What several answers verify together is the best that they could."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.policy.worth import Bid
from localspec.scheduling.joint_budget import share_out

UNBOUND = 1e9
chances = st.floats(0.01, 1.0)


def worth(bids: list[Bid], counts: tuple[int, ...], further: list[float]) -> float:
    gained = sum(sum(bid.reaches[:count]) for bid, count in zip(bids, counts, strict=True))
    return gained - max(bid.rate for bid in bids) * further[sum(counts)]


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[Bid], list[float]]:
    drafts = draw(st.lists(st.lists(chances, max_size=4), min_size=1, max_size=4))
    bids = [
        Bid(sorted(reaches, reverse=True), 0, draw(st.floats(0.5, 2.0)), UNBOUND)
        for reaches in drafts
    ]
    steps = draw(st.lists(st.floats(0.0, 2.0), min_size=16, max_size=16))
    return bids, [sum(steps[:n]) for n in range(17)]


@given(tables())
def test_no_other_choice_is_worth_more(table: tuple[list[Bid], list[float]]) -> None:
    bids, further = table
    counts, each = share_out(bids, further)
    best = max(
        worth(bids, choice, further)
        for choice in product(*(range(len(bid.reaches) + 1) for bid in bids))
    )
    assert worth(bids, tuple(counts), further) == pytest.approx(best)
    assert each * sum(counts) == pytest.approx(further[sum(counts)] if sum(counts) else 0.0)


@given(tables(), st.lists(st.floats(0.0, 3.0), min_size=4, max_size=4))
def test_nobody_stakes_more_than_it_may(
    table: tuple[list[Bid], list[float]], spare: list[float]
) -> None:
    bids = [bid._replace(spare=most) for bid, most in zip(table[0], spare, strict=False)]
    counts, each = share_out(bids, table[1])
    assert all(count * each <= bid.spare + 1e-9 for bid, count in zip(bids, counts, strict=True))


def test_a_pass_that_is_cheap_at_one_size_is_filled_by_all() -> None:
    """Eight rows for what one costs: none of four answers would pay for that alone."""
    bids = [Bid([0.6, 0.4], 0, 1.0, UNBOUND)] * 4
    further = [0.0, *[2.0] * 8, 4.0]
    assert share_out(bids[:1], further)[0] == [0]
    assert share_out(bids, further) == ([2, 2, 2, 2], 0.25)


def test_the_likelier_drafts_have_the_rows() -> None:
    bids = [Bid([0.9, 0.8, 0.7], 0, 1.0, UNBOUND), Bid([0.75, 0.3], 0, 1.0, UNBOUND)]
    assert share_out(bids, [0.0, 0.1, 0.2, 0.3, 5.0])[0] == [2, 1]


def test_what_was_drawn_is_verified() -> None:
    """Whatever it costs; what was looked up behind it only where it pays."""
    bids = [Bid([0.1, 0.1, 0.9], 2, 1.0, 0.0), Bid([0.2], 0, 1.0, UNBOUND)]
    assert share_out(bids, [0.0, 1.0, 2.0, 2.3, 4.0])[0] == [2, 0]
    free = [bids[0]._replace(spare=UNBOUND), bids[1]]
    assert share_out(free, [0.0, 1.0, 2.0, 2.3, 4.0])[0] == [3, 0]
    assert share_out(bids, [0.0])[0] == [2, 0]

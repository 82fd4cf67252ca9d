"""Which members may have cells of the shared cache, and who gives them away."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.scheduling.members import Member

PAUSED = 1.0
"""Seconds without asking for a step, after which a consumer's cells may be given to others."""


def room(members: Sequence[Member], me: Member, cells: int) -> int:
    """Tokens of a member for which there is room beside those of the others."""
    return cells - sum(member.cells() for member in members if member is not me)


def fits(members: Sequence[Member], me: Member, tokens: int, cells: int) -> bool:
    """Whether so many tokens of a member fit beside those of the others into so many cells."""
    left = room(members, me, cells)
    return left == cells or tokens <= left


def paused(members: Sequence[Member], me: Member, now: float) -> list[Member]:
    """Who else holds cells, and has not asked for anything for long, the oldest first."""
    return [
        member
        for member in members
        if member is not me
        and member.cells()
        and not (member.inside or member.request)
        and now - member.since > PAUSED
    ]

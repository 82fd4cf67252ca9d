"""Planners that decide nothing: plain decoding, and what options force."""

from __future__ import annotations

from localspec.decoding.interfaces import Limits, Plan, Step
from localspec.decoding.session import Session
from localspec.policy import reasons

LAST = Plan(None, reason=reasons.LAST)


class Never:
    """Plain decoding, and why."""

    def __init__(self, reason: str) -> None:
        self._plan = Plan(None, reason=reason)

    def plan(self, session: Session) -> Plan:
        return self._plan

    def observe(self, step: Step) -> None:
        """Nothing to learn."""


class Fixed:
    """Always the same plan, as far as there is room: what `--drafter` and `--depth` force. `trees`:
    whether the acceptance rule takes branches."""

    def __init__(self, plan: Plan, limits: Limits, *, trees: bool) -> None:
        self._plan = plan
        self._limits = limits
        self._leaves = limits.max_leaves if trees else 1
        self._roomy = self._shaped(limits.max_draft, limits.max_draft)

    def plan(self, session: Session) -> Plan:
        limits, held = self._limits, len(session.context)
        left, free = session.limit - held - 1, limits.capacity - held
        if left >= self._roomy.depth and free >= limits.max_draft:
            return self._roomy
        return self._shaped(min(left, limits.max_draft), min(limits.max_draft, free))

    def _shaped(self, levels: int, nodes: int) -> Plan:
        """The plan where there is room for so many levels, and so many tokens."""
        plan = self._plan
        depth = min(plan.depth, levels)
        if depth < 1:
            return LAST
        # Every level but the last may end width − 1 branches beside the one that goes on.
        width = min(plan.width, 1 + (self._leaves - 1) // depth, max(1, nodes // depth))
        if (depth, width) != (plan.depth, plan.width):
            plan = plan._replace(depth=depth, width=width)
        return plan

    def observe(self, step: Step) -> None:
        """Nothing to learn."""

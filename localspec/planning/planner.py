"""Planners that decide nothing: plain decoding, and what options force."""

from __future__ import annotations

from dataclasses import replace

from localspec.decoding.interfaces import Limits, Plan, Step
from localspec.decoding.session import Session

LAST = Plan(None, reason="the answer ends with the next token")


class Never:
    """Plain decoding, and why."""

    watches = False

    def __init__(self, reason: str) -> None:
        self._plan = Plan(None, reason=reason)

    def plan(self, session: Session) -> Plan:
        return self._plan

    def observe(self, step: Step) -> None:
        """Nothing to learn."""


class Fixed:
    """Always the same plan, as far as there is room: what `--drafter` and `--depth` force.

    Args:
        limits: of the target.
        trees: whether the acceptance rule takes branches.
    """

    watches = False

    def __init__(self, plan: Plan, limits: Limits, *, trees: bool) -> None:
        self._plan = plan
        self._limits = limits
        self._leaves = limits.max_leaves if trees else 1

    def plan(self, session: Session) -> Plan:
        plan, limits = self._plan, self._limits
        depth = min(plan.depth, session.room - 1, limits.max_draft)
        if depth < 1:
            return LAST
        nodes = min(limits.max_draft, limits.capacity - len(session.context))
        # Every level but the last may end width − 1 branches beside the one that goes on.
        width = min(plan.width, 1 + (self._leaves - 1) // depth, max(1, nodes // depth))
        if (depth, width) != (plan.depth, plan.width):
            plan = replace(plan, depth=depth, width=width)
        return plan

    def observe(self, step: Step) -> None:
        """Nothing to learn."""

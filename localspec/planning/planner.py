"""How to draft at each step: which drafter, how deep, how wide, or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from localspec.decoding.session import Session

if TYPE_CHECKING:
    from localspec.decoding.loop import Step
    from localspec.planning.draft_tree import Outlook


@dataclass(frozen=True, slots=True)
class Plan:
    """One step's decision.

    Attributes:
        drafter: name of the drafter to ask, None to decode plainly.
        depth: longest path to propose, in tokens.
        width: most candidates at one place; 1 makes a chain.
        reason: why, in words; always given where nothing is drafted.
        min_confidence: a draft model stops where its best token is less probable than this.
        min_likelihood: a draft model stops where all its tokens together are less probable than
            this (threshold decoding). 0 turns either off.
        overlaps: whether the drafter goes on while the target verifies.
        outlook: what the measured planner expects; it also decides how the draft goes on.
    """

    drafter: str | None
    depth: int = 0
    width: int = 1
    reason: str = ""
    min_confidence: float = 0.0
    min_likelihood: float = 0.0
    overlaps: bool = False
    outlook: Outlook | None = None


class Planner(Protocol):
    """Decides before each step and learns from each."""

    def plan(self, session: Session) -> Plan:
        """The decision for the step that comes."""
        ...

    def observe(self, step: Step) -> None:
        """What the step brought."""
        ...


class Never:
    """Plain decoding, and why."""

    def __init__(self, reason: str) -> None:
        self._plan = Plan(None, reason=reason)

    def plan(self, session: Session) -> Plan:
        return self._plan

    def observe(self, step: Step) -> None:
        """Nothing to learn."""


class Fixed:
    """Always the same plan: what `--drafter` and `--depth` force."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def plan(self, session: Session) -> Plan:
        return self._plan

    def observe(self, step: Step) -> None:
        """Nothing to learn."""

"""How to draft at each step: which drafter, how deep, how wide, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from localspec.decoding.session import Session

if TYPE_CHECKING:
    from localspec.decoding.loop import Step


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
    """

    drafter: str | None
    depth: int = 0
    width: int = 1
    reason: str = ""
    min_confidence: float = 0.0
    min_likelihood: float = 0.0


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


class Simple:
    """The n-gram where the text repeats itself, else the draft model; off while it fails.

    A rule of thumb with fixed depths, in the place where the measured planner goes. A drafter
    whose recent drafts were nearly all rejected rests for a while, longer each time, and is then
    tried again.

    Args:
        match_length: tokens of the context's longest repeated ending: `NgramIndex.match_length`.
        copy: the n-gram's plan.
        model: the draft model's plan, None without one.
    """

    LONG_MATCH = 4
    """Shorter repeats are chance more often than copying."""
    KEEP = 0.9
    """Weight of the past in the running acceptance, per tested token."""
    FLOOR = 0.25
    """Acceptance under which a drafter rests."""
    SHORT_REST, LONG_REST = 8, 64
    """Steps of the first rest and of the longest."""

    def __init__(
        self, match_length: Callable[[Session], int], *, copy: Plan, model: Plan | None
    ) -> None:
        self._match_length = match_length
        self._copy = replace(copy, reason="the text repeats itself")
        self._model = None if model is None else replace(model, reason="the draft model leads")
        plans = [plan for plan in (self._copy, self._model) if plan is not None]
        names = [plan.drafter for plan in plans]
        self._rate = dict.fromkeys(names, 0.6)
        self._rest = dict.fromkeys(names, self.SHORT_REST)
        self._resting = dict.fromkeys(names, 0)

    def plan(self, session: Session) -> Plan:
        repeats = self._match_length(session) >= self.LONG_MATCH
        if repeats and not self._resting[self._copy.drafter]:
            return self._copy
        if self._model is not None and not self._resting[self._model.drafter]:
            return self._model
        if repeats or self._model is not None:
            return Plan(None, reason="recent drafts were rejected; drafting rests")
        return Plan(None, reason="the text does not repeat itself, and there is no draft model")

    def observe(self, step: Step) -> None:
        name = step.plan.drafter
        for resting, left in self._resting.items():
            if left:
                self._resting[resting] = left - 1
        if name is None or name not in self._rate or not step.tested:
            return
        keep = self.KEEP**step.tested
        self._rate[name] = keep * self._rate[name] + (1 - keep) * step.accepted / step.tested
        if self._rate[name] < self.FLOOR:
            self._resting[name] = self._rest[name]
            self._rest[name] = min(2 * self._rest[name], self.LONG_REST)
            self._rate[name] = 2 * self.FLOOR  # so that it is not sent off again at once
        elif self._rate[name] > 2 * self.FLOOR:
            self._rest[name] = self.SHORT_REST

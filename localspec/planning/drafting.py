"""What a user may say about drafting, and the planner that follows from it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from localspec.errors import UsageError

# The rest imports numpy, which the command line does without until it has something to run.
if TYPE_CHECKING:
    from localspec.decoding.loop import Drafter
    from localspec.drafters import Parts
    from localspec.planning.explore_then_commit import Contest
    from localspec.planning.pair_profile import Knowledge
    from localspec.planning.planner import Planner

DEPTH = 3
"""Draft tokens per step of a drafter asked for by name: a pass over 4 is the cheapest per token
on CPUs."""
COPY_DEPTH = 8
"""The same for the n-gram, which costs nothing to ask and copies long stretches."""
MAX_DEPTH = 64
OVERLAPS = ("auto", "on", "off")


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """How to draft and verify.

    Attributes:
        drafter: "auto" lets the measured planner choose, "none" decodes plainly, else a name in
            REGISTRY.
        depth: draft tokens per step; None leaves it to the planner. With "auto" a depth, a width
            or a threshold makes the choice: the draft model where there is one, else the n-gram.
        width: candidates at each place; above 1 the drafts are trees.
        sampled: draw the draft model's tokens from its distribution where the answer is sampled,
            instead of taking the most probable ones.
        min_confidence: the draft model stops where its best token is less probable than this.
        min_likelihood: the draft model stops where its chain is less probable than this.
        overlap: whether the draft model goes on while the target verifies, where the two run on
            different devices or disjoint cores: "auto" measures whether that pays, "on", "off".
        rule: acceptance rule; see `localspec.decoding.rules`.
        threshold: of a lossy rule.

    Raises:
        UsageError: a value out of its range.
    """

    drafter: str = "auto"
    depth: int | None = None
    width: int = 1
    sampled: bool = True
    min_confidence: float = 0.0
    min_likelihood: float = 0.0
    overlap: str = "auto"
    rule: str = "auto"
    threshold: float | None = None

    @property
    def shaped(self) -> bool:
        """Whether the shape of the drafts is given, so that nothing is left to plan."""
        return bool(
            self.depth is not None or self.width > 1 or self.min_confidence or self.min_likelihood
        )

    @property
    def forced(self) -> bool:
        """Whether options leave nothing to the measured planner."""
        return self.drafter != "auto" or self.shaped

    def __post_init__(self) -> None:
        if self.drafter not in ("auto", "none"):
            from localspec.drafters import REGISTRY

            known = ("auto", "none", *REGISTRY)
            if self.drafter not in known:
                raise UsageError(
                    f"There is no drafter '{self.drafter}'. Choose one of {', '.join(known)}."
                )
        if self.depth is not None and not 1 <= self.depth <= MAX_DEPTH:
            raise UsageError(
                f"depth is {self.depth}. Give 1 to {MAX_DEPTH}, or turn drafting off with "
                "--drafter none."
            )
        if self.overlap not in OVERLAPS:
            raise UsageError(f"overlap is '{self.overlap}'. Choose one of {', '.join(OVERLAPS)}.")
        if not 1 <= self.width <= 16:
            raise UsageError(f"width is {self.width}. Give 1 (a chain) to 16.")
        for name, value in (
            ("min-confidence", self.min_confidence),
            ("min-likelihood", self.min_likelihood),
        ):
            if not 0.0 <= value < 1.0:
                raise UsageError(f"{name} is {value}. Give 0 (off) or more, and less than 1.")


@dataclass(frozen=True, slots=True)
class Limits:
    """What the target can verify: see `localspec.decoding.loop.Target`."""

    capacity: int
    max_draft: int
    max_leaves: int


def choose(
    drafting: Drafting,
    parts: Parts,
    knowledge: Knowledge,
    limits: Limits,
    *,
    greedy: bool,
    trees: bool,
    cannot: str | None,
) -> tuple[Planner, dict[str, Drafter]]:
    """The planner for one generation, and the drafters that it may ask.

    A drafter by name, a depth, a width or a threshold forces the choice; else what was measured
    decides.

    Args:
        parts: what drafters can be made of here.
        knowledge: what is known of the pair on this machine.
        greedy: whether the answer is greedy.
        trees: whether the acceptance rule takes branches.
        cannot: why this target should not be drafted for, None if it can be. A drafter asked for
            by name is used all the same.

    Raises:
        UsageError: a drafter by name that needs a draft model, and there is none.
    """
    from localspec.drafters import REGISTRY
    from localspec.drafters.hybrid import Blend
    from localspec.planning.adaptive import NAME, Measured
    from localspec.planning.planner import Fixed, Never, Plan

    name = drafting.drafter
    if name == "none":
        return Never("drafting is turned off"), {}
    if name == "auto" and cannot is not None:
        return Never(cannot), {}
    # A draft model with another vocabulary may only be able to choose its tokens.
    sampled = drafting.sampled and (parts.model is None or parts.model.draws(greedy=greedy))
    parts = replace(parts, greedy=not sampled)
    if name == "auto" and not drafting.shaped:
        measured = Measured(
            knowledge,
            parts.index.expected,
            None if parts.model is None else parts.model.unread,
            most=limits.max_draft,
            leaves=limits.max_leaves if trees else 1,
            capacity=limits.capacity,
            greedy=greedy,
            drawn=sampled,
            contest=_contest(drafting, parts),
        )
        blend = Blend(
            parts.model,
            parts.index,
            knowledge,
            greedy=not sampled,
            ahead=parts.ahead,
        )
        return measured, {NAME: blend}
    if name == "auto":
        name = "ngram" if parts.model is None else "model"
    if REGISTRY[name].needs_model and parts.model is None:
        raise UsageError(f"Drafter '{name}' needs a draft model. Give one with --draft.")
    plan = Plan(
        name,
        drafting.depth or (COPY_DEPTH if name == "ngram" else DEPTH),
        drafting.width,
        reason="fixed by option",
        min_confidence=drafting.min_confidence,
        min_likelihood=drafting.min_likelihood,
    )
    return Fixed(plan), {name: REGISTRY[name].build(parts)}


def _contest(drafting: Drafting, parts: Parts) -> Contest | None:
    """Who says whether to overlap; None where it is out of the question."""
    from localspec.planning.explore_then_commit import Contest

    if parts.ahead is None or drafting.overlap == "off":
        return None
    return Contest(decided=True) if drafting.overlap == "on" else parts.contest

"""What the adaptive planner and the draft tree builder tell each other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import NamedTuple

from localspec.decoding.auto_sources import Prediction
from localspec.decoding.distribution import Distribution
from localspec.decoding.interfaces import Draft, Plan
from localspec.decoding.records import record
from localspec.planning.acceptance_estimator import AcceptanceEstimator
from localspec.planning.costs import VerificationCosts
from localspec.planning.window_shape import WindowShape

AUTO = "auto"
"""Who carries these plans out: the draft tree builder."""


@record(frozen=True, slots=True)
class AdaptivePlan(Plan):
    """A `Plan`, and what the tree builder has to know to make the most of it.

    Attributes:
        asks: the model source to draft with, None to draft with what is looked up alone.
        reviews: a model source that is only tried on what is known, to see whether it would pay.
        costs: of verifying here.
        rate: tokens per second to be had on average.
        leaves: most branches.
        drawn: whether tokens of the model source are drawn from its distribution: what is drawn is
            never dropped, and the draft is a chain.
        predictions: by lookup source, what it expects behind the committed text.
        lookup_kind: what that amounts to, an index of `SourceProfile.came_true`; `worth` is what
            the best of it is worth by itself, plain decoding at least.
        prospect: tokens that asking is foreseen to gain, its first pass aside.
        onward: how likely a model source's next token was lately, where the ones before it were.
        window: size of the window that goes along; None for none.
        spare: seconds that the step may take at worst beyond a plain one, see
            `localspec.planning.account`.
    """

    asks: str | None = None
    reviews: str | None = None
    costs: VerificationCosts | None = None
    rate: float = 0.0
    leaves: int = 1
    drawn: bool = False
    predictions: Mapping[str, tuple[Prediction, ...]] = field(default_factory=dict)
    lookup_kind: int = 0
    worth: float = 0.0
    prospect: float = 0.0
    onward: float = 0.75
    window: WindowShape | None = None
    spare: float = math.inf


class Candidate(NamedTuple):
    """A token that could go into the tree.

    Attributes:
        token, source: as in TokenTree; `parent` is the number of another candidate, or ROOT.
        depth: 1 for the first level.
        estimator, features: where its chance comes from; None for one that is not learned from.
        chance: of being accepted if its parent is and its elder siblings are not.
        reach: of being accepted at all.
        proposal: the distribution it was drawn from, None where it was chosen.
        first: whether it is the first choice of the model source that was asked.
    """

    token: int
    parent: int
    depth: int
    source: str
    estimator: AcceptanceEstimator | None
    features: tuple[float, ...]
    chance: float
    reach: float
    proposal: Distribution | None
    first: bool


class Lesson(NamedTuple):
    """What an estimator can learn although nothing was verified; `right` is None where chance
    would have had a say, so that there is nothing to learn."""

    estimator: AcceptanceEstimator
    features: tuple[float, ...]
    right: bool | None


@record(frozen=True, slots=True)
class PlannedDraft(Draft):
    """A `Draft`, and what the planner learns from it.

    Attributes:
        candidates: all there were, parents before children.
        children: numbers of those behind each of them, and behind ROOT; elder siblings first.
        sizes: tokens that each pass of the model source read.
        gain: tokens that the draft is worth more than what was offered without asking, the model
            source's first pass aside.
        lessons: what was learned on the way.
        reviewed: how the model source under review would have done on the latest tokens.
    """

    candidates: Sequence[Candidate] = ()
    children: Mapping[int, Sequence[int]] = field(default_factory=dict)
    sizes: Sequence[int] = ()
    gain: float = 0.0
    lessons: Sequence[Lesson] = ()
    reviewed: Sequence[Lesson] = ()

"""What asking a model source is likely to gain, before it is asked: a pass of it costs as much
whether its tokens are right or wrong."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import exp
from statistics import fmean

from localspec.planning.acceptance_estimator import logit
from localspec.planning.draft_value import DraftValue

BEFORE = "before "
"""What the kinds of estimator are called that say, before a model source is asked, how likely its
first token is right; the kind of its candidates follows."""
PRIORS = {"greedy": (2.8, -2.4), "sampled": (2.8, -2.4)}
"""Where they begin, by the kind of candidate; others begin as the greedy one. Features: 1,
`Decisiveness.undecided`. They are those of SmolLM2 at 1.5 B in Q4_0 drafted by Q4_1, greedy, 3,600
places of `questions-tuning`. `tools.fit_priors`, two prompts of a suite, fits (1.77, -1.21) greedy
and (1.88, -1.6) sampled to that pair and the embedded one together, which are better by 0.01 to
0.03 in log-loss on `questions` and `stories:odd`; they were not taken, as with them the planner
asked less than pays at first (`tests/planning/test_not_held_back.py`)."""


def prior(kind: str) -> tuple[float, ...]:
    """Where the estimator of a kind of candidate begins."""
    return PRIORS.get(kind, PRIORS["greedy"])


USUAL_CHANCES = (0.32, 0.62, 0.85, 0.97, 0.99)
"""What a draft model's first token is likely to be right with: quantiles over the embedded pair and
SmolLM2-135M drafting for itself in another quantization together, see `tools.fit_priors`. (Apart:
0.23, 0.52, 0.77, 0.93, 0.99 and 0.43, 0.70, 0.91, 0.99, 0.99.)"""


class Decisiveness:
    """How often the target was undecided lately; it costs no pass to know.

    Where the target hesitates between several tokens, so does a draft model, and chooses another
    one. What the target says lately tells about the text that comes: lists, copies and formulas
    are sure for long stretches.

    Attributes:
        undecided: share of the latest tokens, see `localspec.decoding.acceptance.UNDECIDED`.
    """

    KEEP, USUAL = 0.85, 0.45
    __slots__ = ("undecided",)

    def __init__(self) -> None:
        self.undecided = self.USUAL

    def observe(self, tokens: int, undecided: int) -> None:
        """Count the tokens of a step, of so many of which the target was undecided."""
        if tokens:
            keep = self.KEEP**tokens
            self.undecided = keep * self.undecided + (1.0 - keep) * undecided / tokens

    @property
    def features(self) -> tuple[float, float]:
        return 1.0, self.undecided


class Prospects:
    """Tokens that a draft gains, the first pass aside, by how likely its first token is right.

    How sure a draft model is of its token differs from place to place, and that it stops where it
    is not sure is most of what it gains: so this is the mean over the usual confidences, all of
    them moved alike until their mean is that chance.
    """

    __slots__ = ("_gains",)

    def __init__(self, value: DraftValue, one: float) -> None:
        """`value` of a draft here; `one`: tokens that a further pass costs."""
        self._gains = [
            fmean([value.prospect(chance, onward, one) for chance in chances])
            for chances, onward in zip(_MOVED, _MEANS, strict=True)
        ]

    def gain(self, chance: float) -> float:
        """Tokens."""
        return _interpolated(chance, _MEANS, self._gains)


def _moved(shift: float) -> list[float]:
    """The usual confidences, all of them moved by so much as logits."""
    return [1.0 / (1.0 + exp(-shift - logit(chance))) for chance in USUAL_CHANCES]


_MOVED = [_moved(shift) for shift in (-4.0, -2.5, -1.25, 0.0, 1.25, 2.5, 4.0)]
_MEANS = [fmean(chances) for chances in _MOVED]


def _interpolated(x: float, xs: Sequence[float], ys: Sequence[float]) -> float:
    i = bisect_left(xs, x)
    if i == 0:
        return ys[0]
    if i == len(xs):
        return ys[-1]
    share = (x - xs[i - 1]) / (xs[i] - xs[i - 1])
    return ys[i - 1] + share * (ys[i] - ys[i - 1])

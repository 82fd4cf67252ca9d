"""Lookahead decoding: n-grams from the target's passes do not change its text."""

from dataclasses import replace
from itertools import pairwise

import pytest

from localspec import Drafting
from localspec.decoding.acceptance import BlockVerification, GreedyMatch
from localspec.drafters.composition import compose
from localspec.drafters.registry import Parts
from localspec.errors import UsageError
from localspec.policy.profile import PairProfile
from tests.decoding.exact import EXACT, MODEL
from tests.drafters.composed import gap_and_drafts, steps_of
from tests.policy.measuring import profile_of
from tests.support.toys import GREEDY, SuccessorModel, ToyTarget, session_of

CYCLE = 40
AROUND = SuccessorModel({token: ((token * 21 + 3) % CYCLE, 0.97) for token in range(CYCLE)}, CYCLE)
"""Generates all tokens in a cycle, so that nothing repeats within it."""


def free(parts: Parts) -> PairProfile:
    """A profile with almost free rows."""
    return profile_of([1.0 + 0.001 * n for n in range(64)], None)


def test_lookahead_drafts_before_anything_repeats() -> None:
    drafting, prompt = Drafting(drafter="lookahead"), range(0, CYCLE, 4)
    steps = steps_of(drafting, Parts(), free(Parts()), AROUND, prompt, CYCLE - 1)
    tokens = [prompt[-1], *(token for step in steps for token in step.tokens)]
    assert all(b == (a * 21 + 3) % CYCLE for a, b in pairwise(tokens))
    assert sum(step.sources.count("lookahead") for step in steps) > 10
    assert len(steps) < 25, "of 39 tokens"


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("source", ["lookahead", "padding"])
def test_sampled_text_is_the_targets(width: int, source: str) -> None:
    drafting = Drafting(drafter="lookahead", depth=2, width=width)
    gap, seen = gap_and_drafts(drafting, Parts, source, profiled=free, count=5)
    assert gap < EXACT
    assert seen > 10


def test_target_without_branches_is_refused() -> None:
    target, drafting = ToyTarget(MODEL), Drafting(drafter="lookahead")
    session = session_of([0], params=GREEDY)
    for rule, limits in (
        (GreedyMatch(), replace(target.limits, max_leaves=1)),
        (BlockVerification(), target.limits),
    ):
        with pytest.raises(UsageError, match=r"several continuations per pass.*Choose another"):
            compose(drafting, Parts(), free(Parts()), limits, session, rule)

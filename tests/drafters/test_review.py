"""Trying a draft model that is not asked at present: by the right chances, leaving no trace."""

from __future__ import annotations

import pytest
from localspec.drafters.hybrid import PROBED, Blend
from localspec.planning.verification_costs import Costs

from localspec.decoding.interfaces import Plan
from localspec.decoding.tree import TokenTree
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.ngram import NgramIndex
from localspec.planning.acceptance_estimator import Chance
from localspec.planning.adaptive import NAME
from localspec.planning.draft_tree import Outlook
from tests.planning.measuring import SHAPES, UNIT, profile_of
from tests.support.toys import AS_IS, GREEDY, SIZE, ToyCache, session_of, started

DRAFT = started([[1, 5, 2], [2, 1, 5], [5, 2, 1]])
TEXT = [n % SIZE for n in range(30)]
READ = 10
"""Tokens that the draft model had read when it was asked last."""


def probed(kind: str, *, greedy_drafts: bool, cache: ToyCache) -> list[float]:
    """What a probe finds where only drafts of one kind have a chance."""
    knowledge = profile_of(SHAPES["flat"])
    for other in ("model", "model, sampled", "model, chosen"):
        knowledge.chances[other] = Chance((4.0 if other == kind else -4.0, 0.0, 0.0, 0.0), 0.01)
    session = session_of(TEXT, params=GREEDY if kind == "model" else AS_IS)
    outlook = Outlook(
        knowledge,
        Costs(knowledge, 0, 16),
        rate=1.0 / UNIT,
        pass_seconds=0.05 * UNIT,
        most=16,
        leaves=1,
        drawn=False,  # nothing is drawn in a probe
        guesses=(),
        streak=0,
        onward=0.75,
    )
    outlook.probes = True
    blend = Blend(DraftModel(cache, DRAFT.size), NgramIndex(), knowledge, greedy=greedy_drafts)
    cache.extend(TEXT[:READ])
    blend.propose(session, Plan(NAME, 8, outlook=outlook), TokenTree())
    return outlook.prospects


@pytest.mark.parametrize(
    ("kind", "greedy_drafts"),
    [("model", False), ("model, sampled", False), ("model, chosen", True)],
)
def test_prospects_are_those_of_the_drafts_that_would_be_made(
    kind: str, greedy_drafts: bool
) -> None:
    prospects = probed(kind, greedy_drafts=greedy_drafts, cache=ToyCache(DRAFT))
    assert len(prospects) == PROBED
    assert min(prospects) > 0.5


@pytest.mark.parametrize("recurrent", [False, True], ids=["attention", "recurrent"])
def test_a_probe_leaves_the_draft_model_where_it_was(recurrent: bool) -> None:
    cache = ToyCache(DRAFT, recurrent=recurrent)
    probed("model, sampled", greedy_drafts=False, cache=cache)
    assert cache.tokens == TEXT[:READ]

"""Before a draft model is asked: how sure the target is, and what asking may gain."""

from __future__ import annotations

import numpy as np
import pytest

from localspec.decoding.acceptance import UNDECIDED, GreedyMatch, Verification
from localspec.decoding.driver import drive
from localspec.decoding.interfaces import Limits, Step
from localspec.decoding.loop import speculate
from localspec.decoding.sampling import Rows
from localspec.decoding.tree import ROOT, TokenTree
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.model import DraftModelSource
from localspec.drafters.ngram import NgramIndex, NgramSource
from localspec.policy.adaptive import AdaptivePlanner
from localspec.policy.answer_state import LookupValue, ModelState
from localspec.policy.asking import BEFORE, Decisiveness, Prospects
from localspec.policy.draft_tree import DraftTreeBuilder
from localspec.policy.worth import DraftValue
from localspec.policy.plan import AUTO, AdaptivePlan
from tests.policy.measuring import MODEL, SHAPES, Clockless, profile_of
from tests.support.toys import GREEDY, Follows, ToyCache, ToyTarget, session_of, started


def test_rows_with_a_second_token_near_the_best_are_counted() -> None:
    rows: Rows = np.zeros((3, 5), np.float32)
    rows[:, 0] = 10.0
    rows[0, 1] = 10.0 - 0.9 * UNDECIDED
    rows[1, 1] = 10.0 - 1.1 * UNDECIDED
    rows[2, 2:4] = 10.0  # three at once are one place
    tree = TokenTree()
    node = tree.add(0, tree.add(0, ROOT, "toy"), "toy")
    target = Verification(rows, tree, session_of([1], size=5, params=GREEDY))
    assert [target.undecided([n]) for n in (ROOT, 0, node)] == [1, 0, 1]
    assert target.undecided([ROOT, 0, node]) == 2


def test_latest_tokens_weigh_most_however_many_come_in_a_step() -> None:
    one, many = Decisiveness(), Decisiveness()
    for _ in range(6):
        one.observe(1, 1)
    many.observe(6, 6)
    assert many.undecided == pytest.approx(one.undecided)
    assert one.undecided == pytest.approx(1.0 - (1.0 - Decisiveness.USUAL) * Decisiveness.KEEP**6)
    before = one.undecided
    one.observe(0, 0)
    assert one.undecided == before
    one.observe(100, 0)
    assert one.undecided < 0.01
    assert one.features[0] == 1.0


def prospects(shape: str, price: float) -> Prospects:
    profile = profile_of(SHAPES[shape], (price,))
    costs = profile.verification_costs(0, 7)
    rate = 1.0 / costs.least[1]
    value = DraftValue(AdaptivePlan(AUTO, 7, costs=costs, rate=rate))
    return Prospects(value, rate * profile.source(MODEL).costs.seconds(1, 0))


@pytest.mark.parametrize("shape", SHAPES)
def test_surer_tokens_promise_more_and_dearer_passes_less(shape: str) -> None:
    cheap, dear = prospects(shape, 0.05), prospects(shape, 0.4)
    chances = np.linspace(0.02, 0.99, 30).tolist()
    gains = [cheap.gain(chance) for chance in chances]
    assert gains == sorted(gains)
    assert all(dear.gain(c) <= gain + 1e-9 for c, gain in zip(chances, gains, strict=True))
    assert gains[0] < 0.3
    assert (gains[-1] > 0.5) is (shape != "ruinous")


def told_by_the_target(words: int, stretch: int) -> list[Step]:
    """A text that is sure for a stretch of tokens and undecided for the next, and a draft model
    that is right where the target is sure, and only there. It is as confident everywhere."""
    sure = [token // stretch % 2 == 0 for token in range(words)]

    class Target(Follows):
        def logits(self, contexts: object) -> Rows:
            rows = super().logits(contexts).copy()  # type: ignore[arg-type]
            for row, context in zip(rows, contexts, strict=True):  # type: ignore[call-overload]
                if not sure[context[-1]]:
                    row[(context[-1] + 2) % words] = row.max() - 0.1
            return rows

    says = {token: (token + 1, 0.99) for token in range(words - 1)}
    drafts = says | {token: (0, 0.99) for token in range(words) if not sure[token]}
    draft = [0.3 * (0.95 + 0.05 * n) for n in range(1, 65)]
    profile = profile_of((1.0, 1.7, 2.4, 1.9, 2.7, 3.4, 3.5, 3.6), draft)
    lookups = [NgramSource(NgramIndex())]
    cache = ToyCache(Follows(drafts, words), capacity=2 * words)
    models = [DraftModelSource(DraftModel(cache, words))]
    limits = Limits(2 * words, 7, 8)
    planner = AdaptivePlanner(profile, lookups, models, limits, greedy=True, trees=True, drawn=True)
    builder = DraftTreeBuilder(lookups, models, profile)
    session = session_of([0], size=words, params=GREEDY, count=words - 2)
    builder.begin(session.context)
    target = ToyTarget(Target(says, words), capacity=2 * words, max_leaves=8)
    planner_of_curves = Clockless(planner, profile)
    requests = speculate(session, builder, planner_of_curves, GreedyMatch())
    steps = list(drive(session, requests, target))
    assert profile.source(models[0]).estimators[BEFORE + "greedy"].seen > 10
    return steps


def test_draft_model_is_asked_where_the_target_is_sure() -> None:
    """Its confidence says nothing here, and a pass of it costs 0.3 of the target's. What is asked
    in vain at the end of a sure stretch makes it doubted in the next ones, too."""
    stretch = 40
    steps = told_by_the_target(800, stretch)
    late = [step for step in steps if step.context_length > 240]
    settled = [step for step in late if step.context_length % stretch >= 12]
    by: dict[bool, list[bool]] = {True: [], False: []}
    for step in settled:
        asks = isinstance(step.plan, AdaptivePlan) and step.plan.asks is not None
        by[step.context_length // stretch % 2 == 0].append(asks)
    assert np.mean(by[True]) > 0.15
    assert np.mean(by[False]) < 0.03


def test_undecided_tokens_are_counted_for_a_planner_that_watches() -> None:
    steps = told_by_the_target(200, 40)
    first = [step for step in steps if 2 <= step.context_length < 36]
    second = [step for step in steps if 44 <= step.context_length < 76]
    assert sum(step.undecided for step in first) == 0
    assert sum(step.undecided for step in second) == sum(len(step.tokens) for step in second)


def advantage(again: float, undecided: float, before: float, *, price: float = 0.2) -> float:
    """Of asking, in tokens, at a place so undecided, behind thirty that were like `before`; a pass
    of the draft model costs `price`, each token more that it reads `again`."""
    profile = profile_of(SHAPES["tiles"], [price + n * again for n in range(4)])
    costs, session = profile.verification_costs(0, 7), session_of([0, 1], size=4, params=GREEDY)
    rate, looked_up = 1.0 / costs.least[1], LookupValue(0, 0.0, 0.0, 0.0)
    model = DraftModel(ToyCache(started([1, 1, 1])), 4)
    model.begin(session.context)
    state = ModelState(DraftModelSource(model), profile)
    found = 0.0
    for place in [before] * 30 + [undecided]:
        features = (1.0, place)
        state.begin(session, features, lambda: DraftValue(AdaptivePlan(AUTO, 7, costs=costs)), rate)
        found = state.advantage(session, looked_up, rate)
    return found


def test_what_would_have_to_be_read_later_is_no_cost_of_asking_now() -> None:
    """Where it is asked again and again, a token that it does not read now is read beside the next
    one: a place where it is likely to be wrong costs less to be asked at than a pass."""
    chance = profile_of(SHAPES["tiles"]).source(MODEL).estimators[BEFORE + "greedy"].predict
    free, dear = (advantage(again, 0.9, 0.0) for again in (0.0, 0.2))
    assert dear - free == pytest.approx(0.2 * (1.0 - chance((1.0, 0.9))), rel=0.05)


def test_reading_that_never_pays_is_no_reason_to_ask() -> None:
    free, dear = (advantage(again, 0.95, 0.95, price=1.5) for again in (0.0, 1.5))
    assert dear <= free < 0.0

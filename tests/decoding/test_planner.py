"""Planners: what they decide, when they give a drafter a rest, and when they try it again."""

from __future__ import annotations

from localspec.decoding.planner import Fixed, Never, Plan, Simple
from localspec.decoding.session import Session
from localspec.decoding.tree import TokenTree
from tests.decoding.steps import step_of
from tests.support.toys import session_of

COPY = Plan("ngram", depth=8)
MODEL = Plan("model", depth=3, min_confidence=0.2)
LONG, SHORT = Simple.LONG_MATCH, Simple.LONG_MATCH - 1


def session() -> Session:
    return session_of([1])


class Repeats:
    """Stands for the n-gram index: how much of the text's end occurred before."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __call__(self, session: Session) -> int:
        return self.length


def simple(length: int, *, model: bool = True) -> tuple[Simple, Repeats]:
    repeats = Repeats(length)
    return Simple(repeats, copy=COPY, model=MODEL if model else None), repeats


def tell(planner: Simple, plan: Plan, *, tested: int, accepted: int) -> None:
    tree = TokenTree.chain([0] * 8, plan.drafter or "")
    planner.observe(step_of(plan, tree, path=range(accepted), tests=range(tested)))


def wear_out(planner: Simple) -> Plan:
    """Reject drafts until the planner's choice changes; the choice that was given up."""
    plan = planner.plan(session())
    for _ in range(100):
        tell(planner, plan, tested=1, accepted=0)
        if planner.plan(session()).drafter != plan.drafter:
            return plan
    raise AssertionError("it never rests")


def steps_until(planner: Simple, drafter: str) -> int:
    """Plain steps before the planner asks that drafter again."""
    for steps in range(1000):
        plan = planner.plan(session())
        if plan.drafter == drafter:
            return steps
        planner.observe(step_of(Plan(None, reason=plan.reason)))
    raise AssertionError("it never comes back")


def test_never_drafts_nothing_and_says_why() -> None:
    planner = Never("drafting is turned off")
    assert planner.plan(session()) == Plan(None, reason="drafting is turned off")
    planner.observe(step_of(Plan(None)))
    assert planner.plan(session()).reason == "drafting is turned off"


def test_fixed_keeps_to_its_plan_whatever_comes() -> None:
    planner = Fixed(COPY)
    for _ in range(50):
        planner.observe(step_of(COPY, TokenTree.chain([0], "ngram"), tests=[0]))
        assert planner.plan(session()) is COPY


def test_repeating_text_is_copied_and_other_text_is_left_to_the_model() -> None:
    planner, repeats = simple(LONG)
    plan = planner.plan(session())
    assert (plan.drafter, plan.depth, plan.reason) == ("ngram", 8, "the text repeats itself")
    repeats.length = SHORT
    plan = planner.plan(session())
    assert (plan.drafter, plan.depth, plan.reason) == ("model", 3, "the draft model leads")
    assert plan.min_confidence == MODEL.min_confidence


def test_without_a_model_text_that_does_not_repeat_is_not_drafted() -> None:
    planner, repeats = simple(SHORT, model=False)
    plan = planner.plan(session())
    assert plan.drafter is None
    assert plan.reason == "the text does not repeat itself, and there is no draft model"
    repeats.length = LONG
    assert planner.plan(session()).drafter == "ngram"


def test_drafter_that_is_always_accepted_never_rests() -> None:
    planner, _ = simple(SHORT)
    for _ in range(200):
        plan = planner.plan(session())
        assert plan.drafter == "model"
        tell(planner, plan, tested=3, accepted=3)


def test_drafter_that_is_always_rejected_rests_and_comes_back() -> None:
    planner, _ = simple(SHORT)
    wear_out(planner)
    plan = planner.plan(session())
    assert (plan.drafter, plan.reason) == (None, "recent drafts were rejected; drafting rests")
    assert steps_until(planner, "model") == Simple.SHORT_REST


def test_few_rejections_are_not_enough() -> None:
    planner, _ = simple(SHORT)
    tell(planner, MODEL, tested=3, accepted=0)
    tell(planner, MODEL, tested=3, accepted=0)
    assert planner.plan(session()).drafter == "model"


def test_rests_grow_longer_up_to_a_bound() -> None:
    planner, _ = simple(SHORT)
    rests = []
    for _ in range(5):
        wear_out(planner)
        rests.append(steps_until(planner, "model"))
    assert rests == [8, 16, 32, 64, 64]


def test_success_makes_rests_short_again() -> None:
    planner, _ = simple(SHORT)
    for _ in range(3):
        wear_out(planner)
        steps_until(planner, "model")
    for _ in range(30):
        tell(planner, MODEL, tested=3, accepted=3)
    wear_out(planner)
    assert steps_until(planner, "model") == Simple.SHORT_REST


def test_while_the_ngram_rests_the_model_leads_and_the_other_way_round() -> None:
    planner, repeats = simple(LONG)
    assert wear_out(planner).drafter == "ngram"
    assert planner.plan(session()).drafter == "model"
    assert steps_until(planner, "model") == 0
    repeats.length = SHORT
    planner, repeats = simple(SHORT)
    assert wear_out(planner).drafter == "model"
    repeats.length = LONG
    assert planner.plan(session()).drafter == "ngram"


def test_resting_ngram_without_a_model_says_so() -> None:
    planner, repeats = simple(LONG, model=False)
    wear_out(planner)
    assert planner.plan(session()).reason == "recent drafts were rejected; drafting rests"
    repeats.length = SHORT
    assert "does not repeat itself" in planner.plan(session()).reason


def test_steps_of_unknown_drafters_and_untested_drafts_teach_nothing() -> None:
    planner, _ = simple(SHORT)
    for _ in range(100):
        tell(planner, Plan("other"), tested=3, accepted=0)
        tell(planner, MODEL, tested=0, accepted=0)
    assert planner.plan(session()).drafter == "model"

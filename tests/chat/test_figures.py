"""Figures of an answer, computed from synthetic steps."""

import json
from collections.abc import Sequence
from dataclasses import fields
from unittest.mock import Mock

import pytest

from localspec.chat import words
from localspec.chat.figures import BUCKET, OFF_AFTER, RECENT, Figures, Meter
from localspec.decoding.interfaces import PROMPT, Plan, Step
from localspec.decoding.stats import AccountStatement, GenerationStats
from localspec.decoding.tree import TokenTree
from localspec.policy.reasons import CONFIRMING, RESTING
from tests.decoding.exact import step_of


def first() -> Step:
    """The prompt's pass: 0.5 s, one token."""
    return step_of(PROMPT, seconds=(0.5, 0.4, 0.0), context_length=10)


def plain(
    *, seconds: float = 0.1, draft_seconds: float = 0.0, reason: str = "it never pays"
) -> Step:
    return step_of(Plan(None, reason=reason), seconds=(seconds, seconds, draft_seconds))


def drafted(tokens: Sequence[int], accepted: int, *, by: str = "ngram") -> Step:
    """A chain with `accepted` tokens accepted, and the next one (if any) rejected."""
    tests = range(min(accepted + 1, len(tokens)))
    plan, tree = Plan(by, depth=len(tokens)), TokenTree.chain(tokens, by)
    return step_of(plan, tree, path=range(accepted), tests=tests, seconds=(0.2, 0.15, 0.03))


def engine_of(cost: float | None) -> Mock:
    """An engine with this time of a plain pass, and no measured stock llama.cpp."""
    known = {"profile.stock": None, "plain_seconds.return_value": cost}
    return Mock(context_length=512, **known)


def figures_of(steps: Sequence[Step], *, cost: float | None = 0.1) -> Figures:
    stats = GenerationStats(prompt_tokens=10, cached_tokens=4)
    meter = Meter(stats, engine_of(cost))
    for step in steps:
        stats.add(step)
        meter.add(step)
    return meter.figures()


def test_prompt_pass_is_not_decoding() -> None:
    told = figures_of([first()])
    assert (told.prompt_seconds, told.decode_seconds, told.plain_seconds) == (0.5, 0.0, None)
    assert told.context_used == 11


def test_speed_up_is_plain_cost_divided_by_time() -> None:
    # 3 tokens in 0.2 s that cost 0.1 s each plainly.
    figures = figures_of([first(), drafted([1, 2, 3], 2)])
    assert (figures.tokens, figures.tokens_per_pass) == (4, 2.0)
    told = (figures.plain_seconds, figures.speed_up, figures.saved_seconds, figures.speed)
    assert told == pytest.approx((0.3, 1.5, 0.1, 15.0))
    lost = figures_of([first(), plain(seconds=0.3, draft_seconds=0.1)])
    assert (lost.plain_seconds, lost.speed_up) == pytest.approx((0.2, 2 / 3)), "by rejected drafts"


def test_loss_limit_of_the_pair() -> None:
    stats = GenerationStats()
    meter = Meter(stats, engine_of(0.1))
    assert meter.figures().may_risk is None
    stats.account = AccountStatement(saved=0.2, fund=0.35, pair_saved=12.3)
    assert meter.figures().may_risk == 0.35
    stats.account.fund = -0.1
    assert meter.figures().may_risk == 0.0, "overdrawn"


def test_no_speed_up_without_a_measured_cost() -> None:
    figures = figures_of([first(), drafted([1, 2], 2), plain()], cost=None)
    assert (figures.plain_seconds, figures.speed_up) == (None, None)


def test_acceptance_by_drafter_and_position() -> None:
    figures = figures_of([first(), drafted([1, 2, 3], 1), drafted([4, 5], 2, by="model")])
    # Behind the first rejected token nothing is tested.
    assert (figures.drafted, figures.tested, figures.accepted) == (5, 4, 3)
    assert figures.by_drafter == {"ngram": (1, 2), "model": (2, 2)}
    assert figures.by_position == ((2, 2), (1, 2))
    assert Figures.from_dict(json.loads(json.dumps(figures.as_dict()))) == figures, "as stored"


def test_current_speed_covers_recent_steps() -> None:
    slow = [plain(seconds=1.0)] * 3
    fast = [plain(seconds=0.01)] * (round(RECENT * BUCKET / 0.01) + 2)
    figures = figures_of([first(), *slow, *fast])
    assert figures.speed_now == pytest.approx(100, rel=0.05)
    assert figures.speed < 40


def test_drafting_counts_as_off_after_some_steps() -> None:
    steps = [plain(reason="no use")] * OFF_AFTER
    assert figures_of([first(), *steps[1:]]).off is None
    passing = [plain(reason=CONFIRMING), plain(reason=RESTING)]
    assert figures_of([first(), *steps, *passing]).off == "no use"
    assert figures_of([first(), *steps, drafted([1], 1)]).off is None
    assert figures_of([first(), *steps]).reasons == {"no use": OFF_AFTER}


@pytest.mark.parametrize(
    "stored",
    [
        *(None, {}, {"by_position": 3}, {"by_position": [[1]]}, {"by_drafter": [1, 2]}),
        *({"by_drafter": {"ngram": "many"}}, {"speeds": None}, {"from a later version": 1}),
    ],
)
def test_invalid_records_give_defaults(stored: dict[str, object] | None) -> None:
    assert Figures.from_dict(stored) == Figures()


@pytest.mark.parametrize("odd", ["x1", [[1]], 1e300, float("inf"), None, 3, {"a": "b"}])
@pytest.mark.parametrize("name", [field.name for field in fields(Figures)])
def test_odd_values_are_put_into_words(name: str, odd: object) -> None:
    base = {"tokens": 9, "passes": 5, "decode_seconds": 1.0, "tested": 3, "reasons": {"why": 2}}
    figures = Figures.from_dict(base | {name: odd})
    assert words.explain(figures)
    assert words.balance(figures, [figures])
    assert words.line(figures, in_full=True) or not figures.tokens

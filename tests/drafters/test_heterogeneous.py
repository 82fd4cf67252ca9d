"""Which way the words of a draft model with another vocabulary are taken."""

from __future__ import annotations

import pytest

from localspec.decoding.interfaces import Plan
from localspec.decoding.loop import speculate
from localspec.decoding.rules import acceptance_rule
from localspec.drafters.heterogeneous import HeterogeneousDraftModel
from localspec.drafters.model import DraftModelSource
from localspec.planning.planner import Fixed
from tests.support.tongues import TONGUES, crossed
from tests.support.toys import GREEDY, START, ToyCache, ToyModel, ToyTarget, session_of, started

LETTERS = TONGUES["finer"]
ALTERNATES = ToyModel([[0, 1, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0]])
"""A draft model that says "ba", again and again."""


def speaker(way: str = "auto", spelled: str = "finer") -> HeterogeneousDraftModel:
    return crossed(ToyCache(ALTERNATES), TONGUES[spelled], way=way)


def answer(model: HeterogeneousDraftModel, target: ToyModel, count: int = 40) -> None:
    session = session_of([START, 0, 1], params=GREEDY, count=count)
    drafter = DraftModelSource(model)
    model.draws(greedy=True)
    drafter.begin(session.context)
    planner, rule = Fixed(Plan("model", 3)), acceptance_rule("auto", greedy=True)
    for _ in speculate(session, ToyTarget(target), {"model": drafter}, planner, rule):
        pass


def test_shared_tokens_serve_where_the_draft_model_has_nearly_all() -> None:
    model = speaker(spelled="other ids")
    assert model.draws(greedy=False)
    assert model.suffix == ":shared"
    assert model.summary == (
        "different vocabulary: 100 % of tokens shared, drafting on the shared ones"
    )


def test_text_serves_where_it_lacks_many() -> None:
    """The sample is "abab", and it has no "ab"."""
    model = speaker()
    assert not model.draws(greedy=True)
    assert model.translated.chosen
    assert model.suffix == ":text"
    assert model.summary == "different vocabulary: 75 % of tokens shared, drafting through text"


def test_user_has_the_last_word() -> None:
    assert speaker("shared").suffix == ":shared"
    assert speaker("text", "other ids").suffix == ":text"


def test_written_tokens_are_chosen_only_where_much_is_lacking() -> None:
    model = speaker("text", "other ids")
    assert model.draws(greedy=False)
    assert not model.translated.chosen
    model = speaker("text")
    assert not model.draws(greedy=False)
    assert model.translated.chosen


def test_way_follows_what_came_true() -> None:
    says_ab, says_a_b = started([0, 0, 1]), started([[0, 1, 0], [1, 0, 0], [0, 1, 0]])
    model = speaker()
    for _ in range(6):
        answer(model, says_ab)
    assert model.suffix == ":text", "every token was one that it put together"
    model = speaker()
    model._lacks = 0.1  # as if the sample had said so: then the prompts do not
    for _ in range(12):
        answer(model, says_a_b)
        model._lacks = 0.1
    model.draws(greedy=True)
    assert model.suffix == ":shared", "what it put together was never right"


def test_only_what_came_is_compared() -> None:
    """Not what was imagined, nor what was said behind a token that did not come."""
    model = speaker("text")
    cache = model.translated
    model.begin([START, 0, 1])
    cache.extend([1])
    assert cache.said == {3: (0, 2)}
    model.imagine([START, 0, 1, 2])
    assert (model._compared, model._won) == (0, 0)
    assert cache.said == {3: (0, 2)}
    cache.extend([2])
    assert set(cache.said) == {3, 4}
    model.sync([START, 0, 1, 0, 2])
    assert (model._compared, model._won) == (1, -1)
    assert cache.said == {}


def test_what_a_user_says_next_is_not_compared() -> None:
    model = speaker("text")
    model.begin([START, 0, 1])
    model.translated.extend([1])
    model.begin([START, 0, 1, 2, 2])
    assert (model._compared, model._won) == (0, 0)


@pytest.mark.parametrize("way", ["text", "shared"])
def test_sources_name_the_way(way: str) -> None:
    model = speaker(way)
    session = session_of([START, 0, 1], params=GREEDY)
    model.draws(greedy=True)
    drafter = DraftModelSource(model)
    drafter.begin(session.context)
    run = speculate(
        session,
        ToyTarget(started([0, 0, 1])),
        {"model": drafter},
        Fixed(Plan("model", 2)),
        acceptance_rule("auto", greedy=True),
    )
    next(run)
    assert set(next(run).tree.sources) == {f"model:{way}"}

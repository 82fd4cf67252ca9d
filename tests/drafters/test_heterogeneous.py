"""Which way the words of a draft model with another vocabulary are taken."""

from __future__ import annotations

from localspec.decoding.interfaces import Plan
from localspec.drafters.heterogeneous import HeterogeneousDraftModel
from tests.decoding.steps import run
from tests.support.tongues import TONGUES, heterogeneous
from tests.support.toys import GREEDY, START, ToyCache, ToyModel, ToyTarget, session_of, started

ALTERNATES = ToyModel([[0, 1, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0]])
"""A draft model that says "ba", again and again."""


def draft_model(
    way: str = "auto", spelled: str = "finer", *, capacity: int = 64
) -> HeterogeneousDraftModel:
    return heterogeneous(ToyCache(ALTERNATES, capacity=capacity), TONGUES[spelled], way=way)


def answer(model: HeterogeneousDraftModel, target: ToyModel, count: int = 40) -> None:
    session = session_of([START, 0, 1], params=GREEDY, count=count)
    source = model
    model.draws(greedy=True)
    source.begin(session.context)
    run(session, ToyTarget(target), source, Plan("model", 3))


def test_shared_tokens_serve_where_the_draft_model_has_nearly_all() -> None:
    model = draft_model(spelled="other ids")
    assert model.draws(greedy=False)
    assert model.credit == "model:shared"
    assert model.summary == (
        "different vocabulary: 100 % of tokens shared, drafting on the shared ones"
    )


def test_text_serves_where_it_lacks_many() -> None:
    """The sample is "abab", and it has no "ab"."""
    model = draft_model()
    assert not model.draws(greedy=True)
    assert model.mapped.chosen
    assert model.credit == "model:text"
    assert model.summary == "different vocabulary: 75 % of tokens shared, drafting through text"


def test_user_has_the_last_word() -> None:
    assert draft_model("shared").credit == "model:shared"
    assert draft_model("text", "other ids").credit == "model:text"


def test_written_tokens_are_chosen_only_where_much_is_lacking() -> None:
    model = draft_model("text", "other ids")
    assert model.draws(greedy=False)
    assert not model.mapped.chosen
    model = draft_model("text")
    assert not model.draws(greedy=False)
    assert model.mapped.chosen


def test_way_follows_what_came_true() -> None:
    says_ab, says_a_b = started([0, 0, 1]), started([[0, 1, 0], [1, 0, 0], [0, 1, 0]])
    model = draft_model()
    for _ in range(6):
        answer(model, says_ab)
    assert model.credit == "model:text", "every token was one that it put together"
    model = draft_model()
    model._lacks = 0.1  # as if the sample had said so: then the prompts do not
    for _ in range(12):
        answer(model, says_a_b)
        model._lacks = 0.1
    model.draws(greedy=True)
    assert model.credit == "model:shared", "what it put together was never right"

"""Lossless under every setting of the sampler, under a grammar, at temperature 0, at any length.

The reference is the same loop without a draft, or the greedy text worked out by hand.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.decoding.acceptance import AcceptanceRule, BlockVerification, GreedyMatch
from localspec.decoding.interfaces import Plan
from localspec.decoding.rules import BestLossless
from localspec.decoding.sampling import SamplingParams
from localspec.decoding.session import Session
from localspec.decoding.sources import Source
from localspec.decoding.tree import TokenTree
from tests.decoding.exact import DRAFTERS, EXACT, drafted, gap, model_drafter, texts, undrafted
from tests.support.toys import (
    AS_IS,
    GREEDY,
    SIZE,
    START,
    Forbids,
    ToyModel,
    ToySource,
    a_case,
    drawn_chain,
    examples,
    models,
)

tokens = st.integers(0, SIZE - 1)
prompts = st.lists(tokens, min_size=2, max_size=8).map(lambda text: [*text, START])
positive = models(least=1)
"""Models that say everything sometimes: no ban and no grammar leaves them speechless."""

for_drafters = pytest.mark.parametrize("make", DRAFTERS.values(), ids=DRAFTERS.keys())

SETTINGS = {
    "temperature": replace(AS_IS, temperature=0.7),
    "top-k": replace(AS_IS, top_k=2),
    "top-p": replace(AS_IS, top_p=0.8),
    "min-p": replace(AS_IS, min_p=0.4),
    "repeat penalty": replace(AS_IS, repeat_penalty=1.5),
    "frequency and presence": replace(AS_IS, frequency_penalty=0.4, presence_penalty=-0.3),
    "penalties on the last two": replace(AS_IS, frequency_penalty=0.7, penalty_last_n=2),
    "bias": replace(AS_IS, logit_bias={1: 0.7}),
    "ban": replace(AS_IS, logit_bias={0: 0.3, 2: -math.inf}),
    "all of them": SamplingParams(
        temperature=0.6,
        top_k=2,
        top_p=0.9,
        min_p=0.1,
        repeat_penalty=1.2,
        presence_penalty=0.2,
        logit_bias={2: 1.0},
    ),
}


@pytest.mark.parametrize("params", SETTINGS.values(), ids=SETTINGS.keys())
@for_drafters
def test_every_drafter_is_lossless_under_every_setting(
    params: SamplingParams, make: Callable[[ToyModel], Source], request: pytest.FixtureRequest
) -> None:
    model, draft, prompt = a_case(request.node.name, least=1)
    options: dict[str, Any] = {"prompt": prompt, "params": params}
    found = drafted(model, lambda: make(draft), Plan(None, depth=2), BestLossless(), **options)
    assert gap(found, undrafted(model, **options)) < EXACT


@pytest.mark.parametrize("name", ["temperature", "top-p", "frequency and presence", "all of them"])
@examples(3)
@given(model=models(), draft=models())
def test_trees_are_lossless_under_settings(name: str, model: ToyModel, draft: ToyModel) -> None:
    params, plan = SETTINGS[name], Plan(None, depth=2, width=2)
    found = drafted(model, lambda: model_drafter(draft), plan, BestLossless(), params=params)
    assert gap(found, undrafted(model, params=params)) < EXACT


@examples(5)
@given(model=positive, draft=positive, banned=st.integers(1, SIZE - 1))
def test_banned_token_is_never_said(model: ToyModel, draft: ToyModel, banned: int) -> None:
    params = replace(AS_IS, logit_bias={banned: -math.inf})
    plan = Plan(None, depth=2)
    found = drafted(model, lambda: drawn_chain(draft), plan, BestLossless(), params=params)
    assert all(banned not in text for text in found)


GRAMMARS = {
    "loose": {(0, 0), (1, 2)},
    "strict": {(0, 1), (1, 1), (2, 1), (2, 0)},
    "one way": {(0, 0), (0, 1), (1, 1), (1, 2), (2, 2), (2, 0)},
}


@pytest.mark.parametrize("pairs", GRAMMARS.values(), ids=GRAMMARS.keys())
@for_drafters
@pytest.mark.parametrize("width", [1, 2])
def test_every_drafter_is_lossless_under_a_grammar(
    pairs: set[tuple[int, int]],
    make: Callable[[ToyModel], Source],
    width: int,
    request: pytest.FixtureRequest,
) -> None:
    model, draft, prompt = a_case(request.node.name, least=1)
    options: dict[str, Any] = {"prompt": prompt, "constraint": Forbids(pairs, START)}
    plan = Plan(None, depth=2, width=width)
    found = drafted(model, lambda: make(draft), plan, BestLossless(), **options)
    assert gap(found, undrafted(model, **options)) < EXACT
    neighbours = {pair for text in found for pair in itertools.pairwise(text)}
    assert not neighbours & pairs


def greedy_text(model: ToyModel, prompt: list[int], count: int) -> tuple[int, ...]:
    """By hand; of tokens that tie, the first."""
    context = list(prompt)
    for _ in range(count):
        row = model.logits([context])[0].tolist()
        context.append(row.index(max(row)))
    return tuple(context[len(prompt) :])


@for_drafters
@pytest.mark.parametrize("width", [1, 3])
@examples(10)
@given(model=models(), draft=models(), prompt=prompts)
def test_greedy_text_is_the_same_with_every_drafter(
    make: Callable[[ToyModel], Source],
    width: int,
    model: ToyModel,
    draft: ToyModel,
    prompt: list[int],
) -> None:
    plan = Plan(None, depth=3, width=width)
    options: dict[str, Any] = {"prompt": prompt, "count": 12, "params": GREEDY}
    found = drafted(model, lambda: make(draft), plan, GreedyMatch(), **options)
    assert found == {greedy_text(model, prompt, 12): 1.0}


@for_drafters
@pytest.mark.parametrize(
    "params",
    [
        replace(GREEDY, repeat_penalty=1.4, presence_penalty=0.2),
        replace(GREEDY, logit_bias={0: -0.4, 1: 0.4}),
        replace(AS_IS, top_k=1),
    ],
    ids=["penalties", "bias", "top-k 1"],
)
@pytest.mark.parametrize(
    "constraint", [None, Forbids({(0, 0), (1, 2)}, START)], ids=["", "grammar"]
)
@examples(4)
@given(model=positive, draft=positive, prompt=prompts)
def test_greedy_text_under_settings_is_the_same_with_every_drafter(
    make: Callable[[ToyModel], Source],
    params: SamplingParams,
    constraint: Forbids | None,
    model: ToyModel,
    draft: ToyModel,
    prompt: list[int],
) -> None:
    options: dict[str, Any] = {
        "prompt": prompt,
        "count": 8,
        "params": params,
        "constraint": constraint,
    }
    found = drafted(model, lambda: make(draft), Plan(None, depth=3), GreedyMatch(), **options)
    assert found == undrafted(model, **options)
    assert len(found) == 1


for_rules = pytest.mark.parametrize(
    "rule", [BestLossless(), BlockVerification()], ids=lambda rule: rule.name
)


@for_drafters
@for_rules
@examples(3)
@given(model=models(), draft=models(), prompt=prompts)
def test_text_ends_at_an_end_token_inside_a_draft(
    make: Callable[[ToyModel], Source],
    rule: AcceptanceRule,
    model: ToyModel,
    draft: ToyModel,
    prompt: list[int],
) -> None:
    def ends(token: int) -> bool:
        return token == 2

    found = drafted(model, lambda: make(draft), Plan(None, depth=2), rule, prompt=prompt, ends=ends)
    assert gap(found, texts(model, prompt, ends=ends)) < EXACT
    assert all(2 not in text[:-1] for text in found)


@for_rules
@pytest.mark.parametrize("count", [2, 3, 4])
@examples(4)
@given(model=models(), draft=models())
def test_text_ends_at_the_limit_inside_a_draft_that_is_longer_than_planned(
    rule: AcceptanceRule, count: int, model: ToyModel, draft: ToyModel
) -> None:
    """A plan goes no deeper than the room that is left; here the source does not care."""

    def overshoot(session: Session, plan: Plan, tree: TokenTree) -> None:
        drawn_chain(draft).propose(session, plan._replace(depth=3), tree)

    found = drafted(model, lambda: ToySource(overshoot), Plan(None, depth=1), rule, count=count)
    assert gap(found, texts(model, count=count)) < EXACT

"""Rule `match`: the text is a function of logits and seed, whatever is drafted, and however the
answer is cut into steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.decoding.acceptance import AcceptanceRule, SampleMatch
from localspec.decoding.interfaces import Drafter, Plan
from localspec.decoding.random_source import SeededRandom
from localspec.decoding.rules import acceptance_rule
from localspec.decoding.session import Session
from localspec.decoding.sources import Source
from localspec.decoding.tree import ROOT, TokenTree
from tests.decoding.exact import DRAFTERS, LIVELY, REPEATS, Text, generate
from tests.policy.builders import Pair, run
from tests.policy.measuring import SHAPES
from tests.support.drafting import ToyDrafter
from tests.support.toys import (
    AS_IS,
    SIZE,
    START,
    Forbids,
    ToyModel,
    ToySource,
    ToyTarget,
    examples,
    models,
)

COUNT = 12
SETTINGS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "top-k": {"params": replace(AS_IS, temperature=0.7, top_k=2)},
    "penalties": {"params": replace(AS_IS, temperature=1.3, top_p=0.8, repeat_penalty=1.3)},
    "grammar": {"constraint": Forbids({(0, 1), (1, 2)}, START)},
}

UNDRAFTED = Plan(None)

seeds = st.integers(0, 2**64)


def said(
    model: ToyModel,
    seed: int,
    source: Source | None = None,
    plan: Plan = UNDRAFTED,
    *,
    rule: AcceptanceRule | None = None,
    prompt: Sequence[int] = REPEATS,
    count: int = COUNT,
    **options: Any,
) -> Text:
    """What one seed makes of a prompt; plainly without a source. `options`: of `generate`."""
    rule, target = rule or SampleMatch(), ToyTarget(model)
    drafter = Drafter()
    if source is not None:
        plan = plan._replace(drafter=source.name)
        drafter = ToyDrafter(source, plan, target.limits, trees=rule.trees)
    return generate(
        SeededRandom(seed),
        model,
        drafter,
        rule,
        prompt=prompt,
        count=count,
        target=target,
        **options,
    )


def test_plain_decoding_draws_each_token_at_its_position() -> None:
    text = list(REPEATS)
    random = SeededRandom(11)
    for _ in range(COUNT):
        text.append(random.draw(LIVELY.distribution(text), len(text)))
    assert tuple(text[len(REPEATS) :]) == said(LIVELY, 11)
    assert len(set(text[len(REPEATS) :])) == SIZE


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", DRAFTERS)
@examples(15)
@given(data=st.data(), depth=st.integers(1, 6), width=st.integers(1, 3), seed=seeds)
def test_text_is_plain_decodings_whatever_drafts(
    setting: str, name: str, data: st.DataObject, depth: int, width: int, seed: int
) -> None:
    # No grammar leaves models speechless that say everything sometimes.
    model, draft = (data.draw(models(least=int(setting == "grammar"))) for _ in range(2))
    plan = Plan(name, depth=depth, width=width)
    found = said(model, seed, DRAFTERS[name](draft), plan, **SETTINGS[setting])
    assert found == said(model, seed, **SETTINGS[setting])


@examples(60)
@given(data=st.data(), model=models(), seed=seeds)
def test_text_is_plain_decodings_behind_any_tree(
    data: st.DataObject, model: ToyModel, seed: int
) -> None:
    """Of tokens that nothing speaks for, a different one in each step."""

    def grow(session: Session, plan: Plan, tree: TokenTree) -> None:
        for _ in range(data.draw(st.integers(0, 5))):
            node = data.draw(st.integers(ROOT, len(tree) - 1))
            taken = {tree.tokens[child] for child in tree.children(node)}
            depth = 0 if node == ROOT else tree.depths[node]
            left = [token for token in range(SIZE) if token not in taken]
            if left and depth < session.room - 1:
                tree.add(data.draw(st.sampled_from(left)), node, "toy")

    assert said(model, seed, ToySource(grow), Plan("toy", 5)) == said(model, seed)


@pytest.mark.parametrize("shape", SHAPES)
@examples(8)
@given(
    model=models(),
    draft=models(),
    sampled=st.booleans(),
    price=st.sampled_from([0.01, 0.1, 0.5]),
    seed=seeds,
)
def test_text_is_plain_decodings_with_auto(
    shape: str,
    model: ToyModel,
    draft: ToyModel,
    sampled: bool,
    price: float,
    seed: int,
) -> None:
    """Whatever passes cost."""
    pair = Pair(draft, shape=shape, price=price, sampled=sampled)
    random = SeededRandom(seed)
    text, _ = run(random, model, pair, SampleMatch(), prompt=REPEATS, count=COUNT)
    assert text == said(model, seed)


def test_auto_drafts_coupled_trees_and_they_are_right() -> None:
    accepted, trees = 0, list[TokenTree]()
    for seed in range(20):
        pair = Pair(LIVELY, shape="flat", price=0.01)
        _, seen = run(SeededRandom(seed), LIVELY, pair, SampleMatch(), prompt=REPEATS, count=COUNT)
        trees += seen
        accepted += COUNT - len(seen)
    drafted = [tree for tree in trees if "model" in tree.sources]
    assert any(not tree.is_chain() for tree in drafted)
    assert all(q is None for tree in drafted for q in tree.proposals)
    # Drafted by the target itself, whose every draw is known.
    assert accepted > 0.6 * COUNT * 20


@pytest.mark.parametrize("rule", ["match", "token", "block"])
@pytest.mark.parametrize("cut", [1, 4, 7])
def test_answer_that_is_taken_up_again_goes_on_as_it_would_have(rule: str, cut: int) -> None:
    """Without drafts by every rule: nothing is used up, and a place has its noise."""
    whole, chosen = said(LIVELY, 5), acceptance_rule(rule, greedy=False)
    rest = said(LIVELY, 5, rule=chosen, prompt=(*REPEATS, *whole[:cut]), count=COUNT - cut)
    assert rest == whole[cut:]

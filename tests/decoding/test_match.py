"""Rule `match`: texts depend only on logits and seed, not on drafts or steps."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.decoding.acceptance import AcceptanceRule, SampleMatch
from localspec.decoding.interfaces import Plan
from localspec.decoding.loop import Drafter
from localspec.decoding.random_source import SeededRandom
from localspec.decoding.rules import acceptance_rule
from localspec.decoding.session import Session
from localspec.decoding.sources import Source
from localspec.decoding.tree import ROOT, TokenTree
from tests.decoding.exact import DRAFTERS, LIVELY, REPEATS, Text, generate
from tests.policy.builders import Pair, run
from tests.policy.measuring import SHAPES
from tests.support import toys
from tests.support.drafting import ToyDrafter

COUNT = 12
SETTINGS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "top-k": {"params": replace(toys.AS_IS, temperature=0.7, top_k=2)},
    "penalties": {"params": replace(toys.AS_IS, temperature=1.3, top_p=0.8, repeat_penalty=1.3)},
    "grammar": {"constraint": toys.ForbiddenPairs({(0, 1), (1, 2)}, toys.START)},
}

UNDRAFTED = Plan(None)

seeds = st.integers(0, 2**64)


def text_of(
    model: toys.ToyModel,
    seed: int,
    source: Source | None = None,
    plan: Plan = UNDRAFTED,
    *,
    rule: AcceptanceRule | None = None,
    prompt: Sequence[int] = REPEATS,
    count: int = COUNT,
    **options: Any,
) -> Text:
    """The text of a seed; without a source, by plain decoding. `options`: of `generate`."""
    rule, target = rule or SampleMatch(), toys.ToyTarget(model)
    drafter = Drafter()
    if source is not None:
        plan = plan._replace(drafter=source.name)
        drafter = ToyDrafter(source, plan, target.limits, trees=rule.trees)
    options |= {"prompt": prompt, "count": count, "target": target}
    return generate(SeededRandom(seed), model, drafter, rule, **options)


def test_plain_decoding_draws_each_token_at_its_position() -> None:
    text = list(REPEATS)
    random = SeededRandom(11)
    for _ in range(COUNT):
        text.append(random.draw(LIVELY.distribution(text), len(text)))
    assert tuple(text[len(REPEATS) :]) == text_of(LIVELY, 11)
    assert len(set(text[len(REPEATS) :])) == toys.SIZE


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", DRAFTERS)
@toys.examples(15)
@given(data=st.data(), depth=st.integers(1, 6), width=st.integers(1, 3), seed=seeds)
def test_every_drafter_equals_plain_decoding(
    setting: str, name: str, data: st.DataObject, depth: int, width: int, seed: int
) -> None:
    # With `least`, a grammar always leaves a possible token.
    model, draft = (data.draw(toys.models(least=int(setting == "grammar"))) for _ in range(2))
    plan = Plan(name, depth=depth, width=width)
    found = text_of(model, seed, DRAFTERS[name](draft), plan, **SETTINGS[setting])
    assert found == text_of(model, seed, **SETTINGS[setting])


@toys.examples(60)
@given(data=st.data(), model=toys.models(), seed=seeds)
def test_any_tree_equals_plain_decoding(
    data: st.DataObject, model: toys.ToyModel, seed: int
) -> None:
    """Trees of arbitrary tokens, a different one in each step."""

    def grow(session: Session, plan: Plan, tree: TokenTree) -> None:
        for _ in range(data.draw(st.integers(0, 5))):
            node = data.draw(st.integers(ROOT, len(tree) - 1))
            taken = {tree.tokens[child] for child in tree.children(node)}
            depth = 0 if node == ROOT else tree.depths[node]
            left = [token for token in range(toys.SIZE) if token not in taken]
            if left and depth < session.room - 1:
                tree.add(data.draw(st.sampled_from(left)), node, "toy")

    assert text_of(model, seed, toys.ToySource(grow), Plan("toy", 5)) == text_of(model, seed)


@pytest.mark.parametrize("shape", SHAPES)
@toys.examples(8)
@given(
    model=toys.models(),
    draft=toys.models(),
    sampled=st.booleans(),
    price=st.sampled_from([0.01, 0.1, 0.5]),
    seed=seeds,
)
def test_auto_equals_plain_decoding(
    shape: str, model: toys.ToyModel, draft: toys.ToyModel, sampled: bool, price: float, seed: int
) -> None:
    pair = Pair(draft, shape=shape, price=price, sampled=sampled)
    random = SeededRandom(seed)
    text, _ = run(random, model, pair, SampleMatch(), prompt=REPEATS, count=COUNT)
    assert text == text_of(model, seed)


def test_auto_drafts_coupled_trees() -> None:
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
def test_resumed_answer_continues_with_the_same_text(rule: str, cut: int) -> None:
    """Without drafts, by every rule: random numbers depend on positions only."""
    whole, chosen = text_of(LIVELY, 5), acceptance_rule(rule, greedy=False)
    rest = text_of(LIVELY, 5, rule=chosen, prompt=(*REPEATS, *whole[:cut]), count=COUNT - cut)
    assert rest == whole[cut:]

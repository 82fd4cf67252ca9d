"""Losslessness with the policy, sampled and greedy.

As in `tests.decoding.test_lossless`, all outcomes of the real loop and policy are enumerated over
toy models. The policy learns while it runs, so each run has a new one.
"""

from collections.abc import Callable, Collection, Sequence
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest

from localspec.decoding.acceptance import (
    AcceptanceRule,
    BlockVerification,
    GreedyMatch,
    SpeculativeSampling,
)
from localspec.decoding.interfaces import Step
from localspec.decoding.loop import drive, speculate
from localspec.decoding.sampling import Constraint
from tests.decoding.exact import DRAFT, EXACT, MODEL, REPEATS, gap, texts, undrafted
from tests.policy.builders import Pair, distribution_of
from tests.policy.measuring import SHAPES
from tests.support import toys

FORBIDDEN = {(0, 0), (1, 2), (2, 0)}

PAIRS: dict[str, dict[str, Any]] = {
    **{shape: {"shape": shape} for shape in SHAPES},
    **{f"{shape}, expensive drafts": {"shape": shape, "price": 0.5} for shape in SHAPES},
    "recurrent draft model": {"shape": "tiles", "recurrent": True},
    **{f"{n} leaves": {"shape": "flat", "most_leaves": n} for n in (1, 2, 3)},
    **{f"draft model for {n} tokens": {"shape": "flat", "draft_capacity": n} for n in (4, 9, 33)},
    **{f"target for {n} drafts": {"shape": "tiles", "max_draft": n} for n in (1, 2, 5)},
}
"""`ToyTarget` and `ToyCache` take no more tokens, and no more branches, than they have room for."""

for_rules = pytest.mark.parametrize(
    "rule", [SpeculativeSampling(), BlockVerification()], ids=lambda rule: rule.name
)
for_drafts = pytest.mark.parametrize("sampled", [True, False], ids=["drawn", "chosen"])


@pytest.mark.parametrize("kind", PAIRS)
@for_rules
@for_drafts
def test_sampled_text_is_the_targets(
    kind: str, rule: AcceptanceRule, sampled: bool, request: pytest.FixtureRequest
) -> None:
    for number in range(2):
        model, draft, prompt = toys.random_case(f"{request.node.name} {number}")
        pair = Pair(draft, sampled=sampled, **PAIRS[kind])
        if "max_draft" in PAIRS[kind]:
            pair.capacity = len(prompt) + 4 + pair.max_draft % 2
        found = distribution_of(model, pair, rule, prompt=prompt)
        assert gap(found, texts(model, prompt)) < EXACT


@pytest.mark.nightly
@for_rules
@for_drafts
def test_longer_sampled_text_is_the_targets(rule: AcceptanceRule, sampled: bool) -> None:
    """Acceptance learned in one step influences the next ones. Chains of several tokens occur, of
    one source and of both."""
    trees = []
    for shape, price in product(SHAPES, (0.05, 0.5)):
        pair = Pair(DRAFT, shape=shape, price=price, sampled=sampled)
        found = distribution_of(MODEL, pair, rule, prompt=REPEATS, count=5)
        assert gap(found, texts(MODEL, REPEATS, 5)) < EXACT
        trees += pair.seen
    assert {len(tree) for tree in trees} >= {0, 1, 2, 3}
    kinds = [set(tree.sources) for tree in trees if len(tree) > 1]
    assert {"model"} in kinds
    assert {"model", "ngram"} in kinds
    drawn = {q is not None for tree in trees for q in tree.proposals if "model" in tree.sources}
    assert (True in drawn) is sampled
    assert all(tree.is_chain() for tree in trees)


@for_rules
def test_sampled_text_is_the_targets_without_a_draft_model(rule: AcceptanceRule) -> None:
    for number in range(6):
        model, _, prompt = toys.random_case(f"{number}")
        found = distribution_of(model, Pair(None, shape="flat"), rule, prompt=prompt, count=5)
        assert gap(found, texts(model, prompt, 5)) < EXACT


@for_rules
@for_drafts
@pytest.mark.parametrize(("shape", "price"), [("flat", 0.5), ("tiles", 0.05)])
@pytest.mark.parametrize(
    "options",
    [
        {"constraint": toys.ForbiddenPairs({(0, 1)}, toys.START)},
        {"constraint": toys.ForbiddenPairs(FORBIDDEN, toys.START)},
        {"constraint": toys.ForbiddenPairs({(0, 1), (0, 2)}, toys.START)},
        {"ends": lambda token: token == 2},
    ],
    ids=["loose grammar", "grammar", "strict grammar", "an end"],
)
def test_sampled_text_obeys_ends_and_grammars(
    rule: AcceptanceRule, sampled: bool, shape: str, price: float, options: dict[str, Any]
) -> None:
    pair = Pair(DRAFT, shape=shape, price=price, sampled=sampled)
    found = distribution_of(MODEL, pair, rule, prompt=REPEATS, **options)
    assert gap(found, undrafted(MODEL, prompt=REPEATS, **options)) < EXACT
    forbidden = (
        options["constraint"].pairs if "constraint" in options else {(2, n) for n in range(3)}
    )
    assert not any(set(pairwise(text)) & forbidden for text in found)


COUNT = 24
MODELS = 15


def some_models(seed: int) -> tuple[toys.ToyModel, toys.ToyModel]:
    """A target, and a similar draft model."""
    rng = np.random.default_rng(seed)
    table = rng.dirichlet(np.full(3, 0.5), size=(3, 3))
    blurred = 0.6 * table + 0.4 * rng.dirichlet(np.full(3, 0.5), size=(3, 3))
    return toys.with_start(table), toys.with_start(blurred)


def plain_greedy(
    model: toys.ToyModel,
    prompt: Sequence[int],
    ends: Callable[[int], bool] = toys.never,
    forbidden: Collection[tuple[int, int]] = (),
) -> list[int]:
    """Greedy decoding without the code under test."""
    text = list(prompt)
    while len(text) < len(prompt) + COUNT:
        row = model.logits([text])[0].copy()
        for token in range(model.size):
            if (text[-1], token) in forbidden:
                row[token] = -np.inf
        text.append(int(row.argmax()))
        if ends(text[-1]):
            break
    return text


def generated(
    model: toys.ToyModel,
    pair: Pair,
    prompt: Sequence[int],
    *,
    ends: Callable[[int], bool] = toys.never,
    constraint: Constraint | None = None,
    rule: AcceptanceRule | None = None,
) -> tuple[list[int], list[Step]]:
    """The loop's text and steps; caches are compared with the text after each."""
    policy = pair.build(greedy=True)
    target = pair.target(model)
    session = toys.session_of(
        prompt, params=toys.GREEDY, count=COUNT, ends=ends, constraint=constraint
    )
    policy.begin(prompt)
    steps = []
    for step in drive(session, speculate(session, policy, rule or GreedyMatch()), target):
        assert target.cache == session.context[:-1]
        if pair.cache is not None:
            assert pair.cache.tokens == session.context[: len(pair.cache.tokens)]
        steps.append(step)
    return session.context, steps


def check_greedy(make: Callable[[toys.ToyModel], Pair], **options: Any) -> list[list[Step]]:
    """The steps of answers with several models, which equal plain decoding."""
    answers = []
    for seed in range(MODELS):
        (model, draft), prompt = some_models(seed), random_prompt(seed)
        text, steps = generated(model, make(draft), prompt, **options)
        assert text == plain_greedy(model, prompt)
        answers.append(steps)
    return answers


def random_prompt(seed: int) -> list[int]:
    rng = np.random.default_rng([seed, 1])
    return [*rng.integers(0, 3, size=rng.integers(2, 12)).tolist(), toys.START]


@pytest.mark.parametrize("kind", PAIRS)
def test_greedy_text_is_the_targets(kind: str) -> None:
    branches = siblings = 0
    for seed in range(MODELS):
        (model, draft), prompt = some_models(seed), random_prompt(seed)
        pair = Pair(draft, **PAIRS[kind])
        if "max_draft" in PAIRS[kind]:
            pair.capacity = len(prompt) + COUNT + pair.max_draft % 2
        text, steps = generated(model, pair, prompt)
        assert text == plain_greedy(model, prompt)
        assert max(step.drafted for step in steps) <= pair.max_draft
        branches += sum(not step.tree.is_chain() for step in steps)
        siblings += sum(
            any(node != step.tree.children(step.tree.parents[node])[0] for node in step.path)
            for step in steps
        )
    if kind in ("flat", "tiles"):
        assert branches > MODELS
        assert siblings > MODELS // 4, "second choices are accepted"


@pytest.mark.parametrize("end", [None, 0, 1, 2])
@pytest.mark.parametrize("shape", ["flat", "tiles"])
def test_greedy_text_obeys_ends_and_grammars(shape: str, end: int | None) -> None:
    proposed = 0
    for seed in range(MODELS):
        (model, draft), prompt = some_models(seed), random_prompt(seed)
        pair = Pair(draft, shape=shape)
        if end is not None:
            text, _ = generated(model, pair, prompt, ends=lambda t: t == end)
            assert text == plain_greedy(model, prompt, lambda t: t == end)
            continue
        text, steps = generated(
            model, pair, prompt, constraint=toys.ForbiddenPairs(FORBIDDEN, toys.START)
        )
        assert text == plain_greedy(model, prompt, forbidden=FORBIDDEN)
        for step in steps:
            for node, source in enumerate(step.tree.sources):
                path = [text[step.context_length - 1], *step.tree.path_tokens(node)]
                if source == "model":
                    assert (path[-2], path[-1]) not in FORBIDDEN
                    proposed += 1
    assert end is not None or proposed > MODELS


def test_chain_rule_gets_chains() -> None:
    check_greedy(lambda draft: Pair(draft, shape="flat", most_leaves=1), rule=BlockVerification())


@pytest.mark.parametrize("shape", SHAPES)
def test_greedy_text_is_the_targets_without_a_draft_model(shape: str) -> None:
    answers = check_greedy(lambda _: Pair(None, shape=shape))
    accepted = sum(step.accepted for steps in answers for step in steps)
    assert accepted > 100 or shape == "ruinous"

"""Losslessness with the policy, sampled and greedy.

As in `tests.decoding.test_lossless`, all outcomes of the real loop and policy are enumerated over
toy models. The policy learns while it runs, so each run has a new one.
"""

from collections.abc import Callable
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
from localspec.decoding.loop import speculate
from tests.decoding.exact import DRAFT, EXACT, MODEL, REPEATS, gap, texts, undrafted
from tests.policy.builders import Pair, distribution_of
from tests.policy.measuring import SHAPES
from tests.support import toys

FORBIDDEN = {(0, 0), (1, 2), (2, 0)}

PAIRS: dict[str, dict[str, Any]] = {
    **{shape: {"shape": shape} for shape in SHAPES},
    **{f"{shape}, expensive drafts": {"shape": shape, "price": 0.5} for shape in SHAPES},
    **{f"{shape}, no draft model": {"shape": shape, "draft": None} for shape in SHAPES},
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
        pair = Pair(**{"draft": draft, "sampled": sampled, **PAIRS[kind]})
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


def check_greedy(
    make: Callable[[toys.ToyModel], Pair], room: int | None = None, **options: Any
) -> list[Step]:
    """The steps of answers with several models, which equal plain decoding. Caches are compared
    with the text after each. `room`: of the target after its text, if it is limited."""
    steps = []
    for seed in range(MODELS):
        (model, draft), rng = some_models(seed), np.random.default_rng([seed, 1])
        prompt = [*rng.integers(0, 3, size=rng.integers(2, 12)).tolist(), toys.START]
        pair = make(draft)
        if room is not None:
            pair.capacity = len(prompt) + COUNT + room
        policy, target = pair.build(greedy=True), pair.target(model)
        session = toys.session_of(prompt, params=toys.GREEDY, count=COUNT, **options)
        policy.begin(prompt)
        for step in speculate(session, policy, GreedyMatch(), target):
            assert target.cache == session.context[:-1]
            if pair.cache is not None:
                assert pair.cache.tokens == session.context[: len(pair.cache.tokens)]
            assert step.drafted <= pair.max_draft
            steps.append(step)
        wanted = undrafted(model, prompt=prompt, count=COUNT, params=toys.GREEDY, **options)
        assert {tuple(session.context[len(prompt) :]): 1.0} == wanted
    return steps


@pytest.mark.parametrize("kind", PAIRS)
def test_greedy_text_is_the_targets(kind: str) -> None:
    room = PAIRS[kind]["max_draft"] % 2 if "max_draft" in PAIRS[kind] else None
    steps = check_greedy(lambda draft: Pair(**{"draft": draft, **PAIRS[kind]}), room=room)
    accepted = sum(step.accepted for step in steps)
    assert accepted > 100 or "no draft model" not in kind or "ruinous" in kind
    if kind in ("flat", "tiles"):
        assert sum(not step.tree.is_chain() for step in steps) > MODELS
        siblings = sum(
            any(node != step.tree.children(step.tree.parents[node])[0] for node in step.path)
            for step in steps
        )
        assert siblings > MODELS // 4, "second choices are accepted"


@pytest.mark.parametrize("end", [0, 1, 2])
@pytest.mark.parametrize("shape", ["flat", "tiles"])
def test_greedy_text_obeys_ends(shape: str, end: int) -> None:
    check_greedy(lambda draft: Pair(draft, shape=shape), ends=lambda token: token == end)


@pytest.mark.parametrize("shape", ["flat", "tiles"])
def test_greedy_text_obeys_grammars(shape: str) -> None:
    grammar = toys.ForbiddenPairs(FORBIDDEN, toys.START)
    steps = check_greedy(lambda draft: Pair(draft, shape=shape), constraint=grammar)
    proposed = [
        step.tree.path_tokens(node)
        for step in steps
        for node, source in enumerate(step.tree.sources)
        if source == "model"
    ]
    assert not any(tuple(path[-2:]) in FORBIDDEN for path in proposed)
    assert len(proposed) > MODELS

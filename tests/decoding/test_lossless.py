"""Losslessness: with every drafter and rule, texts have exactly the target's distribution.

These are no statistical tests: the real loop runs over toy models, all outcomes are enumerated, and
exact distributions of whole texts are compared. `test_broken_rules_are_detected` shows that the
comparison can fail.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.decoding.acceptance import (
    AcceptanceRule,
    BlockVerification,
    GreedyMatch,
    SampleMatch,
    SpeculativeSampling,
)
from localspec.decoding.distribution import Distribution
from localspec.decoding.interfaces import Plan
from localspec.decoding.session import Session
from localspec.decoding.sources import Source
from localspec.decoding.tree import ROOT, TokenTree
from localspec.drafters.named import Cascade
from tests.decoding import broken
from tests.decoding.exact import (
    DRAFT,
    DRAFTERS,
    EXACT,
    MODEL,
    Text,
    cascade,
    drafted,
    gap,
    model_drafter,
    texts,
    undrafted,
)
from tests.support.drafting import EagerNgram
from tests.support.toys import (
    AS_IS,
    GREEDY,
    SIZE,
    START,
    ForbiddenPairs,
    ToyModel,
    ToySource,
    chosen_chain,
    drawn_chain,
    examples,
    models,
    random_case,
)

tokens = st.integers(0, SIZE - 1)
prompts = st.lists(tokens, min_size=2, max_size=8).map(lambda text: [*text, START])
"""Repeats for the n-gram. START makes the first token of an answer certain: of 4, 3 are left."""

TREE_RULES: tuple[AcceptanceRule, ...] = (SpeculativeSampling(), SampleMatch())
RULES = (*TREE_RULES, BlockVerification())
for_drafters = pytest.mark.parametrize("make", DRAFTERS.values(), ids=DRAFTERS.keys())


def bushy(draft: ToyModel, levels: Sequence[Sequence[int | None]]) -> ToySource:
    """Trees that branch below every node; the draft model's branch below the first only. `levels`
    lists the children of each node of the level above: None is drawn from the draft without
    replacement, a number is a chosen token."""

    def grow(session: Session, plan: Plan, tree: TokenTree) -> None:
        front = [ROOT]
        for children in levels[: plan.depth]:
            below: list[int] = []
            for node in front:
                q: Distribution | None
                q = draft.distribution([*session.context, *tree.path_tokens(node)])
                for chosen in children:
                    if chosen is not None:
                        below.append(tree.add(chosen, node, "toy"))
                    elif q is not None:
                        token = session.propose(q, 0 if node == ROOT else tree.depths[node])
                        below.append(tree.add(token, node, "toy", q))
                        q = q.without(token)
            front = below

    return ToySource(grow)


def padded(draft: ToyModel, padding: Sequence[int]) -> ToySource:
    """Drafts with padding in the free slots of a pass, which may be accepted."""

    def fill_up(session: Session, plan: Plan, tree: TokenTree) -> None:
        drawn_chain(draft).propose(session, plan, tree)
        node = tree.main_leaf()
        for token in padding:
            node = tree.pad(token, node)

    return ToySource(fill_up)


def overshooting(draft: ToyModel) -> ToySource:
    def overshoot(session: Session, plan: Plan, tree: TokenTree) -> None:
        drawn_chain(draft).propose(session, plan._replace(depth=3), tree)

    return ToySource(overshoot)


@dataclass(frozen=True)
class Shape:
    """A source of drafts from a draft model and some chosen tokens."""

    make: Callable[[ToyModel, list[int]], Source]
    plan: Plan
    count: int = 4
    rules: tuple[AcceptanceRule, ...] = RULES
    nightly: bool = False


CHAIN, TREE = Plan(None, depth=2), Plan(None, depth=2, width=2)
LONG, WIDE = Plan(None, depth=3), Plan(None, depth=3, width=3)
NightlyShape = partial(Shape, nightly=True)
LongShape = partial(NightlyShape, count=5)
SHAPES = {
    "drawn": Shape(lambda draft, _: drawn_chain(draft), CHAIN),
    "chosen": Shape(lambda _, chosen: chosen_chain(chosen), LONG, 5),
    "padded": Shape(lambda draft, chosen: padded(draft, chosen[:2]), Plan(None, depth=1)),
    "longer than planned": Shape(lambda draft, _: overshooting(draft), Plan(None, depth=1), 3),
    "long": LongShape(lambda draft, _: drawn_chain(draft), LONG),
    "drawn, then chosen": LongShape(
        lambda draft, chosen: Cascade("both", drawn_chain(draft), chosen_chain(chosen[:1])), LONG
    ),
    "chosen, then drawn": LongShape(
        lambda draft, chosen: Cascade("both", chosen_chain(chosen[:1]), drawn_chain(draft)), LONG
    ),
    # Their length depends on drawn tokens, which block verification must support.
    "while confident": LongShape(
        lambda draft, _: model_drafter(draft),
        LONG._replace(min_confidence=0.4, min_likelihood=0.25),
    ),
    "while likely": LongShape(
        lambda draft, _: model_drafter(draft), LONG._replace(min_likelihood=0.3)
    ),
    "cascade, long guesses": LongShape(
        lambda draft, _: cascade(draft), LONG._replace(min_likelihood=0.15)
    ),
    "n-gram's tree": Shape(lambda _draft, _: EagerNgram(), WIDE, 5, TREE_RULES),
    "branches everywhere": Shape(
        lambda draft, _: bushy(draft, [[None, None], [None, None]]), CHAIN, rules=TREE_RULES
    ),
    "three candidates": NightlyShape(
        lambda draft, _: model_drafter(draft), TREE._replace(width=3), rules=TREE_RULES
    ),
    "chosen before drawn": NightlyShape(
        lambda draft, chosen: bushy(draft, [[chosen[0], None, None], [chosen[-1], None]]),
        *(CHAIN, 4, TREE_RULES),
    ),
    "chosen among drawn": NightlyShape(
        lambda draft, chosen: bushy(draft, [[None, chosen[0], None], [None, chosen[-1]]]),
        *(CHAIN, 4, TREE_RULES),
    ),
}


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        pytest.param(
            *(name, rule),
            id=f"{name}-{rule.name}",
            marks=[pytest.mark.nightly] if shape.nightly else [],
        )
        for name, shape in SHAPES.items()
        for rule in shape.rules
    ],
)
@examples(5)
@given(
    model=models(),
    draft=models(most=2),  # of few tokens: outcomes multiply
    chosen=st.lists(tokens, min_size=1, max_size=3),
    prompt=prompts,
)
def test_draft_of_any_shape_is_lossless(
    name: str,
    rule: AcceptanceRule,
    model: ToyModel,
    draft: ToyModel,
    chosen: list[int],
    prompt: list[int],
) -> None:
    shape = SHAPES[name]
    options = {"prompt": prompt, "count": shape.count}
    found = drafted(model, lambda: shape.make(draft, chosen), shape.plan, rule, **options)
    assert gap(found, texts(model, prompt, shape.count)) < EXACT


@for_drafters
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@pytest.mark.parametrize("plan", [CHAIN, TREE], ids=["chain", "tree"])
def test_every_drafter_is_lossless(
    make: Callable[[ToyModel], Source],
    rule: AcceptanceRule,
    plan: Plan,
    request: pytest.FixtureRequest,
) -> None:
    """A rule for chains gets chains from every plan."""
    for number in range(3 if plan is CHAIN else 1):
        model, draft, prompt = random_case(f"{request.node.name} {number}")
        found = drafted(model, lambda: make(draft), plan, rule, prompt=prompt)  # noqa: B023
        assert gap(found, texts(model, prompt)) < EXACT


PARAMS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.7},
    "top-k": {"top_k": 2},
    "top-p": {"top_p": 0.8},
    "min-p": {"min_p": 0.4},
    "repeat penalty": {"repeat_penalty": 1.5, "penalty_last_n": -1},
    "frequency and presence": {"frequency_penalty": 0.4, "presence_penalty": -0.3},
    "penalties on the last two": {"frequency_penalty": 0.7, "penalty_last_n": 2},
    "bias and ban": {"logit_bias": {0: 0.3, 2: -math.inf}},
    "all of them": {
        "temperature": 0.6,
        "top_k": 2,
        "top_p": 0.9,
        "min_p": 0.1,
        "repeat_penalty": 1.2,
        "presence_penalty": 0.2,
        "logit_bias": {2: 1.0},
    },
}
FORBIDDEN_PAIRS = {
    "loose grammar": {(0, 0), (1, 2)},
    "strict grammar": {(0, 1), (1, 1), (2, 1), (2, 0)},
    "grammar of one way": {(0, 0), (0, 1), (1, 1), (1, 2), (2, 2), (2, 0)},
}
SETTINGS: dict[str, dict[str, Any]] = {
    **{name: {"params": replace(AS_IS, **params)} for name, params in PARAMS.items()},
    **{name: {"constraint": ForbiddenPairs(f, START)} for name, f in FORBIDDEN_PAIRS.items()},
    "an end": {"ends": lambda token: token == 2},
}


def check_settings(name: str, found: dict[Text, float]) -> None:
    seen = set().union(*found)
    neighbours = {pair for text in found for pair in itertools.pairwise(text)}
    if name == "bias and ban":
        assert 2 not in seen
    if "grammar" in name:
        assert not neighbours & FORBIDDEN_PAIRS[name]
    if name == "an end":
        assert all(2 not in text[:-1] for text in found)
        assert any(len(text) < 4 for text in found) == (2 in seen)


@pytest.mark.parametrize("name", SETTINGS)
@for_drafters
@pytest.mark.parametrize("plan", [CHAIN, TREE], ids=["chain", "tree"])
def test_every_drafter_is_lossless_under_every_setting(
    name: str, make: Callable[[ToyModel], Source], plan: Plan, request: pytest.FixtureRequest
) -> None:
    """The reference is the loop without drafts."""
    model, draft, prompt = random_case(request.node.name, least=1)
    options = {"prompt": prompt, **SETTINGS[name]}
    found = drafted(model, lambda: make(draft), plan, SpeculativeSampling(), **options)
    assert gap(found, undrafted(model, **options)) < EXACT
    check_settings(name, found)


def greedy_text(model: ToyModel, prompt: list[int], count: int) -> Text:
    """Arg-max decoding without the loop; the first of tied tokens."""
    context = list(prompt)
    for _ in range(count):
        row = model.logits([context])[0].tolist()
        context.append(row.index(max(row)))
    return tuple(context[len(prompt) :])


GREEDY_SETTINGS: dict[str, dict[str, Any]] = {
    "as it is": {"params": GREEDY},
    "penalties": {"params": replace(GREEDY, repeat_penalty=1.4, presence_penalty=0.2)},
    "bias": {"params": replace(GREEDY, logit_bias={0: -0.4, 1: 0.4})},
    "top-k 1": {"params": replace(AS_IS, top_k=1)},
    "grammar": {"params": GREEDY, "constraint": ForbiddenPairs({(0, 0), (1, 2)}, START)},
}


@for_drafters
@pytest.mark.parametrize("name", GREEDY_SETTINGS)
@pytest.mark.parametrize("width", [1, 3])
@examples(5)
@given(least=st.sampled_from([0, 1]), data=st.data(), prompt=prompts)
def test_greedy_text_does_not_depend_on_the_drafter(
    make: Callable[[ToyModel], Source],
    name: str,
    width: int,
    least: int,
    data: st.DataObject,
    prompt: list[int],
) -> None:
    plain = name == "as it is"  # else every token has to be possible
    model, draft = (data.draw(models(least=least if plain else 1)) for _ in range(2))
    plan = Plan(None, depth=3, width=width)
    options = {"prompt": prompt, "count": 12, **GREEDY_SETTINGS[name]}
    found = drafted(model, lambda: make(draft), plan, GreedyMatch(), **options)
    assert found == undrafted(model, **options)
    assert len(found) == 1
    assert not plain or found == {greedy_text(model, prompt, 12): 1.0}


def drops_poor_tokens(draft: ToyModel) -> ToySource:
    def propose(session: Session, plan: Plan, tree: TokenTree) -> None:
        drawn = TokenTree()
        drawn_chain(draft).propose(session, plan, drawn)
        node = ROOT
        for token, q in zip(drawn.tokens, drawn.proposals, strict=True):
            if q is None or q.prob(token) < 0.45:
                break
            node = tree.add(token, node, "toy", q)

    return ToySource(propose)


@pytest.mark.parametrize(
    ("rule", "make", "plan"),
    [
        (broken.AlwaysAcceptRule(), model_drafter, CHAIN),
        (broken.UncorrectedResamplingRule(), model_drafter, TREE),
        (broken.IndependentSiblingsRule(), model_drafter, TREE),
        (SpeculativeSampling(), drops_poor_tokens, CHAIN),
    ],
    ids=["accepts", "resamples", "siblings", "drops drawn tokens"],
)
def test_broken_rules_are_detected(
    rule: AcceptanceRule, make: Callable[[ToyModel], Source], plan: Plan
) -> None:
    assert gap(drafted(MODEL, lambda: make(DRAFT), plan, rule), texts(MODEL)) > 1e-3
    sound = drafted(MODEL, lambda: model_drafter(DRAFT), plan, SpeculativeSampling())
    assert gap(sound, texts(MODEL)) < EXACT

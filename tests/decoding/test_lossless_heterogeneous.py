"""Losslessness as in `test_lossless`, with draft models of other vocabularies."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from localspec.decoding.acceptance import (
    AcceptanceRule,
    BlockVerification,
    GreedyMatch,
    SpeculativeSampling,
)
from localspec.decoding.interfaces import Plan
from localspec.decoding.sources import Source
from localspec.drafters.heterogeneous import HeterogeneousDraftModel
from localspec.drafters.named import Cascade
from tests.decoding.exact import DRAFT, EXACT, MODEL, REPEATS, drafted, gap, texts, undrafted
from tests.policy.builders import Pair, distribution_of
from tests.support.drafting import EagerNgram, as_source, cascade_of
from tests.support.tongues import VOCABULARIES, WAYS, heterogeneous
from tests.support.toys import GREEDY, START, ForbiddenPairs, ToyCache, random_case


class Case(NamedTuple):
    """A source with a draft model. `chosen`: whether its words are chosen instead of drawn;
    `forbids`: pairs of tokens that a grammar excludes, which may leave no shared token."""

    make: Callable[[HeterogeneousDraftModel], Source] = as_source
    depth: int = 2
    width: int = 1
    rule: AcceptanceRule = BlockVerification()
    chosen: bool = False
    recurrent: bool = False
    forbids: frozenset[tuple[int, int]] = frozenset()


CASES = {
    "drawn": Case(),
    "drawn, token by token": Case(rule=SpeculativeSampling()),
    "chosen": Case(lambda model: as_source(model, greedy=True)),
    "cascade": Case(cascade_of),
    "model+ngram": Case(lambda model: Cascade("model+ngram", model, EagerNgram())),
    "ngram+model": Case(lambda model: Cascade("ngram+model", EagerNgram(), model)),
    "long": Case(depth=3),
    "long, led": Case(depth=3, chosen=True),
    "tree": Case(width=2, rule=SpeculativeSampling()),
    "recurrent": Case(recurrent=True),
    "loose grammar": Case(forbids=frozenset({(0, 1)})),
    "grammar": Case(forbids=frozenset({(0, 0), (1, 2), (2, 0)})),
    "strict grammar": Case(forbids=frozenset({(0, 1), (0, 2)})),
}
for_ways = pytest.mark.parametrize("way", WAYS)


@pytest.mark.parametrize(
    ("tongue", "name"),
    [
        # Where the vocabularies share little there are many more outcomes.
        pytest.param(
            *(tongue, name),
            marks=[pytest.mark.nightly] * ("foreign" in tongue and name in ("tree", "long")),
        )
        for tongue in VOCABULARIES
        for name in CASES
    ],
)
@for_ways
@pytest.mark.parametrize("greedy", [False, True], ids=["sampled", "greedy"])
def test_text_has_the_targets_distribution(
    tongue: str, name: str, way: str, greedy: bool, request: pytest.FixtureRequest
) -> None:
    case = CASES[name]
    model, draft, prompt = random_case(request.node.name, least=1 if case.forbids else 0)

    def build() -> Source:
        cache = ToyCache(draft, recurrent=case.recurrent)
        source = heterogeneous(cache, VOCABULARIES[tongue], way=way)
        source.cache.chosen = case.chosen or greedy
        return case.make(source)

    options: dict[str, Any] = {"prompt": prompt}
    rule = case.rule
    if case.forbids:
        options["constraint"] = ForbiddenPairs(set(case.forbids), START)
    if greedy:
        rule, options = GreedyMatch(), {**options, "count": 12, "params": GREEDY}
    found = drafted(model, build, Plan(None, case.depth, case.width), rule, **options)
    assert gap(found, undrafted(model, **options)) < EXACT


@for_ways
@pytest.mark.parametrize(
    ("tongue", "count"),
    [("finer", 3), ("coarser", 3)]
    + [pytest.param(tongue, 4, marks=[pytest.mark.nightly]) for tongue in VOCABULARIES],
)
@pytest.mark.parametrize("sampled", [True, False], ids=["drawn", "chosen"])
def test_measured_plans_are_lossless(tongue: str, count: int, way: str, sampled: bool) -> None:
    """Drafts occur."""
    pair = Pair(
        DRAFT,
        "flat",
        sampled=sampled,
        crosses=lambda cache: heterogeneous(cache, VOCABULARIES[tongue], way=way),
    )
    found = distribution_of(MODEL, pair, BlockVerification(), prompt=REPEATS, count=count)
    assert gap(found, texts(MODEL, REPEATS, count)) < EXACT
    assert "foreign" in tongue or any(f"model:{way}" in tree.sources for tree in pair.seen)

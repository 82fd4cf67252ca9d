"""The promise of `test_lossless`, with draft models whose tokens are not the target's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.decoding.acceptance import (
    AcceptanceRule,
    BlockVerification,
    GreedyMatch,
    SpeculativeSampling,
)
from localspec.decoding.interfaces import Plan
from localspec.decoding.rules import BestLossless
from localspec.decoding.sampling import Rows
from localspec.decoding.session import Session
from localspec.decoding.sources import Source
from localspec.decoding.tree import TokenTree
from localspec.drafters.heterogeneous import HeterogeneousDraftModel
from localspec.drafters.named import Staged
from localspec.drafters.parallel import ParallelReader
from tests.decoding.exact import EXACT, drafted, gap, texts, undrafted
from tests.policy.builders import Pair, distribution_of, seen_trees
from tests.support.drafting import EagerNgram, as_source, cascade_of, proposed
from tests.support.tongues import TONGUES, WAYS, heterogeneous
from tests.support.toys import (
    GREEDY,
    SIZE,
    START,
    Forbids,
    ToyCache,
    ToyModel,
    ToySource,
    a_case,
    examples,
    models,
    started,
)

MODEL = started([[0.5, 0.4, 0.1], [0.1, 0.5, 0.4], [0.4, 0.1, 0.5]])
DRAFT = started([[0.1, 0.2, 0.7], [0.7, 0.1, 0.2], [0.2, 0.7, 0.1]])
REPEATS = (0, 1, 2, 0, 1, 2, 0, START)
WRONG = 1e-3

Make = Callable[[HeterogeneousDraftModel], Source]
DRAFTERS: dict[str, Make] = {
    "drawn": as_source,
    "chosen": lambda model: as_source(model, greedy=True),
    "cascade": cascade_of,
    "model+ngram": lambda model: Staged("model+ngram", model, EagerNgram()),
    "ngram+model": lambda model: Staged("ngram+model", EagerNgram(), model),
}

tokens = st.integers(0, SIZE - 1)
prompts = st.lists(tokens, min_size=2, max_size=6).map(lambda text: (*text, START))

for_tongues = pytest.mark.parametrize("spelled", TONGUES.values(), ids=TONGUES.keys())
for_ways = pytest.mark.parametrize("way", WAYS)
for_drafters = pytest.mark.parametrize("make", DRAFTERS.values(), ids=DRAFTERS.keys())
for_rules = pytest.mark.parametrize(
    "rule", [SpeculativeSampling(), BlockVerification()], ids=lambda rule: rule.name
)


def drafting(
    make: Make,
    draft: ToyModel,
    spelled: Sequence[bytes],
    way: str,
    *,
    chosen: bool = False,
    recurrent: bool = False,
) -> Callable[[], Source]:
    """Makes a source around a draft model of its own."""

    def build() -> Source:
        cache = ToyCache(draft, recurrent=recurrent)
        model = heterogeneous(cache, spelled, way=way, recurrent=recurrent)
        model.mapped.chosen = chosen
        return make(model)

    return build


@for_tongues
@for_ways
@for_drafters
@for_rules
def test_chain_is_lossless(
    spelled: Sequence[bytes],
    way: str,
    make: Make,
    rule: AcceptanceRule,
    request: pytest.FixtureRequest,
) -> None:
    model, draft, prompt = a_case(request.node.name)
    build = drafting(make, draft, spelled, way)
    found = drafted(model, build, Plan(None, depth=2), rule, prompt=prompt)
    assert gap(found, texts(model, prompt)) < EXACT


@pytest.mark.parametrize("tongue", ["other ids", "finer", "coarser"])
@for_ways
@pytest.mark.parametrize("chosen", [True, False], ids=["led", "unled"])
def test_long_chain_is_lossless(
    tongue: str, way: str, chosen: bool, request: pytest.FixtureRequest
) -> None:
    model, draft, _ = a_case(request.node.name)
    build = drafting(as_source, draft, TONGUES[tongue], way, chosen=chosen)
    found = drafted(model, build, Plan(None, depth=3), BestLossless(), count=4)
    assert gap(found, texts(model, count=4)) < EXACT


@pytest.mark.parametrize(
    "spelled",
    [
        # Where the vocabularies share little there are many more outcomes.
        pytest.param(tongue, id=name, marks=[pytest.mark.nightly] if "foreign" in name else [])
        for name, tongue in TONGUES.items()
    ],
)
@for_ways
def test_tree_is_lossless(
    spelled: Sequence[bytes], way: str, request: pytest.FixtureRequest
) -> None:
    model, draft, _ = a_case(request.node.name)
    build = drafting(as_source, draft, spelled, way)
    plan = Plan(None, depth=2, width=2)
    found = drafted(model, build, plan, SpeculativeSampling(), count=4)
    assert gap(found, texts(model, count=4)) < EXACT


@for_tongues
@examples(2)
@given(model=models(), draft=models(), prompt=prompts)
def test_recurrent_draft_model_is_lossless(
    spelled: Sequence[bytes], model: ToyModel, draft: ToyModel, prompt: Sequence[int]
) -> None:
    build = drafting(as_source, draft, spelled, "auto", recurrent=True)
    found = drafted(model, build, Plan(None, depth=2), BestLossless(), prompt=prompt)
    assert gap(found, texts(model, prompt)) < EXACT


@for_tongues
@for_ways
@pytest.mark.parametrize("pairs", [{(0, 1)}, {(0, 0), (1, 2), (2, 0)}, {(0, 1), (0, 2)}])
def test_grammar_holds_even_where_it_leaves_no_shared_token(
    spelled: Sequence[bytes], way: str, pairs: set[tuple[int, int]]
) -> None:
    build = drafting(as_source, DRAFT, spelled, way)
    found = drafted(
        MODEL,
        build,
        Plan(None, depth=2),
        BestLossless(),
        prompt=REPEATS,
        constraint=Forbids(pairs, START),
    )
    wanted = undrafted(MODEL, prompt=REPEATS, constraint=Forbids(pairs, START))
    assert gap(found, wanted) < EXACT


@for_tongues
@for_ways
@for_drafters
@examples(3)
@given(model=models(), draft=models(), prompt=prompts, width=st.integers(1, 2))
def test_greedy_text_is_plain_decodings(
    spelled: Sequence[bytes],
    way: str,
    make: Make,
    model: ToyModel,
    draft: ToyModel,
    prompt: Sequence[int],
    width: int,
) -> None:
    build = drafting(make, draft, spelled, way, chosen=True)
    plan = Plan(None, depth=3, width=width)
    options = {"prompt": prompt, "count": 12, "params": GREEDY}
    found = drafted(model, build, plan, GreedyMatch(), **options)
    assert found == undrafted(model, **options)


@pytest.mark.nightly
@for_tongues
@for_ways
@pytest.mark.parametrize("sampled", [True, False], ids=["drawn", "chosen"])
@pytest.mark.parametrize("shape", ["flat", "tiles"])
@examples(2)
@given(draft=models())
def test_measured_plans_are_lossless(
    spelled: Sequence[bytes], way: str, sampled: bool, shape: str, draft: ToyModel
) -> None:
    pair = Pair(draft, shape, sampled=sampled, crosses=lambda c: heterogeneous(c, spelled, way=way))
    found = distribution_of(MODEL, pair, BestLossless(), prompt=REPEATS, count=4)
    assert gap(found, texts(MODEL, REPEATS, 4)) < EXACT


@for_ways
@pytest.mark.parametrize("tongue", ["finer", "coarser"])
def test_reading_ahead_is_lossless(tongue: str, way: str) -> None:
    readers: list[ParallelReader] = []

    def ahead(model: object) -> ParallelReader:
        assert isinstance(model, HeterogeneousDraftModel)
        readers.append(ParallelReader(model))
        return readers[-1]

    try:
        pair = Pair(
            DRAFT, "flat", crosses=lambda c: heterogeneous(c, TONGUES[tongue], way=way), ahead=ahead
        )
        found = distribution_of(MODEL, pair, BestLossless(), prompt=REPEATS, count=3)
    finally:
        for reader in readers:
            reader.close()
    assert gap(found, texts(MODEL, REPEATS, 3)) < EXACT


@for_ways
@pytest.mark.parametrize("tongue", ["other ids", "finer", "coarser", "longer"])
def test_what_is_compared_above_drafts(tongue: str, way: str) -> None:
    pair = Pair(DRAFT, "flat", crosses=lambda c: heterogeneous(c, TONGUES[tongue], way=way))
    trees = seen_trees(MODEL, pair, prompt=REPEATS, count=4)
    assert any(f"model:{way}" in tree.sources for tree in trees)
    assert any(q is not None for tree in trees for q in tree.proposals)


class SaysTheBest(ToySource):
    """Takes the most probable token, and gives it out as drawn: a known bias."""

    def __init__(self, model: HeterogeneousDraftModel) -> None:
        super().__init__(self._best, "model")
        self._inner = model

    def _best(self, session: Session, plan: Plan, tree: TokenTree) -> None:
        drawn = proposed(self._inner, session, plan)
        for parent, q in zip(drawn.parents, drawn.proposals, strict=True):
            assert q is not None
            tree.add(int(q.ids[q.probs.argmax()]), parent, "model", q)

    def begin(self, prompt: Sequence[int]) -> None:
        self._inner.begin(prompt)

    def committed(self, context: Sequence[int], hidden: Mapping[int, Rows]) -> None:
        self._inner.committed(context, hidden)


def test_wrong_q_is_found_out() -> None:
    for make, wrong in ((as_source, False), (SaysTheBest, True)):
        build = drafting(make, DRAFT, TONGUES["coarser"], "shared")
        found = drafted(MODEL, build, Plan(None, depth=2), SpeculativeSampling(), prompt=REPEATS)
        difference = gap(found, texts(MODEL, REPEATS))
        assert difference > WRONG if wrong else difference < EXACT

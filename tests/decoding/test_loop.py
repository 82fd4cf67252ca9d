"""The loop: its calls, limits of plans, and statistics.

`ToyTarget` checks the protocol in every test: each pass starts from a cache that is a prefix of the
committed text, and is committed or rolled back before the next.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from localspec.decoding import acceptance
from localspec.decoding.interfaces import PROMPT, TARGET, Draft, Plan, Step
from localspec.decoding.loop import speculate
from localspec.decoding.sampling import Rows, SamplingParams
from localspec.decoding.session import Session
from localspec.decoding.sources import Source
from localspec.decoding.stats import DrafterStats, GenerationStats
from localspec.decoding.tree import PADDING, ROOT, TokenTree
from localspec.drafters.draft_model import DraftModel
from tests.decoding.exact import CYCLE, DRAFTERS, LIVELY, OTHER, run, step_of
from tests.support import toys
from tests.support.drafting import ToyDrafter


def cycling(count: int = 13, ends: Callable[[int], bool] = toys.never) -> Session:
    return toys.session_of([0], size=CYCLE.size, params=toys.GREEDY, count=count, ends=ends)


class HiddenSource(toys.ToySource):
    """Requests hidden rows; `received` are the texts, and the tokens of the rows by layer."""

    def __init__(self, layers: tuple[int, ...]) -> None:
        super().__init__(self._grow)
        self.hidden = layers
        self.received: list[tuple[list[int], dict[int, list[int]]]] = []

    @staticmethod
    def _grow(session: Session, plan: Plan, tree: TokenTree) -> None:
        """After 1: 2, 0 and 1 along nodes 1, 3 and 4, and wrong tokens beside them."""
        for token, parent in ((0, ROOT), (2, ROOT), (1, 1), (0, 1), (1, 3), (1, 4)):
            tree.add(token, parent, "toy")

    def committed(self, context: Sequence[int], hidden: Mapping[int, Rows]) -> None:
        found = {layer: rows.argmax(axis=1).tolist() for layer, rows in hidden.items()}
        self.received.append((list(context), found))


@pytest.mark.parametrize("layers", [(), (2,), (0, 7)])
def test_hidden_rows_are_those_of_the_text_and_the_accepted_path(layers: tuple[int, ...]) -> None:
    """The hidden row of a token in `ToyTarget` is the token. The last one has no row yet."""
    session, source = cycling(6), HiddenSource(layers)
    run(session, toys.ToyTarget(CYCLE), source, Plan("toy", depth=3))
    text, ends = [0, 1, 2, 0, 1, 2, 0], {2: [0], 6: [1, 2, 0, 1], 7: [2]}
    assert source.received == [
        *((text[:end], dict.fromkeys(layers, tokens)) for end, tokens in ends.items()),
        (session.context, {}),
    ]


def depths_and_widths(
    plan: Plan, count: int = 13, **limits: int
) -> tuple[list[Step], set[tuple[int, int]]]:
    """The steps of an answer, and the plans of those in its middle."""
    source = toys.chosen_chain([2, 0, 1] * 5)
    steps = run(cycling(count), toys.ToyTarget(CYCLE, **limits), source, plan)
    return steps, {(step.plan.depth, step.plan.width) for step in steps[1:-1]}


def test_plan_is_limited_by_the_answer_the_pass_and_the_cache() -> None:
    steps, _ = depths_and_widths(Plan("toy", depth=5, reason="by a test"), 10)
    assert [step.plan.depth for step in steps] == [0, 5, 2]
    assert [len(step.tokens) for step in steps] == [1, 6, 3]
    assert {step.plan.reason for step in steps[1:]} == {"by a test"}
    assert depths_and_widths(Plan("toy", depth=9, width=3), max_draft=4)[1] == {(4, 1)}
    assert depths_and_widths(Plan("toy", depth=2, width=9), max_draft=6)[1] == {(2, 3)}
    model, session = DraftModel(toys.ToyCache(CYCLE), CYCLE.size), cycling(19)
    run(session, toys.ToyTarget(CYCLE, capacity=20), model, Plan("model", depth=3, width=3))
    assert len(session.context) == 20


@pytest.mark.parametrize("max_leaves", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("make", DRAFTERS.values(), ids=DRAFTERS.keys())
def test_trees_have_at_most_the_leaves_of_the_target(
    make: Callable[[toys.ToyModel], Source], depth: int, max_leaves: int
) -> None:
    """`ToyTarget` counts them. A draft model's tree has a branch at every node of its main path."""
    session = toys.session_of([0, 1, 2, 0, 2, 0, toys.START], count=20)
    source = make(OTHER)
    target = toys.ToyTarget(LIVELY, max_leaves=max_leaves)
    steps = run(
        session, target, source, Plan(source.name, depth, 3), acceptance.SpeculativeSampling()
    )
    assert any(len(step.tree) for step in steps)


def test_steps_list_sources_tests_and_accepted_tokens() -> None:
    session = cycling(9)
    steps = run(session, toys.ToyTarget(CYCLE), toys.chosen_chain([2, 0, 2]), Plan("toy", depth=3))
    assert steps[0].plan is PROMPT, "which drafts nothing"
    middle = ([2, 0, 1], ["toy", "toy", TARGET], [0, 1], [0, 1, 2], (3, 3, 2))
    assert [
        (s.tokens, s.sources, s.path, s.tests, (s.drafted, s.tested, s.accepted)) for s in steps
    ] == [
        ([1], [TARGET], [], [], (0, 0, 0)),
        *(middle, middle),
        ([2, 0], ["toy", TARGET], [0], [0], (1, 1, 1)),
    ]
    assert session.finish == "length"


@pytest.mark.parametrize("count", [13, 3])
def test_tokens_after_an_end_token_are_not_counted(count: int) -> None:
    """The end token may be the last that fits."""
    session = cycling(count, ends=lambda token: token == 0)
    source = toys.chosen_chain([2, 0, 1, 2] if count == 13 else [2])
    last = run(session, toys.ToyTarget(CYCLE), source, Plan("toy", depth=4))[-1]
    assert (last.tokens, session.finish) == ([2, 0], "stop")
    assert last.sources == ["toy", "toy" if count == 13 else TARGET]
    wanted = (4, 2, 2) if count == 13 else (1, 1, 1)
    assert (last.drafted, last.tested, last.accepted) == wanted


def test_empty_draft_gives_a_plain_step_with_a_reason() -> None:
    steps = run(cycling(4), toys.ToyTarget(CYCLE), toys.chosen_chain([]), Plan("toy", depth=3))
    assert [step.tokens for step in steps] == [[1], [2], [0], [1]]
    assert [(step.plan.drafter, step.drafted) for step in steps[1:3]] == [("toy", 0)] * 2
    nothing = "drafter 'toy' had nothing to propose"
    assert [step.why_not_drafted for step in steps[1:3]] == [nothing] * 2


def test_seconds_of_a_step_last_from_its_plan_to_its_end() -> None:
    """Drafting takes 2 and a pass 4, of which the target reports 1. Learning from a step, 3, counts
    for the next one. The consumer's time is not counted."""
    now, session, target = 1000.0, cycling(3), toys.ToyTarget(CYCLE)

    def spends(seconds: float, result: Callable[..., Any] = lambda *_: None) -> Callable[..., Any]:
        def spend(*arguments: Any) -> Any:
            nonlocal now
            now += seconds
            return result(*arguments)

        return spend

    source = toys.ToySource(spends(2.0))
    drafter = ToyDrafter(source, Plan("toy", depth=1), target.limits)
    vars(drafter).update(observe=spends(3.0), plan=lambda _: Plan("toy", depth=1))
    vars(target)["forward"] = spends(4.0, target.forward)
    came = speculate(session, drafter, acceptance.GreedyMatch(), target, clock=lambda: now)
    steps = []
    for step in came:
        steps.append(step)
        now += 100.0
    assert [step.seconds for step in steps] == [4.0, 9.0, 9.0]
    assert [step.target_seconds for step in steps] == [1.0] * 3
    assert [step.draft_seconds for step in steps] == [0.0, 1.0, 1.0]


@pytest.mark.parametrize("name", ["model", "cascade"])
@pytest.mark.parametrize(
    ("params", "rule"),
    [
        (toys.GREEDY, acceptance.GreedyMatch()),
        (toys.AS_IS, acceptance.SpeculativeSampling()),
        (toys.AS_IS, acceptance.BlockVerification()),
        (SamplingParams(), acceptance.SampleMatch()),
    ],
    ids=["greedy", "token", "block", "defaults"],
)
@pytest.mark.parametrize("width", [1, 2])
def test_drafting_with_the_target_itself_accepts_every_token(
    name: str, params: SamplingParams, rule: acceptance.AcceptanceRule, width: int
) -> None:
    """p and q are the same numbers, so every coin has probability 1."""
    session = toys.session_of([0, 2, toys.START], count=22, params=params)
    target, source = toys.ToyTarget(LIVELY), DRAFTERS[name](LIVELY)
    steps = run(session, target, source, Plan(source.name, depth=3, width=width), rule)
    assert [len(step.tokens) for step in steps] == [1, 4, 4, 4, 4, 4, 1]
    assert [step.accepted for step in steps] == [0, 3, 3, 3, 3, 3, 0]
    assert target.passes == 7
    if width == 1:
        assert [step.tested for step in steps] == [step.accepted for step in steps]


# Statistics of a generation, from steps made by hand and by the loop.

PLAN = Plan("model", depth=3)


def branched() -> TokenTree:
    """0 ─ 1 ─ 2 from the model, 3 and 4 from the n-gram: 3 beside 0, 4 beside 1."""
    tree = TokenTree()
    node = tree.add(5, ROOT, "model")
    node = tree.add(6, node, "model")
    tree.add(7, node, "model")
    tree.add(8, ROOT, "ngram")
    tree.add(9, 0, "ngram")
    return tree


def test_tokens_are_counted_by_drafter_and_by_position() -> None:
    stats = GenerationStats()
    stats.add(step_of(PROMPT))
    stats.add(step_of(PLAN, branched(), path=[0, 4], tests=[0, 1, 4]))
    stats.add(step_of(PLAN, branched(), path=[0, 1, 2], tests=[0, 1, 2]))
    stats.add(step_of(PLAN, branched(), path=[3], tests=[0, 3]))
    assert (stats.drafted, stats.tested, stats.accepted) == (15, 8, 6)
    assert (stats.generated_tokens, stats.target_passes) == (1 + 3 + 4 + 2, 4)
    assert stats.acceptance_rate == pytest.approx(6 / 8)
    assert stats.tokens_per_pass == pytest.approx(10 / 4)
    assert stats.by_drafter == {"model": DrafterStats(9, 6, 4), "ngram": DrafterStats(6, 2, 2)}
    assert stats.tested_per_position == [4, 3, 1]
    assert stats.accepted_per_position == [3, 2, 1]
    figures = json.loads(json.dumps(stats.as_dict()))
    assert figures["acceptance_rate"] == stats.acceptance_rate
    assert figures["by_drafter"]["ngram"] == {"drafted": 6, "tested": 2, "accepted": 2}


def test_seconds_of_prompt_and_decoding_are_separate() -> None:
    stats = GenerationStats()
    stats.add(step_of(PROMPT, seconds=(9.0, 8.0, 0.0)))
    stats.add(step_of(PLAN, branched(), path=[0], tests=[0, 1, 4], seconds=(4.0, 2.0, 1.5)))
    stats.add(step_of(Plan(None, reason="none"), seconds=(2.0, 1.75, 0.0)))
    assert (stats.prompt_seconds, stats.decode_seconds) == (9.0, 6.0)
    parts = stats.verify_seconds, stats.draft_seconds, stats.overhead_seconds
    assert parts == pytest.approx((3.75, 1.5, 0.75))
    assert stats.tokens_per_second == pytest.approx(3 / 6.0), "the prompt's token is left out"


def test_reasons_of_steps_without_drafts_are_counted() -> None:
    stats = GenerationStats()
    for plan in (PROMPT, Plan(None, reason="resting"), Plan(None, reason="resting")):
        stats.add(step_of(plan))
    stats.add(step_of(PLAN)._replace(draft=Draft(TokenTree(), "the model is speechless")))
    stats.add(step_of(PLAN, branched(), path=[], tests=[0, 3]))
    assert stats.reasons == {"resting": 2, "the model is speechless": 1}
    assert stats.drafted == 5


def test_accepted_padding_counts_for_the_target() -> None:
    def propose(session: Session, plan: Plan, tree: TokenTree) -> None:
        tree.pad(2, tree.pad(1, tree.add(0, tree.add(2, ROOT, "toy"), "toy")))

    session = toys.session_of([0], size=3, params=toys.GREEDY, count=13)
    step = run(session, toys.ToyTarget(CYCLE), toys.ToySource(propose), Plan("toy", depth=2))[1]
    assert (step.tokens, step.path) == ([2, 0, 1, 2, 0], [0, 1, 2, 3])
    assert step.sources == ["toy", "toy", TARGET, TARGET, TARGET]
    assert step.tree.sources == ["toy", "toy", PADDING, PADDING]
    assert (step.drafted, step.tested, step.accepted) == (2, 2, 2)
    stats = GenerationStats()
    stats.add(step)
    assert stats.by_drafter == {"toy": DrafterStats(2, 2, 2)}
    assert (stats.tested_per_position, stats.generated_tokens) == ([1, 1], 5)

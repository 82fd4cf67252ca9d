"""Reading ahead during verification."""

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile

import pytest
from hypothesis import given

from localspec.decoding.acceptance import AcceptanceRule, GreedyMatch
from localspec.decoding.interfaces import PassRequest, PassResult
from localspec.decoding.loop import drive, speculate
from localspec.decoding.sampling import Rows
from localspec.drafters.draft_model import DraftModel, RowsAhead
from localspec.drafters.parallel import ParallelReader
from localspec.errors import Cancelled
from localspec.policy.reasons import LEADING
from tests.decoding.exact import EXACT, MODEL, REPEATS, gap, texts
from tests.policy.builders import Pair, distribution_of
from tests.policy.test_policy_lossless import (
    check_greedy,
    for_drafts,
    for_rules,
    generated,
    plain_greedy,
    random_prompt,
    some_models,
)
from tests.support import toys


class CompleteReader(ParallelReader):
    """Reads as far as possible, as with a slow target."""

    def stop(self) -> None:
        if self._running is not None:
            self._running.exception()
        super().stop()


class SingleRowReader(ParallelReader):
    """Reads a single row, as with a fast target."""

    def _read(self, context: Sequence[int]) -> RowsAhead | None:
        self._stopping.set()
        return super()._read(context)


@pytest.fixture
def readers() -> Iterator[list[ParallelReader]]:
    made: list[ParallelReader] = []
    yield made
    for reader in made:
        reader.close()


def make_one_of(
    kind: type[ParallelReader], readers: list[ParallelReader]
) -> Callable[[DraftModel], ParallelReader]:
    """A function that makes readers and closes the ones before."""

    def make(model: DraftModel) -> ParallelReader:
        while readers:
            readers.pop().close()
        readers.append(kind(model))
        return readers[-1]

    return make


for_kinds = pytest.mark.parametrize("kind", [CompleteReader, SingleRowReader])


@for_kinds
@for_rules
@for_drafts
@pytest.mark.parametrize("shape", ["flat", "tiles"])
@toys.examples(2)
@given(draft=toys.models())
def test_sampled_text_is_the_targets(
    kind: type[ParallelReader],
    rule: AcceptanceRule,
    sampled: bool,
    shape: str,
    draft: toys.ToyModel,
) -> None:
    made: list[ParallelReader] = []
    pair = Pair(draft, shape=shape, sampled=sampled, ahead=make_one_of(kind, made))
    found = distribution_of(MODEL, pair, rule, prompt=REPEATS, count=4)
    assert gap(found, texts(MODEL, REPEATS, 4)) < EXACT
    made.pop().close()


@for_kinds
@pytest.mark.parametrize("shape", ["flat", "tiles", "steep"])
@pytest.mark.parametrize("most_leaves", [1, 8])
def test_greedy_text_is_the_targets(
    kind: type[ParallelReader], shape: str, most_leaves: int, readers: list[ParallelReader]
) -> None:
    ahead = make_one_of(kind, readers)
    answers = check_greedy(lambda draft: Pair(draft, shape, most_leaves=most_leaves, ahead=ahead))
    overlapping = [any(step.plan.overlaps for step in steps) for steps in answers]
    assert all(overlapping) or shape == "steep"


def test_reading_ahead_hides_the_time_of_the_draft_model(readers: list[ParallelReader]) -> None:
    """A draft model that is always right reads everything during verification."""
    model, prompt = some_models(2)[0], [0, toys.START]
    later = []
    for ahead in (None, make_one_of(CompleteReader, readers)):
        pair = Pair(model, shape="flat", most_leaves=1, max_draft=2, ahead=ahead)
        text, steps = generated(model, pair, prompt)
        assert text == plain_greedy(model, prompt)
        # Until the text repeats itself, and is copied.
        leading = list(takewhile(lambda step: step.plan.reason == LEADING, steps[1:]))
        assert len(leading) > 3
        later.append(sum(step.draft_seconds for step in leading[1:]))
    assert later[0] > 3.0
    assert later[1] == 0.0, "only the first step finds nothing read"
    assert pair.cache is not None
    assert readers[-1].native_seconds > 0.0
    assert readers[-1].native_seconds < pair.cache.native_seconds


class InterruptedTarget(toys.ToyTarget):
    def __init__(self, model: toys.ToyModel, at: int, error: BaseException) -> None:
        super().__init__(model, max_leaves=8)
        self._at = at
        self._error = error

    def forward(self, request: PassRequest) -> PassResult:
        if self.passes == self._at:
            self._at = -1
            raise self._error
        return super().forward(request)


@for_kinds
@pytest.mark.parametrize("at", [1, 2, 3, 5])
@pytest.mark.parametrize("error", [Cancelled("stop"), MemoryError(), KeyboardInterrupt()])
def test_caches_are_consistent_after_an_error_of_the_target(
    kind: type[ParallelReader], at: int, error: BaseException, readers: list[ParallelReader]
) -> None:
    for seed in range(8):
        (model, draft), prompt = some_models(seed), random_prompt(seed)
        pair = Pair(
            draft, shape="flat", most_leaves=1, max_draft=3, ahead=make_one_of(kind, readers)
        )
        drafter = pair.build(greedy=True)
        target, session = (
            InterruptedTarget(model, at, error),
            toys.session_of(prompt, params=toys.GREEDY, count=24),
        )
        drafter.begin(prompt)
        with pytest.raises(type(error)):
            list(drive(session, speculate(session, drafter, GreedyMatch()), target))
        assert session.context == plain_greedy(model, prompt)[: len(session.context)]
        assert target.cache == session.context[: len(target.cache)]
        assert pair.cache is not None
        assert pair.cache.tokens == session.context[: len(pair.cache.tokens)]
        list(drive(session, speculate(session, drafter, GreedyMatch()), target))
        assert session.context == plain_greedy(model, prompt)


class CancelledCache(toys.ToyCache):
    """A cache whose passes in other threads are cancelled from the fourth on."""

    left = 3

    def extend(self, tokens: Sequence[int], outputs: int = 1) -> Rows:
        if threading.current_thread() is not threading.main_thread():
            self.left -= 1
            if self.left < 0:
                raise Cancelled("stop")
        return super().extend(tokens, outputs)


def test_cancelled_reading_is_dropped(readers: list[ParallelReader]) -> None:
    for seed in range(8):
        cache = CancelledCache(some_models(seed)[1])
        reader = make_one_of(CompleteReader, readers)(DraftModel(cache, 4))
        reader.start([0, 1], [2])
        reader.stop()
        assert reader.take([0, 1, 2]) is None
        assert len(cache.tokens) == 5
        assert reader.native_seconds == 3.0
        reader.start(cache.tokens, [0])
        reader.stop()
        assert not reader.holds([*cache.tokens, 0])

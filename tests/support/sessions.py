"""Running the loop over an engine's models from token ids, below the public API."""

from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

import localspec
from localspec import Drafting, Engine, ModelOptions, SamplingParams
from localspec.decoding.interfaces import Step
from localspec.decoding.loop import speculate
from localspec.decoding.random_source import SeededRandom
from localspec.decoding.rules import acceptance_rule
from localspec.decoding.sampling import Sampler
from localspec.decoding.session import Session
from localspec.drafters.composition import compose, sources
from localspec.llama.cores import default_threads
from localspec.llama.model import Model
from localspec.policy.cost_curve import CostCurve
from localspec.policy.profile import PairProfile
from tests.policy.measuring import FixedCurve
from tests.support import inside


def a_session(
    engine: Engine,
    tokens: Sequence[int],
    count: int,
    sampling: SamplingParams,
    random: SeededRandom | None = None,
) -> Session:
    """A session that may add `count` tokens."""
    vocabulary = engine.model.vocabulary
    return Session(
        tokens,
        Sampler(sampling, vocabulary.size),
        random or SeededRandom(sampling.seed or 0),
        limit=len(tokens) + count,
        ends=vocabulary.ends,
    )


def steps(
    engine: Engine,
    session: Session,
    drafting: Drafting,
    *,
    clock: Callable[[], float] = perf_counter,
    profile: PairProfile | None = None,
) -> Generator[Step, None, None]:
    """The steps of the loop, with caches prepared as by the engine. Unknown costs of passes are set
    by `make_drafts_cheap`."""
    rule = acceptance_rule(
        drafting.rule, greedy=session.sampler.greedy, threshold=drafting.threshold
    )
    if not engine.profile.target:
        make_drafts_cheap(engine)
    slot = inside.slot(engine)
    drafter = compose(drafting, slot.parts, profile or engine.profile, slot.limits, session, rule)
    slot.cache.reuse(session.context)
    drafter.begin(session.context)
    return speculate(session, drafter, rule, slot.cache, clock=clock)


class FixedCosts(CostCurve):
    """Fixed costs: measured seconds change only the pace of the machine, by which the planner
    divides the seconds of a step."""

    def observe(self, n: int, context: int, seconds: float, *, alike: bool = True) -> None:
        self.set_pace(seconds / self.seconds(n, context))


def drafting_pair(model: Path | None = None, **options: Any) -> Engine:
    """An open pair with fixed costs of passes and a fixed count of threads."""
    engine = localspec.load(model, **{"threads": default_threads()} | options)
    make_drafts_cheap(engine)
    return engine


def module_pair(**options: Any) -> Any:
    """A fixture: an open pair for all tests of a module."""

    @pytest.fixture(scope="module")
    def pair() -> Iterator[Engine]:
        with drafting_pair(**options) as opened:
            assert opened.parallel > 1 or "parallel" not in options
            yield opened

    return pair


def module_model(path: str, options: ModelOptions | None = None) -> Any:
    """A fixture: the model of a fixture of a path, opened for all tests of a module."""

    @pytest.fixture(scope="module")
    def model(request: pytest.FixtureRequest) -> Iterator[Model]:
        with Model(request.getfixturevalue(path), options or ModelOptions()) as opened:
            yield opened

    return model


SIZES = (1, 2, 4, 8, 16, 32)
"""Sizes of passes with fixed costs; others are interpolated."""


def target_seconds(tokens: int) -> float:
    return 0.02 + 1e-4 * tokens


def make_drafts_cheap(engine: Engine, *, draft: float = 0.001) -> None:
    """Replace measurements by fixed costs at which the adaptive planner drafts a lot. The gain of
    the built-in pair's drafts would depend on the machine and its load."""
    engine.forget()
    profile = engine.profile
    # localspec's own work is not fixed; the pace would multiply it.
    profile.step_overhead = profile.row_overhead = profile.OVERHEAD_RATE = 0.0
    profile.target = FixedCosts()
    profile.target.learn({n: target_seconds(n) for n in SIZES}, 0)
    for source in sources(inside.slot(engine).parts)[1]:
        costs = profile.source(source).costs = FixedCurve()
        costs.learn(dict.fromkeys(SIZES, draft), 0)

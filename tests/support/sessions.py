"""Running the loop over an engine's models from token ids, below the public API."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from localspec import Drafting, Engine, SamplingParams
from localspec.decoding.dice import Dice, SeededDice
from localspec.decoding.loop import Step, speculate
from localspec.decoding.rules import acceptance_rule
from localspec.decoding.sampling import Sampler
from localspec.decoding.session import Session
from localspec.drafting import choose


def a_session(
    engine: Engine,
    tokens: Sequence[int],
    count: int,
    sampling: SamplingParams,
    dice: Dice | None = None,
) -> Session:
    """A session that may add `count` tokens."""
    vocabulary = engine.model.vocabulary
    return Session(
        tokens,
        Sampler(sampling, vocabulary.size),
        dice or SeededDice(sampling.seed or 0),
        limit=len(tokens) + count,
        ends=vocabulary.ends,
    )


def steps(engine: Engine, session: Session, drafting: Drafting) -> Generator[Step, None, None]:
    """The steps of the loop, caches prepared as the engine prepares them."""
    planner, drafters = choose(drafting, engine._parts, cannot=None)
    rule = acceptance_rule(
        drafting.rule, greedy=session.sampler.greedy, threshold=drafting.threshold
    )
    engine._target.reuse(session.context)
    for drafter in drafters.values():
        drafter.begin(session.context)
    return speculate(session, engine._target, drafters, planner, rule)

"""The hindsight bound of a measured pair, suite by suite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Protocol

from localspec.bench.arms import PLAIN
from localspec.bench.oracle import MOST_DEPTH, best_time, hardware_bound, trace
from localspec.bench.samples import BenchPrompt, Sample

if TYPE_CHECKING:
    from localspec.engine import Engine


class PassCosts(Protocol):
    """What a pass costs."""

    def seconds(self, tokens: int, context_length: int, /) -> float:
        """Of one pass over `tokens` with so many in the cache."""
        ...


@dataclass(frozen=True, slots=True)
class Bound:
    """The bound on one suite, greedy.

    Attributes:
        speed_up: against plain decoding on the same cost curve, so that an error common to all its
            points cancels out.
        tokens: of the answers.
        seconds: in the best case.
    """

    suite: str
    speed_up: float
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Bounds:
    """All bounds of a pair.

    Attributes:
        hardware: max n·T(1) ÷ T(n).
        curve: seconds of a target pass by its tokens, at a middling context length.
    """

    suites: list[Bound]
    hardware: float
    curve: dict[int, float]


def find_bounds(
    engine: Engine,
    target: PassCosts,
    draft: PassCosts | None,
    samples: Sequence[Sample],
    prompts: Sequence[BenchPrompt],
) -> Bounds | None:
    """Trace plain's greedy answers and work out what the best decisions would have made of them.

    Returns:
        None where there are no such answers.
    """
    texts = {(prompt.suite, prompt.id): prompt.text for prompt in prompts}
    answers: dict[tuple[str, str], Sample] = {}
    for sample in samples:
        key = (sample.suite, sample.prompt)
        if sample.arm == PLAIN and sample.temperature == 0 and sample.tokens > 0 and key in texts:
            answers.setdefault(key, sample)
    if not answers:
        return None
    own = median((s.overhead_seconds or 0.0) / (s.passes or 1) for s in answers.values())
    sums: dict[str, tuple[int, float, float]] = {}
    lengths = []
    for key, sample in answers.items():
        tokens = prompt_tokens(engine, texts[key])
        reach = trace(engine, tokens, sample.token_ids)
        held = len(tokens) + sample.tokens // 2
        lengths.append(held)
        plain = sample.tokens * (target.seconds(1, held) + own)
        best = _best(target, draft, reach, sample.tokens, held, own)
        before = sums.get(sample.suite, (0, 0.0, 0.0))
        sums[sample.suite] = (before[0] + sample.tokens, before[1] + plain, before[2] + best)
    middle = int(median(lengths))
    curve = {n: target.seconds(n, middle) for n in range(1, MOST_DEPTH + 2)}
    return Bounds(
        [Bound(suite, plain / best, n, best) for suite, (n, plain, best) in sums.items()],
        hardware_bound(curve.__getitem__),
        curve,
    )


def prompt_tokens(engine: Engine, text: str) -> list[int]:
    """Token ids of a raw prompt, as `Engine.stream` makes them."""
    return engine.model.vocabulary.tokenize(text, special=True, add_bos=True)


def _best(
    target: PassCosts,
    draft: PassCosts | None,
    reach: Mapping[str, Sequence[int]],
    length: int,
    held: int,
    own: float,
) -> float:
    costs = {"ngram": 0.0}
    if draft is not None and "model" in reach:
        costs["model"] = draft.seconds(1, held)
    return best_time(length, lambda n: target.seconds(n, held), costs, reach, own)

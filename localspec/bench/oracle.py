"""The hindsight bound: how fast the same drafters could have been, every decision the best.

Pure functions over traces, and the tracer that records them from an engine and a greedy answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from localspec.drafters.draft_model import DraftModel
    from localspec.engine import Engine

Curve = Callable[[int], float]
"""Seconds of one target pass over n tokens."""

MOST_DEPTH = 63
"""The tracer looks as far as one pass of 64 tokens verifies."""
_PIECE = 64
"""Tokens that the draft model reads at once; a context gives no more rows than one beyond."""
_SHORTEST_MATCH = 2


def best_time(
    length: int,
    curve: Curve,
    draft_seconds: Mapping[str, float],
    reach: Mapping[str, Sequence[int]],
    overhead: float = 0.0,
    *,
    most_depth: int = MOST_DEPTH,
) -> float:
    """Seconds that the best possible sequence of drafts takes for an answer.

    Dynamic programming from the end: at every position any drafter may draft any number of tokens,
    or none may. Only chains of one drafter are considered, and a drafter pays for the tokens it
    drafts, not for catching up: combinations could in principle be faster, a real run is slower.

    Args:
        length: tokens of the answer after the first, which comes with the prompt.
        curve: seconds of a pass over n tokens.
        draft_seconds: of each drafter, per drafted token.
        reach: of each drafter, for each position: how many of its tokens would be accepted there.
        overhead: seconds of each step beside the passes.
        most_depth: longest draft.
    """
    # A pass yields accepted tokens and one more. Drafting beyond what will be accepted can still
    # be the cheapest: a pass over 4 may cost less than one over 3.
    passes = [curve(depth + 1) + overhead for depth in range(most_depth + 1)]
    costs = {
        name: [passes[d] + d * seconds for d in range(most_depth + 1)]
        for name, seconds in draft_seconds.items()
    }
    at_least = {name: _minimum_from(cost) for name, cost in costs.items()}
    best = [0.0] * (length + 1)
    for position in range(length - 1, -1, -1):
        found = passes[0] + best[position + 1]
        for name, cost in costs.items():
            reached = min(reach[name][position], most_depth)
            for depth in range(1, reached):
                found = min(found, cost[depth] + best[min(position + depth + 1, length)])
            beyond = at_least[name][max(reached, 1)]
            found = min(found, beyond + best[min(position + reached + 1, length)])
        best[position] = found
    return best[0]


def hardware_bound(curve: Curve, most: int = MOST_DEPTH + 1) -> float:
    """max n·T(1) ÷ T(n): the speed-up if drafts were free and always right."""
    alone = curve(1)
    return max(n * alone / curve(n) for n in range(1, most + 1))


def expected_tokens(acceptance: float, depth: int) -> float:
    """Tokens per step where each of `depth` drafted tokens is accepted with the same chance.

    (1 − a^(k+1)) ÷ (1 − a): Leviathan et al. 2023, equation 1.
    """
    if acceptance >= 1.0:
        return depth + 1.0
    return float((1.0 - acceptance ** (depth + 1)) / (1.0 - acceptance))


def trace(engine: Engine, prompt: Sequence[int], answer: Sequence[int]) -> dict[str, list[int]]:
    """What each drafter could have drafted of a finished greedy answer.

    Takes the engine's draft model for itself: do not call it while a stream is open.

    Args:
        prompt: token ids of the prompt.
        answer: token ids of the answer.

    Returns:
        By drafter, for each position after the answer's first token: how many tokens from there on
        it would have got right.
    """
    found = {"ngram": ngram_reach(prompt, answer)}
    model = engine._parts.model
    if model is not None:
        found["model"] = model_reach(model, prompt, answer)
    return found


def model_reach(model: DraftModel, prompt: Sequence[int], answer: Sequence[int]) -> list[int]:
    """The same for the draft model, from its best token at every position of the whole text."""
    if len(answer) < 2:
        return []
    model.begin(list(prompt))
    text = [*prompt, *answer]
    unread = text[len(model.cache.tokens) : -1]
    best: list[int] = []
    for start in range(0, len(unread), _PIECE):
        piece = unread[start : start + _PIECE]
        best += np.argmax(model.read(piece, len(piece)), axis=1).tolist()
    model.cache.truncate(0)  # so that the next generation starts from what it knows
    foreseen = best[1 - len(answer) :]
    return consecutive([guess == token for guess, token in zip(foreseen, answer[1:], strict=True)])


def ngram_reach(prompt: Sequence[int], answer: Sequence[int]) -> list[int]:
    """The same for the n-gram, which is asked again at every position."""
    from localspec.drafters.ngram import NgramIndex

    index = NgramIndex()
    text = [*prompt, *answer]
    found = []
    for position in range(len(prompt) + 1, len(text)):
        index.sync(text[:position])
        match = index.match()
        right = 0
        for token, _ in index.candidates(match, 1, _SHORTEST_MATCH):
            drafted = index.run(match, token, MOST_DEPTH, _SHORTEST_MATCH)
            right = _agreeing(drafted, text[position:])
        found.append(right)
    return found


def consecutive(agreements: Sequence[bool]) -> list[int]:
    """For each place how many are true from there on, without a gap."""
    found = [0] * (len(agreements) + 1)
    for place in range(len(agreements) - 1, -1, -1):
        found[place] = found[place + 1] + 1 if agreements[place] else 0
    return found[:-1]


def _agreeing(drafted: Sequence[int], came: Sequence[int]) -> int:
    pairs = list(zip(drafted, came, strict=False))
    return next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))


def _minimum_from(values: Sequence[float]) -> list[float]:
    """For each place the least value there or behind."""
    found = list(values)
    for place in range(len(found) - 2, -1, -1):
        found[place] = min(found[place], found[place + 1])
    return found

"""Whether greedy answers are what plain decoding says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from localspec.bench.arms import PLAIN
from localspec.bench.samples import Sample


@dataclass(frozen=True, slots=True)
class Equality:
    """Greedy answers of an arm against plain decoding's.

    Attributes:
        equal, total: answers equal in every token, answers compared.
        divergences: (suite, prompt, position of the first different token) of the others.
    """

    arm: str
    equal: int
    total: int
    divergences: tuple[tuple[str, str, int], ...]


def equalities(samples: Iterable[Sample], baseline: str = PLAIN) -> list[Equality]:
    """How many greedy answers of each arm that tells its tokens equal the baseline's."""
    greedy = [s for s in samples if s.temperature == 0 and s.token_ids]
    plain: dict[tuple[str, str], tuple[int, ...]] = {}
    for sample in greedy:
        if sample.arm == baseline:
            plain.setdefault((sample.suite, sample.prompt), sample.token_ids)
    found = []
    for arm in dict.fromkeys(s.arm for s in greedy):
        if arm == baseline:
            continue
        compared = [s for s in greedy if s.arm == arm and (s.suite, s.prompt) in plain]
        others: dict[tuple[str, str, int], None] = {}
        equal = 0
        for sample in compared:
            expected = plain[sample.suite, sample.prompt]
            if sample.token_ids == expected:
                equal += 1
            else:
                place = _first_difference(sample.token_ids, expected)
                others[sample.suite, sample.prompt, place] = None
        if compared:
            found.append(Equality(arm, equal, len(compared), tuple(others)))
    return found


def _first_difference(a: Sequence[int], b: Sequence[int]) -> int:
    pairs = zip(a, b, strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))

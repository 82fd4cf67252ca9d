"""Acceptance rules by name."""

from __future__ import annotations

from localspec.decoding.acceptance import (
    AcceptanceRule,
    BlockVerification,
    GreedyMatch,
    SampleMatch,
    SpeculativeSampling,
    Verdict,
    Verification,
)
from localspec.decoding.lossy import CRITERIA, LossyRule
from localspec.decoding.random_source import RandomSource
from localspec.errors import UsageError


class BestLossless(AcceptanceRule):
    """Block verification for chains, speculative sampling for trees.

    Lossless, as the choice depends on the shape of the tree only."""

    name = "auto"

    def __init__(self) -> None:
        self._chains = BlockVerification()
        self._trees = SpeculativeSampling()

    def accept(self, target: Verification, random: RandomSource) -> Verdict:
        chosen = self._chains if target.tree.is_chain() else self._trees
        return chosen.accept(target, random)


RULES: dict[str, type[AcceptanceRule]] = {
    "auto": BestLossless,
    "token": SpeculativeSampling,
    "block": BlockVerification,
    "match": SampleMatch,
}
LOSSLESS, LOSSY = tuple(RULES), tuple(CRITERIA)


def acceptance_rule(name: str, *, greedy: bool, threshold: float | None = None) -> AcceptanceRule:
    """The rule to verify with.

    Args:
        name: one of LOSSLESS or LOSSY; at temperature 0 the lossless ones are all the greedy match.
        threshold: of a lossy rule; None takes its default.

    Raises:
        UsageError: an unknown name, or a threshold that the rule does not have.
    """
    if name in CRITERIA:
        return LossyRule(name, threshold)
    if name not in RULES:
        raise UsageError(
            f"There is no acceptance rule '{name}'. Choose one of {', '.join(LOSSLESS + LOSSY)}."
        )
    if threshold is not None:
        raise UsageError(f"Rule '{name}' is lossless and has no threshold. Leave it out.")
    return GreedyMatch() if greedy else RULES[name]()

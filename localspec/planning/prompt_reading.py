"""Whether a draft model can earn back what it takes to read the prompt, before it reads any of it.

A draft model of a tenth of the target's size takes a tenth of the target's time to read a prompt.
An answer that may have a few tokens only cannot save as much, however good the drafts are; and one
of the usual length does not where drafts have hardly saved anything lately.
"""

from __future__ import annotations

from localspec.planning.pair_profile import PairProfile, SourceProfile

BEST = 0.95
"""Chance that a drafted token is right, at best: no pair is right more often in ordinary text."""
DEEPEST = 8
"""Tokens of a draft at most."""


def repays(
    profile: PairProfile, source: SourceProfile, reads: int, prompt: int, longest: int
) -> bool:
    """Whether drafts can save what reading takes: at first as the best ones would, then as this
    model's did, in an answer of the usual length.

    Args:
        source: of the draft model.
        reads: tokens that it would read.
        prompt: tokens of the prompt.
        longest: the most tokens that the answer may have.

    Returns:
        True as well where costs are not known yet.
    """
    if not profile.target or not source.costs:
        return True
    least = profile.verification_costs(prompt, DEEPEST).least
    seconds = profile.pass_seconds(source, reads)
    best, tokens = least[1], 1.0
    for depth in range(1, DEEPEST + 1):
        tokens += BEST**depth
        best = min(best, (least[depth + 1] + depth * seconds(1)) / tokens)
    # Halfway, on average, does a token of the prompt look back.
    reading = profile.pass_seconds(source, reads // 2)(reads)
    saved = source.earnings.expected(1.0 - best / least[1]) * least[1]
    return reading <= min(longest, profile.lengths.usual) * saved

"""What a draft is worth: expected tokens against the seconds they cost.

Tokens per second in the long run are maximised by taking, at every decision, what maximises
expected tokens − rate × expected seconds, where the rate is the tokens per second that are to be
had on average (the renewal-reward argument; Dinkelbach 1967 for the ratio). So every choice
becomes a sum: a draft of k tokens with chances r₁ ≥ … ≥ r_k of being reached and accepted is worth
1 + Σ r_i − rate · T(k + 1), and one more pass of a draft model has to raise that by more than
rate × its seconds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from operator import sub
from typing import NamedTuple

from localspec.decoding.tree import ROOT
from localspec.planning.costs import VerificationCosts
from localspec.planning.plan import AdaptivePlan, Candidate

FARTHEST = 4
"""Draft passes looked ahead: T(n) has its dips every four tokens."""


class Bid(NamedTuple):
    """What one of several answers would have verified, for who decides about all of them.

    Attributes:
        reaches: of its candidates, in the order in which they are taken.
        firm: how many of these are verified whatever that costs: what was drawn.
        rate: tokens per second to be had.
        spare: seconds that may be lost by verifying in vain.
    """

    reaches: list[float]
    firm: int
    rate: float
    spare: float


class DraftValue:
    """Worth of drafts at one place of a text, in tokens; see the head of this file.

    A candidate's reach is its chance of being accepted at all.
    """

    __slots__ = (
        "_count",
        "_drawn",
        "_leaves",
        "_limit",
        "_most",
        "_onward",
        "_prices",
        "_rate",
        "_size",
        "_spare",
        "least",
    )

    def __init__(self, plan: AdaptivePlan) -> None:
        assert plan.costs is not None
        self.least = plan.costs.least
        self._size = plan.costs.size
        self._rate = plan.rate
        self._most = self._limit = plan.depth
        self._spare = plan.spare
        # Of verifying nothing, one, two … candidates, in tokens: as many as may be verified.
        self._prices = [plan.rate * seconds for seconds in self.least[1 : plan.depth + 2]]
        self.spend(0.0)
        self._leaves = plan.leaves
        self._drawn = plan.drawn
        self._onward = plan.onward
        self._count: int | None = None

    def spend(self, seconds: float) -> None:
        """Count seconds of a draft pass: so much less may be lost by verifying."""
        self._spare -= seconds
        least = self.least
        if least[min(self._most, len(least) - 2) + 1] - least[1] > self._spare:
            self._most = max(0, bisect_right(least, least[1] + self._spare, 2) - 2)
            del self._prices[self._most + 1 :]

    def reprice(self, costs: VerificationCosts, count: int | None = None) -> None:
        """Take what verifying costs by now for what it cost when the step was planned; `count` of
        the candidates are then verified, where that was decided for several answers at once."""
        self.least, self._size, self._count = costs.least, costs.size, count
        self.spend(0.0)

    def affords(self, seconds: float, count: int) -> bool:
        """Whether so many candidates may still be verified after a pass of so many seconds, even
        if nothing of it is accepted."""
        least = self.least
        if count + 1 >= len(least):
            return False
        return seconds + least[count + 1] - least[1] <= self._spare

    def of(self, reaches: Sequence[float], further: Sequence[float] = ()) -> float:
        """What is best verified of candidates, all of them where they were drawn.

        Args:
            reaches: quickest if they ascend; `further` are a few more, in any order.
        """
        reaches = [*reaches, *further]
        if self._drawn:
            size = min(len(reaches), self._limit) + 1
            return 1.0 + sum(reaches) - self._rate * self.least[size]
        reaches.sort()
        reaches.reverse()
        # This runs for every pass that is thought of: no loop is spelled out.
        best: float = max(map(sub, accumulate(reaches, initial=1.0), self._prices))
        return best

    def grows(
        self,
        now: float,
        reaches: Sequence[float],
        known: Sequence[float],
        reach: float,
        one: float,
        room: int,
    ) -> bool:
        """Whether some number of further passes of a draft model is worth more than `now`.

        Args:
            reaches: of the candidates that there are; `known` are further ones to count.
            reach: of the candidate that the first pass reads.
            one: cost of a pass, in tokens.
            room: levels of further candidates.
        """
        further, cost = list(known), 0.0
        for _ in range(min(FARTHEST, room - len(known))):
            reach *= self._onward
            cost += one
            if reach + 0.2 < cost and not self._drawn:
                break  # what is left to gain is less than what is spent
            further.append(reach)
            if self.of(reaches, further) - cost > now:
                return True
        return False

    def prospect(self, chance: float, onward: float, one: float) -> float:
        """Tokens that a draft gains whose first token has this chance, and each further one that
        one behind right ones, at `one` token a further pass, before the first pass."""
        least, rate = self.least, self._rate
        reach, drafted, spent, best = chance, 0.0, 0.0, 0.0
        plain = 1.0 - rate * least[1]
        for seconds in least[2 : 2 + min(FARTHEST, self._limit)]:
            drafted += reach
            gain = 1.0 + drafted - rate * seconds - spent - plain
            if gain > best:
                best = gain
            reach *= onward
            spent += one
        return best

    def select(self, candidates: Sequence[Candidate]) -> tuple[list[int], int]:
        """Which candidates are verified, in order, and how much padding makes the pass cheaper."""
        order, reaches, firm = self._ordered(candidates)
        if self._count is not None:
            return sorted(order[: self._count]), 0
        best, most = 1.0 - self._rate * self.least[1], self._most
        if firm:
            best = float("-inf")  # what was drawn is verified
            most = max(most, firm)  # it was only drawn where that was covered
        count, total = 0, 1.0
        for n, number in enumerate(order[:most], 1):
            total += reaches[number]
            if n < firm:
                continue
            worth = total - self._rate * self.least[n + 1]
            if worth > best:
                best, count = worth, n
        free = max(0, min(self._size[count + 1], self._limit + 1) - 1 - count) if count else 0
        kept = sorted(order[: count + free])
        return kept, count + free - len(kept)

    def bid(self, candidates: Sequence[Candidate]) -> Bid:
        """What `select` would choose from."""
        order, reaches, firm = self._ordered(candidates)
        taken = [reaches[number] for number in order[: max(firm, self._limit)]]
        return Bid(taken, firm, self._rate, self._spare)

    def _ordered(self, candidates: Sequence[Candidate]) -> tuple[list[int], list[float], int]:
        """The candidates in the order in which they are taken, the reach of each, and how many have
        to be taken."""
        order: list[int] = list(range(len(candidates)))
        reaches = [candidate.reach for candidate in candidates]
        if self._drawn:
            return order, reaches, sum(one.proposal is not None for one in candidates)
        # Parents are at least as likely as their children, and come first among equals.
        order.sort(key=reaches.__getitem__, reverse=True)
        return self._fitting(candidates, order), reaches, 0

    def _fitting(self, candidates: Sequence[Candidate], order: Sequence[int]) -> list[int]:
        """The candidates, best first, without those that would make a branch too many.

        Every beginning of the result is a tree of at most so many branches as fit.
        """
        kept: set[int] = set()
        above: set[int] = set()
        leaves = 0
        found = []
        for number in order:
            parent = candidates[number].parent
            if parent != ROOT and parent not in kept:
                continue
            branches = parent in above or (parent == ROOT and leaves == 0)
            if branches and leaves == self._leaves:
                continue
            leaves += branches
            kept.add(number)
            above.add(parent)
            found.append(number)
        return found

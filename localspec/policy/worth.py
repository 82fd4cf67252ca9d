"""The worth of a draft: expected tokens, less the cost in seconds.

Tokens per second are maximised in the long run by maximising, at every decision, expected tokens −
rate × expected seconds, where the rate is the tokens per second on average (Dinkelbach 1967). A
draft with path probabilities r₁ ≥ … ≥ r_k is worth 1 + Σ r_i − rate · T(k + 1), and one more pass
of a draft model has to raise that by more than rate × its seconds.
"""

from collections.abc import Sequence
from itertools import accumulate
from operator import sub
from typing import NamedTuple

FARTHEST = 4
"""Draft passes to look ahead: where kernels work in tiles of four, T(n) dips every four tokens."""


class Bid(NamedTuple):
    """The candidates of one of several answers, for a shared pass.

    Attributes:
        reaches: path probabilities of its candidates, in the order of choice.
        firm: how many of these are mandatory, as they were drawn.
        rate: attainable tokens per second.
        spare: seconds that may be lost if nothing is accepted.
    """

    reaches: list[float]
    firm: int
    rate: float
    spare: float


class Worth:
    """Worth of drafts at one position, in tokens; `plain` is that of plain decoding.

    Args:
        seconds: of a pass of the target by number of tokens, from 1 on.
        rate: attainable tokens per second on average.
        spare: seconds that the step may take beyond a plain one if nothing is accepted.
        firm: whether all candidates are verified, as they were drawn.
    """

    __slots__ = ("_firm", "_prices", "plain", "rate", "seconds", "spare")

    def __init__(
        self, seconds: Sequence[float], rate: float, spare: float, *, firm: bool = False
    ) -> None:
        self.seconds, self.rate, self.spare = seconds, rate, spare
        self._firm = firm
        self.plain = 1.0 - rate * seconds[1]
        self._prices: list[float] = []  # computed on demand, as most steps draft nothing

    def spend(self, seconds: float) -> None:
        """Deduct the seconds of a draft pass from what may be lost by verifying."""
        self.spare -= seconds
        self._prices = []

    def _affordable(self) -> list[float]:
        """Costs, in tokens, of passes of the target over 1, 2 … tokens, as far as affordable."""
        if not self._prices:
            costs, most = self.seconds, len(self.seconds) - 1
            while most > 1 and costs[most] - costs[1] > self.spare:
                most -= 1
            self._prices = [self.rate * each for each in costs[1 : most + 1]]
        return self._prices

    def affords(self, seconds: float, count: int) -> bool:
        """Whether `count` candidates can still be verified after a draft pass of `seconds`."""
        costs = self.seconds
        return count + 1 < len(costs) and seconds + costs[count + 1] - costs[1] <= self.spare

    def of(self, reaches: Sequence[float], further: Sequence[float] = ()) -> float:
        """Worth of the best number of these candidates, or of all of them if they are firm."""
        reaches = [*reaches, *further]
        if self._firm:
            count = min(len(reaches), len(self.seconds) - 2)
            return 1.0 + sum(reaches) - self.rate * self.seconds[count + 1]
        reaches.sort(reverse=True)
        # Hot path: runs for every pass considered, so built-ins replace an explicit loop.
        best: float = max(map(sub, accumulate(reaches, initial=1.0), self._affordable()))
        return best

    def count(self, reaches: Sequence[float], firm: int = 0) -> int:
        """The number of these candidates, in order, that is best to verify; at least `firm`."""
        best, count, total, most = self.plain, 0, 1.0, len(self._affordable()) - 1
        if firm:
            best, count, total = float("-inf"), firm, 1.0 + sum(reaches[: firm - 1])
        for n in range(max(1, firm), min(len(reaches), max(most, firm)) + 1):
            total += reaches[n - 1]
            seconds = self.seconds[n + 1]
            worth = total - self.rate * seconds
            if worth > best and (seconds - self.seconds[1] <= self.spare or n == firm):
                best, count = worth, n
        return count

    def further_passes_pay(
        self,
        now: float,
        reaches: Sequence[float],
        known: Sequence[float],
        reach: float,
        continuation: float,
        one: float,
        room: int,
    ) -> bool:
        """Whether some number of further draft passes is worth more than `now`.

        Args:
            reaches, known: of the existing candidates, and of further ones to include.
            reach: of the candidate that the first pass reads.
            continuation: probability of each further token, if those before it are accepted.
            one: seconds of a pass.
            room: levels of further candidates.
        """
        further, price, spent = list(known), self.rate * one, 0.0
        for _ in range(min(FARTHEST, room - len(known))):
            reach *= continuation
            spent += price
            if reach + 0.2 < spent and not self._firm:
                return False  # the remaining gain cannot cover the cost
            further.append(reach)
            if self.of(reaches, further) - spent > now:
                return True
        return False

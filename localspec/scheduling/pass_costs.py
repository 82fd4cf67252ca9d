"""What shared passes cost, who pays for them, and which candidates they verify.

Of the candidates of all answers the N likeliest are verified, for the N that maximises expected
tokens − rate × T(answers + N) (goodput: Liu et al. 2024, TurboSpec).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heapreplace

from localspec.llama.native_context import PassWatch
from localspec.policy.baseline import Baseline
from localspec.policy.cost_curve import CostCurve
from localspec.policy.profile import PairProfile
from localspec.policy.worth import Bid
from localspec.scheduling.task import Request, Wait

MOST = 64  # rows of a pass that are considered


class SharedCosts:
    """Shares out the seconds of passes, and learns from them what passes cost.

    Attributes:
        baselines: of passes without any draft, by the number of answers.
    """

    def __init__(
        self, profile: PairProfile, watches: Mapping[Wait, PassWatch | None] | None = None
    ) -> None:
        self.profile = profile
        self._watches = watches or {}
        self.baselines: dict[int, Baseline] = {}
        self._unconfirmed = 0

    def doubtful(self, answers: int) -> bool:
        """Whether it is time for a pass without any draft, which tells what those cost."""
        told = self.baselines.get(answers)
        return self._unconfirmed >= CostCurve.OVERDUE or (told is not None and told.open)

    @property
    def confirmed(self) -> bool:
        """Whether the latest shared pass was one."""
        return self._unconfirmed == 0

    def weigh(self, wait: Wait, requests: Sequence[Request]) -> list[float]:
        """Each answer's share of a pass: an equal part of a pass over one token each, and of the
        rest by its further tokens."""
        sizes = [request.tokens for request in requests]
        k, n = len(sizes), sum(sizes)
        if n == k or wait is not Wait.TARGET or not self.profile.target:
            return [float(size) for size in sizes]
        context, seconds = _context(requests), self.profile.target.seconds
        base = seconds(k, context)
        further = max(0.0, seconds(n, context) - base) / (n - k)
        return [base / k + (size - 1) * further for size in sizes]

    def grant(self, bids: Sequence[Request], beside: Sequence[Request]) -> None:
        """Decide how much of all drafts is verified in the pass that they share with others."""
        asked = [request.bid for request in bids if request.bid is not None]
        rows = len(asked) + sum(request.tokens for request in beside if not request.long)
        context = sum(request.tokens for request in bids) // len(bids)
        most = max(MOST - rows, sum(bid.firm for bid in asked))
        costs, own = self.profile.target.row(rows + most, context), self.profile.row_overhead
        further = [costs[rows + n] - costs[rows] + n * own for n in range(most + 1)]
        counts, each = share_out(asked, further)
        for request, count in zip(bids, counts, strict=True):
            request.granted = count, each

    def passed(self, wait: Wait, requests: Sequence[Request], seconds: float) -> None:
        """Learn from a pass."""
        tokens, context = sum(request.tokens for request in requests), _context(requests)
        watch, target = self._watches.get(wait), self.profile.target
        if watch is not None:
            watch.passed(tokens, context, seconds)
        if wait is not Wait.TARGET or not target or any(request.long for request in requests):
            return
        if len(requests) == 1:
            # Of an answer alone its planner learns, which knows what the pass was for.
            if not requests[0].task.alone:
                target.observe(tokens, context, seconds, alike=False)
            return
        if tokens == len(requests):
            told = self.baselines.setdefault(tokens, Baseline(target.pace))
            told.observe(seconds / target.seconds(tokens, context))
            self._unconfirmed = 0
        else:
            self._unconfirmed += 1
        target.observe(tokens, context, seconds)


def share_out(bids: Sequence[Bid], further: Sequence[float]) -> tuple[list[int], float]:
    """How many candidates of each bid are verified, in its own order, and the mean seconds of a
    row, which each is charged. No answer loses more than its `spare` if nothing is accepted.

    Args:
        further: seconds that so many rows more add to the pass, from 0 on; only firm candidates may
            go beyond its end.
    """
    most = len(further) - 1
    firm = sum(bid.firm for bid in bids)
    rate = max(bid.rate for bid in bids)
    caps = [len(bid.reaches) for bid in bids]
    while True:
        taken = _merged(bids, caps, most - firm)
        worth, best, count = 0.0, -rate * further[min(firm, most)], 0
        for n, number in enumerate(taken, 1):
            worth += bids[number[0]].reaches[number[1]]
            if worth - rate * further[firm + n] > best:
                best, count = worth - rate * further[firm + n], n
        counts = [bid.firm for bid in bids]
        for index, _ in taken[:count]:
            counts[index] += 1
        rows = sum(counts)
        each = further[min(rows, most)] / rows if rows else 0.0
        over = [
            i for i, bid in enumerate(bids) if counts[i] > bid.firm and counts[i] * each > bid.spare
        ]
        if not over:
            return counts, each
        for i in over:
            caps[i] = max(bids[i].firm, min(counts[i] - 1, int(bids[i].spare / each)))


def _merged(bids: Sequence[Bid], caps: Sequence[int], most: int) -> list[tuple[int, int]]:
    """Bid and place of the candidates that are not firm, the likeliest next one first."""
    heap = [
        (-bid.reaches[bid.firm], i, bid.firm) for i, bid in enumerate(bids) if caps[i] > bid.firm
    ]
    heapify(heap)
    found: list[tuple[int, int]] = []
    while heap and len(found) < most:
        _, i, place = heap[0]
        found.append((i, place))
        if place + 1 < caps[i]:
            heapreplace(heap, (-bids[i].reaches[place + 1], i, place + 1))
        else:
            heappop(heap)
    return found


def _context(requests: Sequence[Request]) -> int:
    """Tokens before those of a pass, on average."""
    starts = [request.part.positions[0] for request in requests if request.part is not None]
    return sum(starts) // max(1, len(starts))

"""Which candidates of several answers are verified in the pass that they share.

Of all candidates the N likeliest are taken, for the N that maximises expected tokens − rate ×
T(answers + N) (goodput: Liu et al. 2024, TurboSpec).
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace

from localspec.policy.worth import Bid


def share_out(bids: Sequence[Bid], further: Sequence[float]) -> tuple[list[int], float]:
    """How many candidates of each bid are verified, in its own order.

    Args:
        further: seconds that so many rows more add to the pass, from 0 on; only firm candidates may
            go beyond its end.

    Returns:
        A count for each bid, and the mean seconds of a row, which each is charged. No answer loses
        more than its `spare` if nothing of its draft is accepted.
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

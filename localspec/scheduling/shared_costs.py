"""Costs of shared passes, their division among answers, and the selection of candidates to verify.

Of the candidates of all answers the N likeliest are verified, for the N that maximises expected
tokens − rate × T(answers + N) (goodput: Liu et al. 2024, TurboSpec). Before all have drafted, each
of k answers expects

    cost of n rows = T(k) / k + min(T(others + n) - T(others + 1),
                                    (T(others + 1 + k (n - 1)) - T(others + 1)) / k):

its part of a pass without drafts, plus the cost of its further rows, the lower of two cases:
no other answer drafts, or all draft as much. The others count with the rows that they have
requested, or with one each.
"""

from collections.abc import Callable, Sequence
from heapq import merge
from itertools import islice

from localspec.policy.baseline import Baseline
from localspec.policy.cost_curve import CostCurve
from localspec.policy.profile import PairProfile
from localspec.policy.worth import Bid
from localspec.scheduling.task import Task, Wait

MOST = 64  # rows of a pass that are considered


class SharedCosts:
    """Divides the seconds of passes among answers, and learns the costs of passes.
    `baselines`: of passes without drafts, by the number of answers."""

    def __init__(self, profile: PairProfile) -> None:
        self.profile = profile
        self.baselines: dict[int, Baseline] = {}
        self._unconfirmed = 0

    def doubtful(self, answers: int) -> bool:
        """Whether a pass without drafts is due, to measure its cost."""
        baseline = self.baselines.get(answers)
        return self._unconfirmed >= CostCurve.OVERDUE or (baseline is not None and baseline.open)

    @property
    def confirmed(self) -> bool:
        """Whether the latest shared pass had no drafts."""
        return self._unconfirmed == 0

    def weigh(self, wait: Wait, tasks: Sequence[Task]) -> list[float]:
        """Each answer's share of a pass: an equal part of a pass over one token per answer, and of
        the rest in proportion to its further tokens."""
        sizes = [task.size for task in tasks]
        k, n = len(sizes), sum(sizes)
        if n == k or wait is not Wait.TARGET or not self.profile.target:
            return [float(size) for size in sizes]
        context, seconds = _context(tasks), self.profile.target.seconds
        base = seconds(k, context)
        further = max(0.0, seconds(n, context) - base) / (n - k)
        return [base / k + (size - 1) * further for size in sizes]

    def grant(self, bids: Sequence[Task], beside: Sequence[Task]) -> None:
        """Decide how many candidates of each bid are verified in a shared pass."""
        asked = [task.bid for task in bids if task.bid is not None]
        rows = len(asked) + sum(task.size for task in beside if not task.long)
        context = sum(task.size for task in bids) // len(bids)
        most = max(MOST - rows, sum(bid.firm for bid in asked))
        costs, own = self.profile.target.row(rows + most, context), self.profile.row_overhead
        further = [costs[rows + n] - costs[rows] + n * own for n in range(most + 1)]
        counts, each = share_out(asked, further)
        for task, count in zip(bids, counts, strict=True):
            task.granted = count, each

    def passed(self, wait: Wait, tasks: Sequence[Task], seconds: float) -> None:
        target = self.profile.target
        if wait is not Wait.TARGET or not target or any(task.long for task in tasks):
            return
        tokens, context = sum(task.size for task in tasks), _context(tasks)
        if len(tasks) == 1:
            # The drafter of a single answer learns on its own, as it knows the kind of pass.
            if not tasks[0].alone:
                target.observe(tokens, context, seconds, alike=False)
            return
        if tokens == len(tasks):
            baseline = self.baselines.setdefault(tokens, Baseline(target.pace))
            baseline.observe(seconds / target.seconds(tokens, context))
            self._unconfirmed = 0
        else:
            self._unconfirmed += 1
        target.observe(tokens, context, seconds)


def share_out(bids: Sequence[Bid], further: Sequence[float]) -> tuple[list[int], float]:
    """How many candidates of each bid are verified, in the bid's order, and the mean seconds per
    row, which each is charged. No answer loses more than its `spare` if nothing is accepted.
    `further`: seconds that n more rows add to the pass, for n from 0 on; only firm candidates may
    exceed its length."""
    most = len(further) - 1
    firm = sum(bid.firm for bid in bids)
    rate = max(bid.rate for bid in bids)
    caps = [len(bid.reaches) for bid in bids]
    while True:
        # Candidates that are not firm, the likeliest next one of all bids first.
        reaches = ([(-r, i) for r in bids[i].reaches[bids[i].firm : n]] for i, n in enumerate(caps))
        taken = [*islice(merge(*reaches), max(0, most - firm))]
        worth, best, count = 0.0, -rate * further[min(firm, most)], 0
        for n, (reach, _) in enumerate(taken, 1):
            worth -= reach
            if worth - rate * further[firm + n] > best:
                best, count = worth - rate * further[firm + n], n
        counts = [bid.firm for bid in bids]
        for _, index in taken[:count]:
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


def _context(tasks: Sequence[Task]) -> int:
    """Mean number of tokens before those of a pass."""
    starts = [task.part.positions[0] for task in tasks if task.part is not None]
    return sum(starts) // max(1, len(starts))


class SharedCurve(CostCurve):
    """Seconds that n rows of one answer cost all answers; for a single answer, its pass.

    `others`, `ask`: see `SharedScheduler.others` and `SharedScheduler.bid`.
    """

    def __init__(
        self,
        costs: SharedCosts,
        task: Task,
        others: Callable[[Task], list[Task]],
        ask: Callable[[Task, Bid, int], tuple[int, float]],
    ) -> None:
        super().__init__()
        self._costs, self._task, self._who, self._ask = costs, task, others, ask
        self._real, self._others = costs.profile.target, 0

    def refresh(self) -> None:
        self._real = self._costs.profile.target
        others = [one for one in self._who(self._task) if not one.reading]
        self.answers = 1 + len(others)
        self._others = sum(
            max(1, one.size) if one.waits_for is Wait.TARGET else 1 for one in others
        )
        self.pace = self._real.pace
        if self.answers == 1:
            self.baseline = self._real.baseline
        else:
            self.baseline = None
            if self._costs.confirmed:
                self.baseline = self._costs.baselines.get(self.answers)
        self.version = (self._real.version * 64 + self.answers) * 1024 + min(1023, self._others)

    def allocate(self, context: int, bid: Callable[[], Bid]) -> tuple[int, float] | None:
        self.refresh()
        return None if self.answers == 1 else self._ask(self._task, bid(), context)

    def __bool__(self) -> bool:
        return bool(self._real)

    def doubtful(self, context: int) -> bool:
        if self.answers == 1:
            return self._real.doubtful(context)
        return self._costs.doubtful(self.answers)

    def plain(self, context: int) -> float:
        if self.answers == 1:
            return self._real.plain(context)
        baseline = self._costs.baselines.get(self.answers)
        pace = self._real.pace if baseline is None else baseline.now
        return self._real.seconds(self.answers, context) / self.answers * pace

    def seconds(self, n: int, context: int) -> float:
        if self.answers == 1:
            return self._real.seconds(n, context)
        real, answers, rows = self._real.seconds, self.answers, self._others + 1
        alone = real(rows + n - 1, context) - real(rows, context)
        together = real(rows + answers * (n - 1), context) - real(rows, context)
        return real(answers, context) / answers + min(alone, together / answers)

    def row(self, most: int, context: int) -> list[float]:
        if self.answers == 1:
            return self._real.row(most, context)
        return [0.0, *(self.seconds(n, context) for n in range(1, most + 1))]

    def observe(self, n: int, context: int, seconds: float, *, alike: bool = True) -> None:
        if self._task.alone:
            self._real.observe(n, context, seconds, alike=alike)

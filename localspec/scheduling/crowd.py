"""What a pass costs one answer among several: the joint budget of all their drafts.

The tokens per second of all answers together are maximised by verifying, of all that may be, what
brings more tokens than the rate times the seconds that it adds to their pass (goodput: Liu et al.
2024, TurboSpec). That is decided once all have drafted (`localspec.scheduling.joint_budget`). Who
plans a draft before knows what the others have asked for already, counts one row for those who
have not asked yet, and foresees that

    cost of n rows = T(k) / k + min(T(others + n) - T(others + 1),
                                    (T(others + 1 + k (n - 1)) - T(others + 1)) / k)

with k answers: its part of a pass without any draft, and what its further rows add, if nobody else
drafts, or if all draft as much as it does: a pass may be cheap at a size that takes them all. The
less a further row costs, the more is drafted, and where many rows fill a pass, drafting falls away
by itself. Slots that a larger pass would have at no cost are filled with candidates or with
padding: T is the least that a pass of so many tokens or more costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from localspec.llama.native_context import PassWatch
from localspec.policy.baseline import Baseline
from localspec.policy.cost_curve import CostCurve
from localspec.policy.profile import PairProfile
from localspec.policy.worth import Bid
from localspec.scheduling.joint_budget import share_out
from localspec.scheduling.members import TARGET, Member, Request
from localspec.scheduling.rounds import Rounds

MOST = 64
"""Tokens of a pass beyond which nothing is said about cheaper larger ones."""
AHEAD = 12
"""Tokens that a pass may be padded by."""


class Crowd:
    """Shares out the seconds of passes, and learns from them what passes cost.

    Attributes:
        baselines: of passes without any draft, in the costs of the curve, by the number of
            answers: the curve may be further off for some sizes than plain passes ever are.
    """

    OVERDUE = CostCurve.OVERDUE

    def __init__(self) -> None:
        self.profile = PairProfile()
        self._watches: tuple[PassWatch | None, PassWatch | None] = (None, None)
        self.baselines: dict[int, Baseline] = {}
        self._unconfirmed = 0
        self._least: tuple[object, list[float], list[int]] = (None, [], [])

    def serve(
        self, profile: PairProfile, watches: tuple[PassWatch | None, PassWatch | None]
    ) -> None:
        """Learn for a profile, and tell who decides about threads (of draft model and target)."""
        self.profile, self._watches = profile, watches

    def doubtful(self, answers: int) -> bool:
        """Whether it is time for a pass without any draft, which tells what those cost."""
        told = self.baselines.get(answers)
        return self._unconfirmed >= self.OVERDUE or (told is not None and told.open)

    @property
    def confirmed(self) -> bool:
        """Whether the latest shared pass was one."""
        return self._unconfirmed == 0

    def least(self, tokens: int, context: int) -> float:
        """Seconds of a pass over so many tokens or more behind so many, at the table's pace."""
        costs, _ = self._envelope(context)
        if tokens < len(costs):
            return costs[tokens]
        return self.profile.target.seconds(tokens, context)

    def padding(self, lane: int, requests: Sequence[Request]) -> int:
        """Tokens by which a pass of several answers is better made larger."""
        tokens = sum(request.tokens for request in requests)
        if lane != TARGET or tokens >= MOST or not self.profile.target:
            return 0
        _, sizes = self._envelope(_context(requests))
        return sizes[tokens] - tokens

    def weigh(self, lane: int, requests: Sequence[Request]) -> list[float]:
        """Each answer's share of a pass: an equal part of what one token for each would have
        taken, and of the rest by its further tokens."""
        sizes = [request.tokens for request in requests]
        k, n = len(sizes), sum(sizes)
        if n == k or lane != TARGET or not self.profile.target:
            return [float(size) for size in sizes]
        context = _context(requests)
        base, whole = self.least(k, context), self.least(n, context)
        further = max(0.0, whole - base) / (n - k)
        return [base / k + (size - 1) * further for size in sizes]

    def grant(self, requests: Sequence[Request], beside: Sequence[Request]) -> None:
        """Decide how much of all drafts is verified in the pass that they share with others."""
        bids = [request.bid for request in requests if request.bid is not None]
        rows = len(bids) + sum(request.tokens for request in beside if not request.long)
        context = sum(request.context for request in requests) // len(requests)
        base, own = self.least(rows, context), self.profile.row_overhead
        most = max(MOST - rows, sum(bid.firm for bid in bids))
        further = [self.least(rows + n, context) - base + n * own for n in range(most + 1)]
        counts, each = share_out(bids, further)
        for request, count in zip(requests, counts, strict=True):
            request.granted = count, each

    def passed(self, lane: int, requests: Sequence[Request], padding: int, seconds: float) -> None:
        """Learn from a pass."""
        tokens, context = sum([request.tokens for request in requests]), _context(requests)
        watch = self._watches[lane]
        if watch is not None:
            watch.passed(tokens + padding, context, seconds)
        if lane != TARGET or any(request.long for request in requests):
            return
        if not self.profile.target:
            return
        if len(requests) == 1:
            # Of an answer alone its planner learns, which knows what the pass was for.
            if not requests[0].member.alone:
                self.profile.target.observe(tokens + padding, context, seconds, alike=False)
            return
        if tokens == len(requests):
            told = self.baselines.setdefault(tokens, Baseline(self.profile.target.pace))
            told.observe(seconds / self.least(tokens, context))
            self._unconfirmed = 0
        else:
            self._unconfirmed += 1
        self.profile.target.observe(tokens + padding, context, seconds)

    def view(self, member: Member, rounds: Rounds) -> PairProfile:
        """The profile as one of the answers sees it."""
        return SharedProfile(self, member, rounds)

    def _envelope(self, context: int) -> tuple[list[float], list[int]]:
        """By tokens: the least seconds of a pass of at least so many, and how many those are."""
        curve = self.profile.target
        key = id(curve), curve.version, context >> 7
        if self._least[0] != key:
            costs = curve.row(MOST + AHEAD, context)
            sizes = list(range(len(costs)))
            for n in range(len(costs) - 2, 0, -1):
                if costs[n + 1] < costs[n] and sizes[n + 1] - n <= AHEAD:
                    costs[n], sizes[n] = costs[n + 1], sizes[n + 1]
            self._least = key, costs[: MOST + 1], sizes[: MOST + 1]
        return self._least[1], self._least[2]


class SharedProfile(PairProfile):
    """A profile, but for what passes of the target cost: that is what they cost one answer."""

    __slots__ = ("_curve", "_member", "_rounds")

    def __init__(self, crowd: Crowd, member: Member, rounds: Rounds) -> None:
        self.__dict__ = crowd.profile.__dict__  # all else is the same, now and later
        self._curve = SharedCurve(crowd, member, rounds)
        self._member, self._rounds = member, rounds

    @property
    def target(self) -> CostCurve:
        self._curve.look()
        return self._curve

    @target.setter
    def target(self, curve: CostCurve) -> None:
        self.curves.now = curve

    def granted(self, context: int, bid: Callable[[], Bid]) -> tuple[int, float] | None:
        self._curve.look()
        if self._curve.answers == 1:
            return None
        return self._rounds.bid(self._member, bid(), context)

    @property
    def threads(self) -> int:
        # What steps brought so far is converted when the number of answers changes, as it is when
        # that of threads does.
        return self.curves.threads * 1000 + self._curve.answers


class SharedCurve(CostCurve):
    """Seconds that n rows of one answer cost all of them; of an answer alone what they take."""

    def __init__(self, crowd: Crowd, member: Member, rounds: Rounds) -> None:
        super().__init__()
        self._crowd, self._member, self._rounds = crowd, member, rounds
        self._real = crowd.profile.target
        self.answers, self._others = 1, 0

    def look(self) -> None:
        """See who else is there."""
        self._real = self._crowd.profile.target
        others = self._rounds.others(self._member)
        if not self._rounds.mixed:  # then who reads has passes of its own
            others = [other for other in others if not other.reading]
        self.answers = 1 + len(others)
        self._others = sum(
            1 if m.request is None or m.request.lane != TARGET else max(1, m.request.tokens)
            for m in others
        )
        self.pace = self._real.pace
        if self.answers == 1:
            self.baseline = self._real.baseline
        else:
            self.baseline = None
            if self._crowd.confirmed:
                self.baseline = self._crowd.baselines.get(self.answers)
        self.version = (self._real.version * 64 + self.answers) * 1024 + min(1023, self._others)

    def __bool__(self) -> bool:
        return bool(self._real)

    def doubtful(self, context: int) -> bool:
        if self.answers == 1:
            return self._real.doubtful(context)
        return self._crowd.doubtful(self.answers)

    def plain(self, context: int) -> float:
        if self.answers == 1:
            return self._real.plain(context)
        told = self._crowd.baselines.get(self.answers)
        pace = self._real.pace if told is None else told.now
        return self._crowd.least(self.answers, context) / self.answers * pace

    def seconds(self, n: int, context: int) -> float:
        if self.answers == 1:
            return self._real.seconds(n, context)
        least, answers, rows = self._crowd.least, self.answers, self._others + 1
        alone = least(rows + n - 1, context) - least(rows, context)
        together = least(rows + answers * (n - 1), context) - least(rows, context)
        return least(answers, context) / answers + min(alone, together / answers)

    def row(self, most: int, context: int) -> list[float]:
        if self.answers == 1:
            return self._real.row(most, context)
        return [0.0, *(self.seconds(n, context) for n in range(1, most + 1))]

    def observe(self, n: int, context: int, seconds: float, *, alike: bool = True) -> None:
        if self._member.alone:
            self._real.observe(n, context, seconds, alike=alike)


def _context(requests: Sequence[Request]) -> int:
    """Tokens before those of a pass, on average."""
    starts = [request.part.positions[0] for request in requests if request.part is not None]
    return sum(starts) // max(1, len(starts))

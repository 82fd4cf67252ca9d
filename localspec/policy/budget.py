"""What drafting may risk, so that answers are no slower than plain decoding whatever is estimated.

A conservative bandit (Wu et al. 2016, "Conservative bandits"; Garcelon et al. 2020) risks only what
it gained before, and a small share of what the baseline brings anyway. Here that is the fund. Each
step adds ALLOWANCE × what its tokens would have taken plainly; a drafted one adds all of that and
takes what it really took, where a gain is at hand once a plain pass has confirmed the baseline. A
new pair begins with the most that it holds.

A step is drafted only if the fund covers its worst case, that nothing is accepted, and stakes half
of the fund at most. So for any text, drafts and estimates, over any stretch

    seconds ≤ 1.01 × plain seconds + fund at its beginning + one step's overrun.

An overrun, what a step takes longer than foreseen, is charged.
"""

from __future__ import annotations

from typing import Any

from localspec.decoding.stats import AccountStatement
from localspec.policy.records import BudgetRecord


class Budget:
    """The fund of a pair, kept from session to session.

    Attributes:
        fund: seconds that may be risked now; None before the first step of a new pair.
        saved: seconds that drafting saved in all, less what it cost.
        seconds: that decoding took in all.
    """

    ALLOWANCE = 0.01  # of the plain seconds, what may be lost for good
    SECONDS, PASSES = 0.5, 8
    """The most that the fund holds: so many seconds, or plain passes if they take longer."""
    STAKE, SMALL = 0.5, 3.0
    """Of the fund, the most that a step may risk, unless that is less than so many plain passes."""
    EXPOSED, CHEAPER = 24.0, 3.0
    """Most plain passes lost since the latest one, if these had become so many times cheaper."""
    QUIETER = 0.67  # so much shorter plain passes have to be for a debt to shrink along with them
    DEBT = 1.0
    """Of the most it holds, what it may be overdrawn by, as when the machine slept during a
    pass."""

    def __init__(self) -> None:
        self.fund: float | None = None
        self.saved = 0.0
        self.seconds = 0.0
        self._owed_at = 0.0  # seconds of a plain pass, when the fund was overdrawn
        # Of drafted steps since the latest plain pass: tokens, the seconds that they took and those
        # that they gained, and what of the latter has room in the fund.
        self._tokens, self._seconds, self._gains, self._credit = 0, 0.0, 0.0, 0.0

    def open(self, plain: float) -> float:
        """Seconds that may be risked at present; `plain`: those of a plain pass."""
        most = self._most(plain)
        if self.fund is None or self.fund > most:
            self.fund = most
        elif self.fund < 0.0 and plain < self.QUIETER * self._owed_at:
            # A debt is so many plain passes: what a busy machine cost is not made up for on an idle
            # one.
            self.fund *= plain / self._owed_at
            self._owed_at = plain
        return self.fund

    def stake(self, plain: float) -> float:
        """Seconds that a single step may risk at present; see `open`."""
        fund = self.open(plain)
        return max(min(fund, self.SMALL * plain), self.STAKE * fund)

    def forgive(self) -> None:
        """Drop a debt of another time."""
        if self.fund is not None:
            self.fund = max(self.fund, 0.0)

    def exposed(self, plain: float) -> bool:
        """Whether a plain pass has to confirm the baseline: too much would be lost if it had
        fallen, or most of what may be risked waits for that."""
        cheaper = self._tokens * plain / self.CHEAPER
        if self._seconds - cheaper > self.EXPOSED * plain:
            return True
        return self._credit > max(plain, self.open(plain))

    def settle(
        self,
        plain: float,
        tokens: int,
        lost: float,
        seconds: float,
        statement: AccountStatement,
        *,
        drafted: bool,
    ) -> None:
        """Enter a step of so many seconds, which it took `lost` more than plain decoding of its
        tokens.

        Args:
            plain: seconds of a plain pass.
            statement: of this answer, brought up to date.
            drafted: whether passes other than a plain one were part of it.
        """
        self.saved -= lost
        self.seconds += seconds
        statement.saved -= lost
        statement.risked += max(0.0, lost)
        if drafted:
            self._tokens += tokens
            self._seconds += seconds
            if lost < 0.0:
                self._gains -= lost
                self._credit = min(self._credit - lost, self._most(plain) - self.open(plain))
                lost = 0.0
        self._enter(plain, self.ALLOWANCE * tokens * plain - lost)
        self.tell(statement)

    def prove(self, before: float, plain: float, statement: AccountStatement) -> None:
        """A plain pass confirmed the baseline: gains may be spent, less what a lower one makes of
        them."""
        if not self._tokens:
            return
        less = self._tokens * max(0.0, before - plain)
        self.saved -= less
        statement.saved -= less
        gained = min(self._credit, self._gains - less)
        self._tokens, self._seconds, self._gains, self._credit = 0, 0.0, 0.0, 0.0
        self._enter(plain, gained)
        self.tell(statement)

    def tell(self, statement: AccountStatement) -> None:
        """Bring a statement up to date."""
        statement.pair_saved, statement.fund = self.saved, self.fund or 0.0

    def _most(self, plain: float) -> float:
        return max(self.SECONDS, self.PASSES * plain)

    def _enter(self, plain: float, seconds: float) -> None:
        most, before = self._most(plain), self.open(plain)
        self.fund = max(-self.DEBT * most, min(before + seconds, most))
        if self.fund < min(0.0, before):
            self._owed_at = plain
        self._credit = min(self._credit, most - self.fund)  # together they hold the most at most

    def as_dict(self) -> dict[str, Any]:
        fund = None if self.fund is None else self.fund + self._credit
        return {"fund": fund, "saved": self.saved, "seconds": self.seconds}

    @classmethod
    def from_record(cls, stored: BudgetRecord) -> Budget:
        """The opposite of `as_dict`."""
        budget = cls()
        budget.fund, budget.saved, budget.seconds = stored.fund, stored.saved, stored.seconds
        return budget

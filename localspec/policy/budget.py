"""What drafting may risk, so that answers are no slower than plain decoding whatever is estimated.

A conservative bandit (Wu et al. 2016, "Conservative bandits"; Garcelon et al. 2020) risks only what
it gained before, and a small share of what the baseline brings anyway. Here that is the fund. Each
step adds ALLOWANCE × what its tokens would have taken plainly; a drafted one adds all of that and
takes what it really took, where a gain is at hand once a plain pass has confirmed the baseline. A
new pair begins with the most that it holds.

A step is drafted only if the fund covers its worst case, that nothing is accepted, and stakes half
of the fund at most. So for any text, drafts and estimates, over any stretch

    seconds ≤ 1.01 × plain seconds + fund at its beginning + one step's overrun.

An overrun, what a step takes longer than foreseen, is charged as it happens, up to four times what
was foreseen: what is beyond was an interruption. Once a plain pass tells that the machine changed
its pace, what the steps before it lost or gained is corrected.
"""

from __future__ import annotations

from dataclasses import dataclass

from localspec.decoding.stats import AccountStatement
from localspec.policy.stored import Stored


@dataclass(eq=False)
class Budget(Stored):
    """The fund of a pair, kept from session to session.

    Attributes:
        fund: seconds that may be risked now; None before the first step of a new pair.
        saved: seconds that drafting saved in all, less what it cost.
        seconds: that decoding took in all.
        credit: gains that have room in the fund once a plain pass confirms the baseline.
    """

    ALLOWANCE = 0.01  # of the plain seconds, what may be lost for good
    SECONDS, PASSES = 0.5, 8
    """The most that the fund holds: so many seconds, or plain passes if they take longer."""
    STAKE, SMALL = 0.5, 3.0
    """Of the fund, the most that a step may risk, unless that is less than so many plain passes."""
    BELIEVED = 0.9  # of the pace that a drafted step's own passes tell, as costs are estimates
    EXPOSED, CHEAPER = 24.0, 3.0
    """Most plain passes lost since the latest one, if these had become so many times cheaper."""
    DEBT = 1.0
    """Of the most it holds, what it may be overdrawn by, as when the machine slept during a
    pass."""

    fund: float | None = None
    saved: float = 0.0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.credit = 0.0
        # Drafted steps since the latest plain pass: tokens, seconds, and how many times as long as
        # foreseen; the seconds that they gained.
        self._steps: list[tuple[int, float, float]] = []
        self._gains = 0.0

    def open(self, plain: float) -> float:
        """Seconds that may be risked at present; `plain`: those of a plain pass."""
        most = self._most(plain)
        if self.fund is None or self.fund > most:
            self.fund = most
        return self.fund

    def stake(self, plain: float) -> float:
        """Seconds that a single step may risk at present; see `open`."""
        fund = self.open(plain)
        return max(min(fund, self.SMALL * plain), self.STAKE * fund)

    def cancel_debt(self) -> None:
        """Drop a debt of another time."""
        if self.fund is not None:
            self.fund = max(self.fund, 0.0)

    def exposed(self, plain: float) -> bool:
        """Whether a plain pass has to confirm the baseline: too much would be lost if it had
        fallen, or most of what may be risked waits for that."""
        cheaper = plain / self.CHEAPER
        if sum(step[1] - step[0] * cheaper for step in self._steps) > self.EXPOSED * plain:
            return True
        return self.credit > max(plain, self.open(plain))

    def settle(
        self,
        plain: float,
        tokens: int,
        lost: float,
        seconds: float,
        statement: AccountStatement,
        *,
        drafted: bool,
        slower: float = 1.0,
    ) -> None:
        """Enter a step of so many seconds, which it took `lost` more than plain decoding of its
        tokens.

        Args:
            plain: seconds of a plain pass.
            statement: of this answer, brought up to date.
            drafted: whether passes other than a plain one were part of it.
            slower: seconds ÷ those foreseen, had the machine the pace of the latest plain pass.
        """
        self.saved -= lost
        self.seconds += seconds
        statement.saved -= lost
        statement.risked += max(0.0, lost)
        if drafted:
            self._steps.append((tokens, seconds, slower))
            if lost < 0.0:
                self._gains -= lost
                self.credit = min(self.credit - lost, self._most(plain) - self.open(plain))
                lost = 0.0
        self._enter(plain, self.ALLOWANCE * tokens * plain - lost)
        self.update_statement(statement)

    def confirm(self, before: float, plain: float, statement: AccountStatement) -> None:
        """A plain pass moved the baseline: gains may be spent.

        The pace of a drafted step before it lies between the two, where its own passes say: what it
        lost or gained is corrected by that.
        """
        if not self._steps:
            return
        low, high = sorted((1.0, plain / before))
        less = 0.0
        for tokens, _, slower in self._steps:
            pace = max(low, min(self.BELIEVED * slower, high))
            less += tokens * before * (1.0 - pace)
        self.saved -= less
        statement.saved -= less
        gained = min(self.credit, self._gains - less) if less > 0.0 else self.credit - less
        self._steps.clear()
        self._gains = self.credit = 0.0
        self._enter(plain, gained)
        self.update_statement(statement)

    def update_statement(self, statement: AccountStatement) -> None:
        """Bring a statement up to date."""
        statement.pair_saved, statement.fund = self.saved, self.fund or 0.0

    def _most(self, plain: float) -> float:
        return max(self.SECONDS, self.PASSES * plain)

    def _enter(self, plain: float, seconds: float) -> None:
        most = self._most(plain)
        self.fund = max(-self.DEBT * most, min(self.open(plain) + seconds, most))
        self.credit = min(self.credit, most - self.fund)  # together they hold the most at most

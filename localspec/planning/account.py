"""What drafting may risk: an account of the seconds it saved and cost, so that no estimate has to
be right for answers to be no slower than plain decoding.

Drafting is an experiment against a baseline whose cost is known, plain decoding. A conservative
bandit (Wu, Shariff, Lattimore & Szepesvári 2016, "Conservative bandits"; Garcelon et al. 2020,
"Improved algorithms for conservative exploration") tries an arm only while what it may lose is
covered by what was gained before, and by a small share of what the baseline brings anyway. Here
that cover is the fund:

- each step adds a hundredth of what its tokens would have taken plainly (ALLOWANCE),
- a drafted step adds what its tokens would have taken plainly, and takes what it really took, with
  its planning, its draft passes and its verification; what it gained is at hand once a plain pass
  has told that plain passes take what was thought (see `Account.prove`),
- planning and trying in vain take what they took,
- it never holds more than `most`, and that is also what a new pair begins with.

A step is drafted only if the fund covers its worst case, that nothing of the draft is accepted, and
stakes half of the fund at most. So for any text, any drafts and any estimates, over any stretch

    seconds ≤ 1.01 × plain seconds + fund at its beginning (at most `most`) + one step's overrun.

The last is what a single step takes longer than could be foreseen. It is charged all the same, and
nothing is drafted until it is made up for, so that overruns do not add up. What a plain pass takes
is what plain passes said last; see `Account.exposed` for how long that is believed.
"""

from __future__ import annotations

import math
from typing import Any

from localspec.decoding.stats import AccountStatement


class Account:
    """The account of a pair, kept from session to session.

    Attributes:
        fund: seconds that may be risked now; None before the first step of a new pair.
        saved: seconds that drafting saved in all, less what it cost.
        seconds: that decoding took in all.
    """

    ALLOWANCE = 0.01
    """Of the plain seconds, what may be lost for good."""
    SECONDS, PASSES = 0.5, 8
    """The most that the fund holds: so many seconds, or plain passes if they take longer."""
    STAKE, SMALL = 0.5, 3.0
    """Of what the fund holds, the most that a step may risk, unless that is less than so many plain
    passes: who stakes all is soon out, with drafts that pay as well."""
    EXPOSED, CHEAPER = 24.0, 3.0
    """Plain passes that drafted steps since the latest plain one may have lost, if plain passes had
    become so many times cheaper meanwhile."""
    QUIETER = 0.67
    """So much shorter plain passes have to have become for a debt to shrink along with them."""
    DEBT = 1.0
    """Of the most it holds, what it may be overdrawn by: a pass during which the machine slept for
    a while must not end drafting for as long."""

    def __init__(self) -> None:
        self.fund: float | None = None
        self.saved = 0.0
        self.seconds = 0.0
        self._owed_at = 0.0  # seconds of a plain pass, when the fund was overdrawn
        # Of drafted steps since the latest plain pass: tokens, the seconds that they took and those
        # that they gained, and what of the latter has room in the fund.
        self._tokens, self._seconds, self._gains, self._credit = 0, 0.0, 0.0, 0.0

    def open(self, plain: float) -> float:
        """Seconds that may be risked at present.

        Args:
            plain: seconds of a plain pass.
        """
        most = max(self.SECONDS, self.PASSES * plain)
        if self.fund is None or self.fund > most:
            self.fund = most
        elif self.fund < 0.0 and plain < self.QUIETER * self._owed_at:
            # A debt is so many plain passes: what a busy machine cost is not to be made up for on
            # an idle one, where that takes many times as many tokens.
            self.fund *= plain / self._owed_at
            self._owed_at = plain
        return self.fund

    def forgive(self) -> None:
        """Drop a debt: it is of another time than the last few minutes."""
        if self.fund is not None:
            self.fund = max(self.fund, 0.0)

    def stake(self, plain: float) -> float:
        """Seconds that a single step may risk at present; see `open`."""
        fund = self.open(plain)
        return max(min(fund, self.SMALL * plain), self.STAKE * fund)

    def exposed(self, plain: float) -> bool:
        """Whether a plain pass has to tell first what plain passes take: too much would be lost if
        they had become cheaper, or most of what may be risked waits for being proven."""
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
        drafted: bool = True,
    ) -> None:
        """Enter a step.

        Args:
            plain: seconds of a plain pass.
            tokens: that the step brought.
            lost: seconds that it took more than plain decoding of these tokens; less than 0 where
                it saved some.
            seconds: that it took.
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
                most = max(self.SECONDS, self.PASSES * plain)
                self._gains -= lost
                self._credit = min(self._credit - lost, most - self.open(plain))
                lost = 0.0
        self._enter(plain, self.ALLOWANCE * tokens * plain - lost)
        self.tell(statement)

    def prove(self, before: float, plain: float, statement: AccountStatement) -> None:
        """A plain pass told what plain passes take. What drafts gained since the last one may be
        spent now; if plain passes take less than was thought, it was less."""
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

    def _enter(self, plain: float, seconds: float) -> None:
        most = max(self.SECONDS, self.PASSES * plain)
        before = self.open(plain)
        self.fund = max(-self.DEBT * most, min(before + seconds, most))
        if self.fund < min(0.0, before):
            self._owed_at = plain
        self._credit = min(self._credit, most - self.fund)  # together they hold the most at most

    def as_dict(self) -> dict[str, Any]:
        """For the store."""
        fund = None if self.fund is None else self.fund + self._credit
        return {"fund": fund, "saved": self.saved, "seconds": self.seconds}

    @classmethod
    def from_dict(cls, stored: Any) -> Account:
        """The opposite of `as_dict`.

        Raises:
            ValueError: not such a record.
        """
        account = cls()
        try:
            fund = stored["fund"]
            account.fund = None if fund is None else float(fund)
            account.saved, account.seconds = float(stored["saved"]), float(stored["seconds"])
        except (KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"no such account: {error}") from None
        if not all(map(math.isfinite, (account.fund or 0.0, account.saved, account.seconds))):
            raise ValueError("a number out of its range")
        return account

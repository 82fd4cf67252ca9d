"""The risk budget of drafting, which bounds the loss against plain decoding for any estimates.

A conservative bandit (Wu et al. 2016, "Conservative bandits"; Garcelon et al. 2020) risks only its
earlier gains and a small share of the baseline's reward. Here these form the fund. Each step adds
ALLOWANCE × the plain decoding time of its tokens. A drafted step also adds that time and subtracts
its own; a gain becomes available once a plain pass has confirmed the baseline. A new pair starts
with a full fund.

A step is drafted only if the fund covers its worst case, that nothing is accepted. So for any text,
drafts and estimates, over any stretch

    seconds ≤ 1.01 × plain seconds + fund at its beginning + one step's overrun.

An overrun, the time of a step beyond the expected one, is charged as it happens, up to four times
the expected time; the rest counts as an interruption. If a plain pass shows that the machine's pace
has changed, the gains and losses of the steps before it are corrected.
"""

from dataclasses import dataclass


@dataclass(eq=False)
class Budget:
    """The fund of a pair, kept across sessions.

    Attributes:
        fund: seconds that may be risked now; None before the first step of a new pair.
        saved: net seconds that drafting saved in total.
        seconds: of decoding in total.
        credit: gains that enter the fund once a plain pass confirms the baseline.
    """

    ALLOWANCE = 0.01  # share of plain decoding that may be lost permanently
    SECONDS, PASSES = 0.5, 8
    """Maximum of the fund: seconds, or plain passes if those take longer."""
    BELIEVED = 0.9  # weight of the pace seen in a drafted step's passes, as costs are estimates
    EXPOSED, CHEAPER = 24.0, 3.0
    """Maximum unconfirmed loss, in plain passes, if these had become CHEAPER times cheaper."""
    DEBT = 1.0
    """Largest overdraft, relative to the maximum, such as after a suspend during a pass."""

    fund: float | None = None
    saved: float = 0.0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.credit = 0.0
        # Drafted steps since the latest plain pass: tokens, seconds, and seconds ÷ expected
        # seconds; then the seconds that they gained.
        self._steps: list[tuple[int, float, float]] = []
        self._gains = 0.0

    def open(self, plain: float) -> float:
        """Seconds that may be risked now; `plain`: seconds of a plain pass."""
        most = self._most(plain)
        if self.fund is None or self.fund > most:
            self.fund = most
        return self.fund

    def cancel_debt(self) -> None:
        if self.fund is not None:
            self.fund = max(self.fund, 0.0)

    def exposed(self, plain: float) -> bool:
        """Whether a plain pass has to confirm the baseline: too much would be lost if it had
        fallen, or most of the available seconds depend on it."""
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
        *,
        drafted: bool,
        slower: float = 1.0,
    ) -> None:
        """Enter a step of `seconds`, which took `lost` more than plain decoding of its tokens.

        Args:
            plain: seconds of a plain pass.
            drafted: whether it had passes other than a plain one.
            slower: seconds ÷ expected seconds, at the pace of the latest plain pass.
        """
        self.saved -= lost
        self.seconds += seconds
        if drafted:
            self._steps.append((tokens, seconds, slower))
            if lost < 0.0:
                self._gains -= lost
                self.credit = min(self.credit - lost, self._most(plain) - self.open(plain))
                lost = 0.0
        self._enter(plain, self.ALLOWANCE * tokens * plain - lost)

    def confirm(self, before: float, plain: float) -> None:
        """Confirm the baseline with a plain pass, and release the gains.

        The pace during a drafted step lies between the old and the new one, as estimated from its
        own passes; its gain or loss is corrected accordingly.
        """
        if not self._steps:
            return
        low, high = sorted((1.0, plain / before))
        less = 0.0
        for tokens, _, slower in self._steps:
            pace = max(low, min(self.BELIEVED * slower, high))
            less += tokens * before * (1.0 - pace)
        self.saved -= less
        gained = min(self.credit, self._gains - less) if less > 0.0 else self.credit - less
        self._steps.clear()
        self._gains = self.credit = 0.0
        self._enter(plain, gained)

    def _most(self, plain: float) -> float:
        return max(self.SECONDS, self.PASSES * plain)

    def _enter(self, plain: float, seconds: float) -> None:
        most = self._most(plain)
        self.fund = max(-self.DEBT * most, min(self.open(plain) + seconds, most))
        self.credit = min(self.credit, most - self.fund)  # both together stay within the maximum

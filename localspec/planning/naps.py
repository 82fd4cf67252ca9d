"""For how many steps nothing is planned: planning in vain takes time as well."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.decoding.session import Session
from localspec.planning.answer_state import LookupState
from localspec.planning.costs import VerificationCosts
from localspec.planning.pair_profile import PairProfile


class Naps:
    """While nothing is drafted, steps are left out of planning: half as many in a row as were
    planned in vain, but no more than it takes for the others' planning not to show.

    Where passes are short, every step's would. Where they are longer, it is 1 or 2 % of them, so
    that naps are shorter, and end where the text begins to repeat itself; and where a model source
    may be asked nothing is left out, as that says at every step whether it pays.

    Args:
        profile: of the pair, for what planning takes.

    Attributes:
        short: whether passes are, here.
    """

    SHORT, LONGEST = 3e-3, 16
    """Seconds of a pass for which planning (some 50 µs) would show, and steps that a nap has."""
    PLANNING = 0.0025
    """Of plain decoding, what planning in vain may take."""
    LOOK = 4
    """Steps between two looks at whether the text repeats itself."""
    FIRM = 3.0
    """Weight of a prediction that ends a nap: of the n-gram index, of a match of four tokens."""

    def __init__(self, profile: PairProfile) -> None:
        self._profile = profile
        self._idle = self._left = 0
        self.short = False

    def goes_on(self, session: Session, lookups: Sequence[LookupState]) -> bool:
        """Whether this step is not planned."""
        if not self._left:
            return False
        self._left -= 1
        if self.short or self._left % self.LOOK:
            return True
        if any(_expects(lookup, session, self.FIRM) for lookup in lookups):
            self._left = 0
            return False
        return True

    def drafted(self) -> None:
        """Planning was not in vain."""
        self._idle = 0

    def idled(self, costs: VerificationCosts, *, models: bool) -> None:
        """It was. `models`: whether there is a model source."""
        self._idle += 1
        self.short = costs.least[1] < self.SHORT
        longest = self.LONGEST
        if not self.short:
            planning = self._profile.step_overhead - self._profile.plain_overhead
            longest = 0 if models else int(planning / (self.PLANNING * costs.least[1]))
        self._left = max(0, min(self._idle // 2, longest, self.LONGEST))


def _expects(lookup: LookupState, session: Session, weight: float) -> bool:
    source = lookup.source
    first = next(source.expected(source.place(session)), None)
    return first is not None and first.weight >= weight

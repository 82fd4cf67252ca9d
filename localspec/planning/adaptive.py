"""The measured planner: drafts only as far as this machine and this pair make it pay."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from localspec.decoding.session import Session
from localspec.decoding.tree import ROOT
from localspec.planning.draft_tree import Outlook
from localspec.planning.explore_then_commit import Contest
from localspec.planning.pair_profile import Knowledge
from localspec.planning.planner import Plan
from localspec.planning.prediction import Guess
from localspec.planning.verification_costs import Costs

if TYPE_CHECKING:
    from localspec.decoding.loop import Step

NAME = "auto"
"""The drafter that carries the plans out: `localspec.drafters.hybrid`."""

UNMEASURED = Plan(None, reason="the cost of a pass is not measured yet")
NOTHING = Plan(None, reason="nothing repeats here, and there is no draft model")
UNLIKELY = Plan(None, reason="what the n-gram offers is too unlikely to pay for its verification")
LOSING = Plan(None, reason="the draft model has not paid for itself lately; it is asked again soon")
LEADING = "the draft model leads"
COPYING = "the text repeats itself"
PROBING = "the draft model has not paid for itself lately, and is tried on the last few tokens"
ASLEEP = Plan(None, reason="drafting has not paid lately, and passes are too short to plan each")
HOPELESS = Plan(
    None, reason="passes are so short here that planning drafts costs more than it brings"
)
LAST = Plan(None, reason="the answer ends with the next token")


NONE, POOR, FAIR, GOOD = range(4)
"""What the n-gram offers: nothing, too little to draft, a draft, a sure one. The draft model's
gains are learned apart for each: see `Knowledge.looks`."""


@dataclass(frozen=True, slots=True)
class _Offer:
    """What the n-gram offers at one place.

    Attributes:
        guesses: a chain, as far as it was looked at.
        kind: NONE … GOOD.
        worth: of the best beginning of the chain, as `Outlook.value`; plain decoding's at least.
        stake: seconds lost if its first token is rejected.
    """

    guesses: list[Guess]
    kind: int
    worth: float
    stake: float

    @property
    def pays(self) -> bool:
        """Whether it is worth drafting by itself."""
        return self.kind >= FAIR


class Measured:
    """Chooses at every step what maximises expected tokens per second; see `Outlook`.

    Args:
        knowledge: of this pair on this machine; learns as the answer goes on.
        guess: what the n-gram expects to follow, a chain.
        unread: committed tokens that the draft model has not read, None without a model.
        most: most tokens of a tree.
        leaves: most branches of a tree.
        capacity: tokens that the target's cache holds.
        greedy: whether the answer is greedy: drafts are then chosen, and may branch.
        drawn: whether the draft model's tokens are drawn from its distribution.
        contest: says whether the draft model goes on while the target verifies; None if it never
            does.
    """

    RATE_KEEP = 0.97
    """Weight of the past in the running tokens per second, per step."""
    FIRST_REST, LONGEST_REST = 16, 64
    """Tokens until a draft model that did not pay is asked again."""
    CREDIT, LOOK_RATE = 0.25, 0.12
    """What a look is worth more than usual when an answer begins, in costs of one, and how
    quickly what looks bring replaces that."""
    HORIZON = 16
    """Looks over which the cost of catching up with the text is spread, more in a long answer."""
    STAKES = 2.0
    """A copy is checked with the draft model where so many times a look's cost is at risk."""
    WORTHWHILE = 1.75
    """Where passes are short, and drafts that were always right would not make it so many times
    faster, real ones do not pay for being planned."""
    SHORT, NAP = 3e-3, 16
    """Where a pass takes less than so many seconds, planning (some 50 µs) would show: after a while
    without a draft it is left out for up to so many steps in a row."""
    DIP = 12
    """Sizes looked beyond the best one so far: a pass over 16 can be a bargain where 5 is none."""
    DOUBTFUL, FAINT = 0.2, 0.05
    """A first guess less likely than the one, and a later one less likely to be reached than the
    other, are not worth a thought: no known curve makes them pay."""
    SURE = 0.9
    """Where the n-gram's own next token is this likely, the draft model has little to add."""

    def __init__(
        self,
        knowledge: Knowledge,
        guess: Callable[[Session], Iterator[Guess]],
        unread: Callable[[Session], int] | None,
        *,
        most: int,
        leaves: int,
        capacity: int,
        greedy: bool,
        drawn: bool,
        contest: Contest | None = None,
    ) -> None:
        self._knowledge = knowledge
        self._guess = guess
        self._unread = unread
        self._most = min(most, 63)
        self._leaves = leaves if greedy else 1
        self._capacity = capacity
        self._drawn = drawn and not greedy
        self._ngram = "ngram" if greedy else "ngram, sampled"
        self._contest = contest
        self._costs: Costs | None = None
        self._costs_of: tuple[int, int] | None = None
        self._tokens = self._seconds = 0.0
        self._onward = 0.75
        self._looks: list[float] = []
        self._rest = self.FIRST_REST
        self._looked_at = -1
        self._idle = self._asleep = 0
        self._guesses: Sequence[Guess] = ()
        self._streak = 0
        knowledge.begin()

    def plan(self, session: Session) -> Plan:
        if self._asleep:
            self._asleep -= 1
            return ASLEEP
        knowledge, held = self._knowledge, len(session.context)
        room = min(session.room - 1, self._most, self._capacity - held)
        self._guesses = ()
        if self._looked_at < 0:
            self._looked_at = held
        if not knowledge.target:
            return UNMEASURED
        if room < 1:
            return LAST
        costs = self._prices(held)
        if costs.least[1] < self.SHORT and costs.ceiling < self.WORTHWHILE:
            return HOPELESS
        rate = self._rate(costs)
        offer = self._offered(session, room, costs, rate)
        self._guesses = offer.guesses
        asks = self._asks_model(session, offer, rate)
        probes = not asks and self._probes(offer, held)
        if not asks and not probes and not offer.pays:
            return self._plain(offer, costs)
        self._idle = 0
        outlook = Outlook(
            knowledge,
            costs,
            rate=rate,
            pass_seconds=knowledge.draft.seconds(1, held) + knowledge.row_overhead,
            most=room,
            leaves=self._leaves,
            drawn=self._drawn and asks,
            guesses=offer.guesses,
            streak=self._streak,
            onward=self._onward,
        )
        outlook.asks_model, outlook.probes = asks, probes
        outlook.offer, outlook.plain = offer.kind, offer.worth
        reason = PROBING if probes else LEADING if asks else COPYING
        overlaps = asks and self._contest is not None and self._contest.new_way
        return Plan(NAME, room, reason=reason, overlaps=overlaps, outlook=outlook)

    def observe(self, step: Step) -> None:
        if step.plan is ASLEEP or step.plan is HOPELESS:
            return
        knowledge, context = self._knowledge, step.context_length
        outlook = step.plan.outlook
        pass_size = 1 + len(step.tree)
        knowledge.target.observe(pass_size, context, step.target_seconds)
        overhead = step.seconds - step.target_seconds - step.draft_seconds
        knowledge.spent(overhead, len(step.tree))
        pace = knowledge.target.pace
        self._tokens = self._tokens * self.RATE_KEEP + len(step.tokens)
        self._seconds = self._seconds * self.RATE_KEEP + step.seconds / pace
        if outlook is not None and outlook.probes:
            self._looked_at = context
            for gain in outlook.prospects:
                for kind in (NONE, POOR):
                    self._looks[kind] += self.LOOK_RATE * (gain - self._looks[kind])
            self._rest = min(self._rest * 2, self.LONGEST_REST)
        if outlook is not None and outlook.asks_model:
            if self._contest is not None:
                self._contest.observe(len(step.tokens), step.seconds)
            if outlook.sizes:
                if len(outlook.sizes) == sum(outlook.sizes):
                    seconds = step.draft_seconds / len(outlook.sizes)
                    knowledge.draft.observe(1, context, seconds)
                gain = max(0.0, outlook.gain())
                knowledge.looked(outlook.offer, gain)
                self._looks[outlook.offer] += self.LOOK_RATE * (gain - self._looks[outlook.offer])
                self._looked_at = context
                self._rest = self.FIRST_REST
            self._learn_from_draft(outlook, step)
        self._learn_from_guesses(step)

    def _offered(self, session: Session, room: int, costs: Costs, rate: float) -> _Offer:
        """What the n-gram has to say here, as far as it is worth a thought."""
        guesses: list[Guess] = []
        plain = best = 1.0 - rate * costs.least[1]
        reach = total = 1.0
        first, farthest, stake = 0.0, 1 + self.DIP, 0.0
        chances = self._knowledge.chances[self._ngram]
        for n, guess in enumerate(islice(self._guess(session), room), 2):
            guesses.append(guess)
            reach *= chances.predict(guess.features(self._streak + n - 2))
            if reach < (self.FAINT if first else self.DOUBTFUL) or n > farthest:
                break
            first = first or reach
            total += reach
            worth = total - rate * costs.least[n]
            if worth > best:
                best, farthest = worth, n + self.DIP
                stake = (1.0 - first) * (costs.least[n] - costs.least[1])
        kind = NONE if not first else POOR if best <= plain else FAIR if first < self.SURE else GOOD
        return _Offer(guesses, kind, best, stake)

    def _plain(self, offer: _Offer, costs: Costs) -> Plan:
        """Nothing is drafted: why, and for how long nothing is planned either."""
        self._idle += 1
        if costs.least[1] < self.SHORT:
            self._asleep = min(self._idle // 2, self.NAP)
        if self._unread is None:
            return UNLIKELY if offer.guesses else NOTHING
        return LOSING

    def _prices(self, held: int) -> Costs:
        """What verifying costs at this context length, worked out anew when it has moved."""
        of = (self._knowledge.target.version, held >> 9)
        if self._costs is None or self._costs_of != of:
            self._costs, self._costs_of = Costs(self._knowledge, held, self._most), of
        return self._costs

    def _rate(self, costs: Costs) -> float:
        """Tokens per second to be had: what recent steps brought, at least plain decoding's."""
        plain = 1.0 / costs.least[1]
        if not self._seconds:
            # Eight steps of plain decoding: where every answer begins.
            self._tokens, self._seconds = 8.0, 8.0 * costs.least[1]
        return max(plain, self._tokens / self._seconds)

    def _asks_model(self, session: Session, offer: _Offer, rate: float) -> bool:
        if self._unread is None or not self._knowledge.draft:
            return False
        held, unread = len(session.context), self._unread(session)
        one = self._first_look(1, held)
        if not self._looks:
            # Every answer gives the draft model some credit: the last one may have been unlike it.
            credit = self.CREDIT * rate * one
            self._looks = [gain + credit for gain in self._knowledge.looks]
            if self._knowledge.looks[NONE] < credit:
                self._rest = self.LONGEST_REST  # it has not paid for long: no need to hurry
        if offer.stake > self.STAKES * self._first_look(unread, held):
            return True
        backlog = self._first_look(unread, held) - one if unread > 1 else 0.0
        # Reading what it missed is paid once, and then earned back look by look.
        looks = max(self.HORIZON, session.room // 4)
        return self._looks[offer.kind] > rate * (one + backlog / looks)

    def _probes(self, offer: _Offer, held: int) -> bool:
        """Whether it is time to try a draft model that did not pay; the n-gram's turn otherwise."""
        if self._unread is None or not self._knowledge.draft or offer.pays:
            return False
        return held - self._looked_at >= self._rest

    def _first_look(self, unread: int, held: int) -> float:
        """Seconds until the draft model's first token, `unread` tokens behind."""
        draft = self._knowledge.draft
        return (
            min(draft.seconds(unread, held), unread * draft.seconds(1, held))
            + self._knowledge.row_overhead
        )

    def _learn_from_draft(self, outlook: Outlook, step: Step) -> None:
        """Chances, from what the target said about the candidates along the accepted path.

        Also of candidates that were not verified: where their parent was accepted, what the
        target put in their place is known.
        """
        chances = self._knowledge.chances
        candidates = outlook.candidates
        parent = ROOT
        onward: list[float] = []
        for depth, token in enumerate(step.tokens, 1):
            followed = None
            settled = False
            for number, candidate in enumerate(candidates):
                if candidate.parent != parent or not candidate.kind:
                    continue
                if depth > 1 and candidate.kind.startswith("model"):
                    onward.append(candidate.chance)
                if settled:
                    continue
                hit = candidate.token == token
                if candidate.proposal is not None:
                    hit = depth <= step.accepted  # drawn: what counts is whether it was accepted
                chances[candidate.kind].learn(candidate.features, hit)
                if hit:
                    settled, followed = True, number
            if followed is None:
                break
            parent = followed
        for chance in onward:
            self._onward += 0.05 * (chance - self._onward)

    def _learn_from_guesses(self, step: Step) -> None:
        """The n-gram is checked for nothing, whoever drafted."""
        chances = self._knowledge.chances[self._ngram]
        for n, (guess, token) in enumerate(zip(self._guesses, step.tokens, strict=False)):
            hit = guess.token == token
            if n < 3:  # every token of a long copy teaches the same
                chances.learn(guess.features(self._streak), hit)
            self._streak = self._streak + 1 if hit else 0
            if not hit:
                return

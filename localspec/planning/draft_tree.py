"""What one step's draft is worth while it grows: expected tokens against what they cost.

Tokens per second in the long run are maximised by taking, at every decision, what maximises
expected tokens − rate × expected seconds, where the rate is the tokens per second that are to be
had on average (the renewal-reward argument; Dinkelbach 1967 for the ratio). So every choice
becomes a sum: a draft of k tokens with chances r₁ ≥ … ≥ r_k of being reached and accepted is worth
1 + Σ r_i − rate · T(k + 1), and one more pass of the draft model has to raise that by more than
rate × its seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from localspec.decoding.distribution import Distribution
from localspec.decoding.tree import ROOT, TokenTree
from localspec.planning.pair_profile import Knowledge
from localspec.planning.prediction import Guess
from localspec.planning.verification_costs import Costs

LEAST_REACH = 0.01
"""Candidates less likely than this are not worth keeping in mind."""
FARTHEST = 4
"""Draft passes looked ahead: T(n) has its dips every four tokens."""


@dataclass(slots=True)
class Candidate:
    """A token that may go into the tree.

    Attributes:
        token, source: as in TokenTree; `parent` is the number of another candidate, or ROOT.
        depth: 1 for the first level.
        kind, features: where its chance comes from.
        chance: of being accepted if its parent is and its elder siblings are not.
        reach: of being accepted at all.
        proposal: the distribution it was drawn from, None where it was chosen.
    """

    token: int
    parent: int
    depth: int
    source: str
    kind: str
    features: tuple[float, ...]
    chance: float
    reach: float
    proposal: Distribution | None = None


class Outlook:
    """The candidates of one step, and what they are worth together.

    Args:
        knowledge: chances and costs.
        costs: of the target's passes at this context length.
        rate: tokens per second to be had on average.
        pass_seconds: of one more pass of the draft model.
        most: most tokens to verify.
        leaves: most branches.
        drawn: whether the draft model's tokens are drawn from its distribution: a drawn token is
            never dropped, and branches are left out.
        guesses: what the n-gram expects, a chain.
        streak: of its guesses, how many in a row were right lately.
    """

    __slots__ = (
        "_costs",
        "_knowledge",
        "_least",
        "_most",
        "_pass_cost",
        "_rate",
        "_reaches",
        "_summed",
        "asks_model",
        "candidates",
        "chances",
        "drawn",
        "guesses",
        "kept",
        "leaves",
        "offer",
        "onward",
        "plain",
        "probes",
        "prospects",
        "seconds",
        "sizes",
        "streak",
        "tip",
        "tokens",
    )

    def __init__(
        self,
        knowledge: Knowledge,
        costs: Costs,
        *,
        rate: float,
        pass_seconds: float,
        most: int,
        leaves: int,
        drawn: bool,
        guesses: Sequence[Guess],
        streak: int,
        onward: float,
    ) -> None:
        self._knowledge = knowledge
        self._costs = costs
        self._least = costs.least
        self._rate = rate
        self._pass_cost = rate * pass_seconds
        self._most = most
        self.leaves = leaves
        self.drawn = drawn
        self.guesses = guesses
        self.streak = streak
        self.onward = onward
        self.candidates: list[Candidate] = []
        self._reaches: list[float] = []
        self._summed = 0.0
        self.tip = ROOT
        self.sizes: list[int] = []
        """Tokens that each pass of the draft model read."""
        self.asks_model = False
        self.probes = False
        """Whether the draft model is only tried on what is known, to see whether it would pay."""
        self.prospects: list[float] = []
        """What a look at the draft model would have gained at each of those places."""
        self.offer = 0
        self.plain = 0.0
        self.tokens = 1.0
        """Tokens expected of the step, once settled."""
        self.seconds = 0.0
        """Seconds that the target's pass is expected to take, once settled."""
        self.kept: list[int] = []
        """Candidates that went into the tree, in its order."""
        self.chances: dict[int, float] = {}
        """Predicted chance of each node of the tree, given its parent; for reports."""

    def chance(self, kind: str, features: Sequence[float]) -> float:
        """The chance of a token of this kind."""
        return self._knowledge.chances[kind].predict(features)

    def add(
        self,
        token: int,
        parent: int,
        source: str,
        kind: str,
        features: tuple[float, ...],
        *,
        left: float = 1.0,
        chance: float | None = None,
        proposal: Distribution | None = None,
        ends: bool = False,
    ) -> int:
        """Put a candidate below another one.

        Args:
            ends: whether it ends the answer: accepting it then brings nothing, as the target's
                own token behind it is lost.
            left: probability that no elder sibling is accepted, given the parent.
            chance: if it is known already.
        """
        if chance is None:
            chance = self._knowledge.chances[kind].predict(features)
        above, depth = 1.0, 1
        if parent != ROOT:
            elder = self.candidates[parent]
            above, depth = elder.reach, elder.depth + 1
        reach = 0.0 if ends else above * left * chance
        self.candidates.append(
            Candidate(token, parent, depth, source, kind, features, chance, reach, proposal)
        )
        self._reaches.append(reach)
        self._summed += reach
        return len(self.candidates) - 1

    def value(self, further: Sequence[float] = ()) -> float:
        """What the candidates, and further ones with such chances, are worth."""
        least, rate = self._least, self._rate
        if self.drawn:
            count = len(self._reaches) + len(further)
            return 1.0 + self._summed + sum(further) - rate * least[min(count, self._most) + 1]
        reaches = sorted([*self._reaches, *further], reverse=True)
        total, best = 1.0, 1.0 - rate * least[1]
        for n, reach in enumerate(reaches[: self._most], 2):
            total += reach
            worth = total - rate * least[n]
            if worth > best:
                best = worth
        return best

    def worth_a_pass(self) -> bool:
        """Whether reading one more token in the draft model is expected to pay."""
        reach = 1.0 if self.tip == ROOT else self.candidates[self.tip].reach
        return self._grows(self.value(), (), reach)

    def worth_drawing(self, chance: float) -> bool:
        """Whether a token with this chance should follow the tip; asked before it is drawn."""
        reach = chance if self.tip == ROOT else chance * self.candidates[self.tip].reach
        stop = self.value()
        return self.value((reach,)) > stop or self._grows(stop, (reach,), reach)

    def _grows(self, now: float, known: tuple[float, ...], reach: float) -> bool:
        """Whether some number of further passes is worth more than `now`."""
        further, cost = list(known), 0.0
        room = self._most - (0 if self.tip == ROOT else self.candidates[self.tip].depth)
        for _ in range(min(FARTHEST, room - len(known))):
            reach *= self.onward
            cost += self._pass_cost
            if reach + 0.2 < cost and not self.drawn:
                break  # what is left to gain is less than what is spent
            further.append(reach)
            if self.value(further) - cost > now:
                return True
        return False

    def prospect(self, chance: float) -> float:
        """Tokens that a draft gains whose first token has this chance, as `gain` would say."""
        reaches, cost, best = [chance], 0.0, 0.0
        plain = 1.0 - self._rate * self._least[1]
        while len(reaches) <= min(FARTHEST, self._most):
            total = 1.0 + sum(reaches)
            best = max(best, total - self._rate * self._least[len(reaches) + 1] - cost - plain)
            reaches.append(reaches[-1] * self.onward)
            cost += self._pass_cost
        return best

    def extend_with_guesses(
        self, parent: int, guesses: Sequence[Guess], kind: str, streak: int
    ) -> None:
        """Hang what the n-gram expects below a candidate, as far as it is likely enough."""
        reach = 1.0 if parent == ROOT else self.candidates[parent].reach
        for n, guess in enumerate(guesses, streak):
            features = guess.features(n)
            chance = self._knowledge.chances[kind].predict(features)
            reach *= chance
            if reach < LEAST_REACH:
                break
            parent = self.add(guess.token, parent, "ngram", kind, features, chance=chance)

    def settle(self, filler: int) -> None:
        """Decide which candidates are verified; `filler` takes a slot that is cheaper than none."""
        order: list[int] = list(range(len(self.candidates)))
        if not self.drawn:
            # Parents are at least as likely as their children, and come first among equals.
            order.sort(key=lambda number: -self.candidates[number].reach)
            order = self._fitting(order)
        best, count, total = 1.0 - self._rate * self._least[1], 0, 1.0
        firm = sum(candidate.proposal is not None for candidate in self.candidates)
        if self.drawn and firm:
            best = float("-inf")  # what was drawn is verified
        for n, number in enumerate(order[: self._most], 1):
            total += self.candidates[number].reach
            if n < firm:
                continue
            worth = total - self._rate * self._least[n + 1]
            if worth > best:
                best, count = worth, n
        kept = order[:count]
        if count:
            missing = min(self._costs.size[count + 1], self._most + 1) - 1 - count
            kept += order[count : count + missing]
            missing -= len(kept) - count
            parent = kept[-1] if self.drawn else self._end(kept)
            for _ in range(missing):
                parent = self.add(filler, parent, "ngram", "", (), chance=0.0)
                kept.append(parent)
        kept.sort()
        self.kept = kept
        self.tokens = 1.0 + sum(self.candidates[number].reach for number in kept)
        self.seconds = self._least[len(kept) + 1]

    def plant(self, tree: TokenTree) -> None:
        """Put what was kept into the tree."""
        nodes = {ROOT: ROOT}
        for number in self.kept:
            candidate = self.candidates[number]
            node = tree.add(
                candidate.token, nodes[candidate.parent], candidate.source, candidate.proposal
            )
            nodes[number] = node
            self.chances[node] = candidate.chance

    def why_nothing(self, reason: str) -> str:
        """Why nothing was drafted although a draft was planned, for `reason`."""
        if self.sizes:
            return "the draft model was asked, and its tokens were too unlikely to be verified"
        return reason

    @property
    def cost(self) -> float:
        """Seconds that the step is expected to take, the draft model's passes included."""
        return self.seconds + len(self.sizes) * self._pass_cost / self._rate

    def gain(self) -> float:
        """Tokens that this draft is worth more than none, first pass of the draft model aside."""
        passes = max(0, len(self.sizes) - 1)
        return self.tokens - self._rate * self.seconds - self._pass_cost * passes - self.plain

    def _end(self, kept: list[int]) -> int:
        """The last candidate of the main branch."""
        end = ROOT
        while True:
            below = [n for n in kept if self.candidates[n].parent == end]
            if not below:
                return end
            end = below[0]

    def _fitting(self, order: Sequence[int]) -> list[int]:
        """The candidates, best first, without those that would make a branch too many.

        Every beginning of the result is a tree of at most so many branches as fit.
        """
        kept: set[int] = set()
        above: set[int] = set()
        leaves = 0
        found = []
        for number in order:
            parent = self.candidates[number].parent
            if parent != ROOT and parent not in kept:
                continue
            branches = parent in above or (parent == ROOT and leaves == 0)
            if branches and leaves == self.leaves:
                continue
            leaves += branches
            kept.add(number)
            above.add(parent)
            found.append(number)
        return found

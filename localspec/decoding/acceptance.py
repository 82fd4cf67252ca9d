"""Lossless acceptance rules: the generated text keeps the distribution p of the target.

p is the target's distribution, q the drafter's, as in the papers."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

from localspec.decoding.distribution import Distribution
from localspec.decoding.occurrences import NONE, Occurrences
from localspec.decoding.random_source import SeededRandom
from localspec.decoding.sampling import DEAD_ENDS, NO_TOKEN, Constraint, Rows, Sampler, argmax
from localspec.decoding.session import Session
from localspec.decoding.tree import ROOT, TokenTree


class Verdict(NamedTuple):
    """The decision of a rule.

    Attributes:
        path: accepted nodes, from the first level down.
        token: the target's own token after them, NO_TOKEN if none can follow.
        tested: nodes whose acceptance was decided, those after the first rejection excluded.
    """

    path: list[int]
    token: int
    tested: list[int]


class Verification:
    """p at the root and at every node of a verified tree, computed on demand."""

    __slots__ = ("_constraints", "_p", "_raw", "rows", "session", "tree")

    def __init__(self, rows: Rows, tree: TokenTree, session: Session) -> None:
        self.rows = rows
        self.tree = tree
        self.session = session
        self._p: dict[int, Distribution] = {}
        constraint, sampler = session.constraint, session.sampler
        self._constraints = None if constraint is None else {ROOT: constraint}
        # Whether the best token of a row is the `argmax` of its unmodified logits.
        self._raw = sampler.greedy and not sampler.adjusts and constraint is None

    def p(self, node: int) -> Distribution:
        """The target's distribution after `node`. Call it from the root downwards, and not beyond a
        token of probability 0."""
        found = self._p.get(node)
        if found is None:
            found = self._p[node] = self.distribution(node, self.session.sampler)
        return found

    def distribution(self, node: int, sampler: Sampler) -> Distribution:
        """`p` by another sampler, with the session's bias and penalties."""
        try:
            row, recent = self.rows[node + 1], self._recent(node)
            return sampler.distribution(row, recent, self.constraint(node))
        except DEAD_ENDS:
            if node == ROOT:
                raise
            return Distribution.certain(NO_TOKEN)

    def best(self, node: int) -> int:
        """The only token that greedy text can have after `node`."""
        return argmax(self.rows[node + 1]) if self._raw else self.p(node).ids.item(0)

    def constraint(self, node: int) -> Constraint | None:
        if (known := self._constraints) is None:
            return None
        if node not in known:
            further = self.constraint_after(self.tree.parents[node], self.tree.tokens[node])
            assert further is not None, "there is one at the root"
            known[node] = further
        return known[node]

    def constraint_after(self, node: int, token: int) -> Constraint | None:
        if (constraint := self.constraint(node)) is None:
            return None
        further = constraint.fork()
        further.advance(token)
        return further

    def position(self, node: int) -> int:
        return self.session.position + (0 if node == ROOT else self.tree.depths[node])

    def _recent(self, node: int) -> Occurrences:
        # Only penalties need it, and it is the most expensive part.
        if not self.session.sampler.adjusts:
            return NONE
        return self.session.recent(self.tree.path_tokens(node))


class AcceptanceRule(ABC):
    """Decides which nodes of a verified tree are accepted.

    Attributes:
        trees: whether it handles more than one branch.
        coupled: whether drafts may be drawn with the noise of the target's own token; only if the
            text does not depend on the draft.
    """

    name: str
    lossless = True
    trees = True
    coupled = False

    @abstractmethod
    def accept(self, target: Verification, random: SeededRandom) -> Verdict: ...


def walk(tree: TokenTree, accepts: Callable[[int, int], bool]) -> tuple[list[int], list[int], int]:
    """Return the accepted path, the tested nodes, and the node where no child was accepted."""
    node = ROOT
    path: list[int] = []
    tested: list[int] = []
    while True:
        for child in tree.children(node):
            tested.append(child)
            if accepts(node, child):
                path.append(child)
                node = child
                break
        else:
            return path, tested, node


def _match(tree: TokenTree, choose: Callable[[int], int]) -> Verdict:
    """Accept the drafted tokens that equal the one chosen at their parent."""
    # Does not use `walk`: after a pass, with cold CPU caches, each call is expensive.
    tokens, node, chosen = tree.tokens, ROOT, choose(ROOT)
    path: list[int] = []
    tested: list[int] = []
    while len(path) < len(tokens):
        for child in tree.children(node):
            tested.append(child)
            if tokens[child] == chosen:
                path.append(child)
                node, chosen = child, choose(child)
                break
        else:
            break
    return Verdict(path, chosen, tested)


class GreedyMatch(AcceptanceRule):
    """Accept the tokens that the target itself would pick; for temperature 0."""

    name = "greedy"

    def accept(self, target: Verification, random: SeededRandom) -> Verdict:
        return _match(target.tree, target.best)


class SampleMatch(AcceptanceRule):
    """Draw the token as plain decoding would, and accept the draft that equals it.

    The text is a function of logits and seed alone. A coupled draft is accepted with probability at
    least s/(2 − s), s = Σ min(p, q) (Daliri et al. 2024, arXiv 2408.07978)."""

    name = "match"
    coupled = True

    def accept(self, target: Verification, random: SeededRandom) -> Verdict:
        return _match(target.tree, lambda node: random.draw(target.p(node), target.position(node)))


class SpeculativeSampling(AcceptanceRule):
    """Accept with min(1, p/q), else resample from (p − q)+.

    Chains: Leviathan et al. 2023, algorithm 1; Chen et al. 2023, algorithm 2. Several candidates at
    a node, drawn without replacement: SpecInfer (Miao et al. 2023), algorithm 2."""

    name = "token"

    def accept(self, target: Verification, random: SeededRandom) -> Verdict:
        tree, p, begins = target.tree, target.p(ROOT), target.position(ROOT)

        def accepts(node: int, child: int) -> bool:
            nonlocal p
            token = tree.tokens[child]
            q = tree.proposals[child] or Distribution.certain(token)
            if not random.coin(p.prob(token) / q.prob(token), begins, child):
                p = p.residual(q)
                return False
            p = target.p(child)
            return True

        path, tested, end = walk(tree, accepts)
        return Verdict(path, random.draw(p, target.position(end)), tested)


class BlockVerification(AcceptanceRule):
    """Accept the longest prefix that the draft as a whole supports: Sun et al. 2024, algorithm 2.
    For chains."""

    name = "block"
    trees = False

    def accept(self, target: Verification, random: SeededRandom) -> Verdict:
        tree, begins = target.tree, target.position(ROOT)
        ratio = 1.0  # p_i of the paper: min(1, p_{i−1} · p/q), the budget that reached token i
        proposed = [q or Distribution.certain(t) for q, t in zip(tree.proposals, tree.tokens)]  # noqa: B905
        count, accepted, last = len(proposed), 0, target.p(ROOT)
        p, left = last, None  # left: weights and sum of the excess after the accepted ones
        for node, (q, token) in enumerate(zip(proposed, tree.tokens)):  # noqa: B905
            ratio = min(1.0, ratio * p.prob(token) / q.prob(token))
            if ratio == 0.0:
                break
            p = target.p(node)
            # h_i of the paper: probability that the block is accepted at least up to `node`.
            chance, further = ratio, None
            if node + 1 < count:
                further = p.excess(proposed[node + 1], ratio)
                surplus = further[1]
                chance = surplus / (surplus + (1.0 - ratio)) if surplus > 0.0 else 0.0
            if random.coin(chance, begins, node):
                accepted, last, left = node + 1, p, further
        path, position = list(range(accepted)), begins + accepted
        if accepted == count:
            return Verdict(path, random.draw(last, position), path)
        last = last.left_over(*(left or last.excess(proposed[accepted])))
        return Verdict(path, random.draw(last, position), [*path, accepted])

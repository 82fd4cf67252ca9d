"""Broken acceptance rules, which comparisons with the target must detect."""

from localspec.decoding.acceptance import SpeculativeSampling, Verdict, Verification
from localspec.decoding.distribution import Distribution
from localspec.decoding.random_source import SeededRandom
from localspec.decoding.tree import ROOT, TokenTree


class BrokenRule(SpeculativeSampling):
    """Speculative sampling in parts that subclasses replace."""

    name = "broken"

    def accept(self, target: Verification, random: SeededRandom) -> Verdict:
        tree, node = target.tree, ROOT
        path: list[int] = []
        while True:
            p = target.p(node)
            for child in tree.children(node):
                token = tree.tokens[child]
                q = self.q(tree, child)
                if q.prob(token) == 0.0 or random.coin(
                    self.chance(p.prob(token), q.prob(token)), target.position(ROOT), child
                ):
                    path.append(child)
                    node = child
                    break
                p = self.rest(p, q)
            else:
                return Verdict(path, random.draw(p, target.position(node)), path)

    def q(self, tree: TokenTree, child: int) -> Distribution:
        return tree.proposals[child] or Distribution.certain(tree.tokens[child])

    def chance(self, p: float, q: float) -> float:
        return p / q

    def rest(self, p: Distribution, q: Distribution) -> Distribution:
        return p.residual(q)


class AlwaysAcceptRule(BrokenRule):
    def chance(self, p: float, q: float) -> float:
        return 1.0


class UncorrectedResamplingRule(BrokenRule):
    def rest(self, p: Distribution, q: Distribution) -> Distribution:
        return p


class IndependentSiblingsRule(BrokenRule):
    """Tests every candidate with the q of the first, as if drawn with replacement."""

    def q(self, tree: TokenTree, child: int) -> Distribution:
        return super().q(tree, tree.children(tree.parents[child])[0])

"""Rules that are broken on purpose: the comparison behind the lossless tests must notice."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from localspec.decoding.acceptance import (
    AcceptanceRule,
    BlockVerification,
    SpeculativeSampling,
    Verdict,
    Verification,
)
from localspec.decoding.distribution import Distribution
from localspec.decoding.interfaces import Plan
from localspec.decoding.random_source import RandomSource
from localspec.decoding.session import Session
from localspec.decoding.sources import Source
from localspec.decoding.tree import ROOT, TokenTree
from tests.decoding.exact import EXACT, drafted, gap, model_drafter, texts
from tests.support.toys import ToyModel, ToySource, drawn_chain, started

WRONG = 1e-3
"""A gap as large as this must not go unseen."""

MODEL = started([[0.5, 0.4, 0.1], [0.1, 0.5, 0.4], [0.4, 0.1, 0.5]])
DRAFT = started([[0.1, 0.2, 0.7], [0.7, 0.1, 0.2], [0.2, 0.7, 0.1]])
"""Everywhere two tokens are left of p after a rejection."""
CHAIN = Plan(None, depth=2)
TREE = Plan(None, depth=2, width=2)


class Broken(SpeculativeSampling):
    """Speculative sampling in parts that can be broken one at a time."""

    name = "broken"

    def accept(self, target: Verification, random: RandomSource) -> Verdict:
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


class AlwaysAccepts(Broken):
    def chance(self, p: float, q: float) -> float:
        return 1.0


class AcceptsLikeMatching(Broken):
    """Accepts with p instead of min(1, p/q), and yet resamples from the residual."""

    def chance(self, p: float, q: float) -> float:
        return p


class ResamplesFromTarget(Broken):
    def rest(self, p: Distribution, q: Distribution) -> Distribution:
        return p


class TakesSiblingsForIndependent(Broken):
    """Tests every candidate with the q of the first, as if it had been put back."""

    def q(self, tree: TokenTree, child: int) -> Distribution:
        return super().q(tree, tree.children(tree.parents[child])[0])


class ForgetsTheBudget(BlockVerification):
    """Carries no ratio from one token of the block to the next."""

    name = "forgetful"

    def accept(self, target: Verification, random: RandomSource) -> Verdict:
        tree = target.tree
        accepted, last = 0, target.p(ROOT)
        for node, token in enumerate(tree.tokens):
            q = tree.proposals[node] or Distribution.certain(token)
            ratio = min(1.0, target.p(node - 1).prob(token) / q.prob(token))
            chance = self._chance(target, node, target.p(node), ratio)
            if random.coin(chance, target.position(ROOT), node):
                accepted, last = node + 1, target.p(node)
        path, position = list(range(accepted)), target.position(ROOT) + accepted
        if accepted == len(tree):
            return Verdict(path, random.draw(last, position), path)
        q = tree.proposals[accepted] or Distribution.certain(tree.tokens[accepted])
        return Verdict(path, random.draw(last.residual(q), position), path)

    @staticmethod
    def _chance(target: Verification, node: int, p: Distribution, ratio: float) -> float:
        """As the rule's own."""
        tree = target.tree
        if node + 1 == len(tree):
            return ratio
        q = tree.proposals[node + 1] or Distribution.certain(tree.tokens[node + 1])
        _, surplus = p.excess(q, ratio)
        return surplus / (surplus + (1.0 - ratio)) if surplus > 0.0 else 0.0


def drops_poor_tokens(draft: ToyModel) -> ToySource:
    """Leaves a drawn token out because it turned out improbable."""

    def propose(session: Session, plan: Plan, tree: TokenTree) -> None:
        drawn = TokenTree()
        drawn_chain(draft).propose(session, plan, drawn)
        node = ROOT
        for token, q in zip(drawn.tokens, drawn.proposals, strict=True):
            if q is None or q.prob(token) < 0.45:
                break
            node = tree.add(token, node, "toy", q)

    return ToySource(propose)


@pytest.mark.parametrize("plan", [CHAIN, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("rule", [SpeculativeSampling(), Broken()], ids=["real", "copy"])
def test_sound_rule_passes_on_the_models_that_unmask_broken_ones(
    plan: Plan, rule: AcceptanceRule
) -> None:
    assert gap(drafted(MODEL, lambda: model_drafter(DRAFT), plan, rule), texts(MODEL)) < EXACT


@pytest.mark.parametrize(
    ("rule", "plan"),
    [
        (AlwaysAccepts(), CHAIN),
        (AcceptsLikeMatching(), CHAIN),
        (ResamplesFromTarget(), CHAIN),
        (ForgetsTheBudget(), CHAIN),
        (AlwaysAccepts(), TREE),
        (ResamplesFromTarget(), TREE),
        (TakesSiblingsForIndependent(), TREE),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, Plan) else f"w{value.width}",
)
def test_broken_rule_is_found_out(rule: AcceptanceRule, plan: Plan) -> None:
    assert gap(drafted(MODEL, lambda: model_drafter(DRAFT), plan, rule), texts(MODEL)) > WRONG


@pytest.mark.parametrize("make", [drops_poor_tokens], ids=["drops drawn tokens"])
def test_broken_source_is_found_out(make: Callable[[ToyModel], Source]) -> None:
    found = drafted(MODEL, lambda: make(DRAFT), CHAIN, SpeculativeSampling())
    assert gap(found, texts(MODEL)) > WRONG

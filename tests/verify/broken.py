"""Builds that are wrong, each in one way; they take the place of the target. Rules that are wrong
are those of `tests.decoding.broken`."""

from collections.abc import Sequence

import numpy as np
import pytest

from localspec import Engine
from localspec.decoding import rules
from localspec.decoding.acceptance import SpeculativeSampling, Verification
from localspec.decoding.interfaces import PassRequest, PassResult
from localspec.decoding.sampling import Constraint
from localspec.decoding.tree import ROOT, TokenTree
from localspec.llama.context import Context
from tests.support import inside
from tests.support.toys import ForbiddenPairs


def with_rule(patch: pytest.MonkeyPatch, rule: type[SpeculativeSampling]) -> None:
    """Replace all lossless rules for sampled text by this one."""
    patch.setattr(rules, "RULES", dict.fromkeys(rules.RULES, rule))


class RejectedBranchTarget(Context):
    """Keeps a rejected sibling's cells, under the token of the accepted one."""

    def commit(self, tree: TokenTree, path: Sequence[int]) -> None:
        siblings = tree.children(ROOT)
        if not path or len(siblings) < 2:
            super().commit(tree, path)
            return
        wrong = next(node for node in siblings if node != path[0])
        super().commit(tree, [wrong])
        self.tokens[-1] = tree.tokens[path[0]]


class RejectedTailTarget(Context):
    """Keeps rejected tokens of a chain in the cache."""

    def commit(self, tree: TokenTree, path: Sequence[int]) -> None:
        if tree.tokens and tree.is_chain():
            self.tokens += [tree.tokens[node] for node in path]
        else:
            super().commit(tree, path)


class RoundingTarget(Context):
    """Changes the rows of passes over several tokens."""

    def change(self, rows: np.ndarray) -> None:
        raise NotImplementedError

    def forward(self, request: PassRequest) -> PassResult:
        found = super().forward(request)
        if not request.tree.tokens:
            return found
        rows = np.array(found.rows)
        self.change(rows)
        return PassResult(rows, found.seconds)


class NearTieTarget(RoundingTarget):
    """Swaps the two best logits where they are close, as rounding might."""

    CLOSE = 1.0

    def change(self, rows: np.ndarray) -> None:
        for row in rows:
            second, best = row.argpartition(-2)[-2:]
            if abs(row[best] - row[second]) < self.CLOSE:
                row[[second, best]] = row[[best, second]]


class BitFlipTarget(RoundingTarget):
    """Changes the last bit of the lowest logit."""

    def change(self, rows: np.ndarray) -> None:
        worst = rows.argmin(axis=1)
        rows[range(len(rows)), worst] = np.nextafter(rows.min(axis=1), np.float32(0.0))


def with_target(patch: pytest.MonkeyPatch, engine: Engine, kind: type[Context]) -> None:
    patch.setattr(inside.slot(engine).cache, "__class__", kind)


def without_grammar_on_drafts(patch: pytest.MonkeyPatch) -> None:
    """Apply the grammar at the root only, and not to drafts."""
    right = Verification.constraint

    def only_at_the_root(self: Verification, node: int) -> Constraint | None:
        there = right(self, ROOT)
        return there if node == ROOT or there is None else ForbiddenPairs(set(), 0)  # nothing

    patch.setattr(Verification, "constraint", only_at_the_root)

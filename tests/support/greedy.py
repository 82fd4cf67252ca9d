"""Comparing greedy token sequences, which may diverge at near-ties.

With localspec's kernels they are equal. Elsewhere batched and single-token passes use different
kernels, whose logits differ in the last bits (by 0.1 with 8-bit activations). Sequences may diverge
where two logits are closer than that measured noise.
"""

from collections.abc import Sequence
from copy import copy
from functools import cached_property
from typing import NamedTuple

import numpy as np

from localspec import Engine, ModelOptions
from localspec.decoding.interfaces import PassRequest
from localspec.decoding.tree import ROOT, TokenTree
from localspec.llama.context import Context
from tests.support.asking import COUNT

CLEAR = "Tim was very happy."
"""The built-in target's answer of 60 tokens to this has no near-tie: the best token leads by 0.26.
For tests that compare two answers with different drafts of a planner."""


class Text(NamedTuple):
    """Greedy tokens, and before each the gap between the two best logits."""

    tokens: list[int]
    gaps: list[float]


class Reference:
    """Plain decoding of prompts in a separate context, on first use."""

    def __init__(self, engine: Engine, prompts: Sequence[str]) -> None:
        self.context = Context.open(engine.model, ModelOptions(context=1024))
        self.texts = list(prompts)
        tokenize = engine.model.vocabulary.tokenize
        self.prompts = [tokenize(prompt, special=True, add_bos=True) for prompt in prompts]
        self._answers: dict[int, list[int]] = {}

    @property
    def tokens(self) -> list[list[int]]:
        """The answers to the prompts."""
        for n, prompt in enumerate(self.prompts):
            if n not in self._answers:
                self._answers[n] = greedy(self.context, prompt, COUNT)
        return [self._answers[n] for n in range(len(self.prompts))]

    @cached_property
    def noise(self) -> float:
        """The largest change of gaps by passes over trees."""
        return batch_noise(self.context, self.prompts[::4])

    def first(self, count: int) -> "Reference":
        """The same for the first prompts, with shared answers."""
        part = copy(self)
        part.prompts, part.texts = self.prompts[:count], self.texts[:count]
        return part


def plain_text(context: Context, prompt: Sequence[int], count: int) -> Text:
    """Plain decoding without localspec's loop: a pass per token, then arg-max."""
    context.clear()
    row = context.extend(prompt)[-1]
    text = Text([], [])
    while len(text.tokens) < count:
        text.tokens.append(int(row.argmax()))
        second, first = np.partition(row, -2)[-2:]
        text.gaps.append(float(first - second))
        if context.model.vocabulary.ends(text.tokens[-1]):
            break
        row = context.extend(text.tokens[-1:])[-1]
    return text


def greedy(context: Context, prompt: Sequence[int], count: int) -> list[int]:
    """The tokens of `plain_text`."""
    return plain_text(context, prompt, count).tokens


def batch_noise(context: Context, prompts: Sequence[Sequence[int]]) -> float:
    """The largest change by a pass over a tree of the gap between the two best tokens, over trees
    of each prompt's greedy continuation and wrong branches."""
    shifts = []
    for prompt in prompts:
        tokens = greedy(context, prompt, 24)
        context.clear()
        single = [context.extend(prompt)[-1].copy()]
        single += [context.extend([token])[-1].copy() for token in tokens]
        context.clear()
        context.extend(prompt)
        known = [*prompt, tokens[0]]
        for start in range(1, len(tokens) - 4, 4):
            tree = TokenTree()
            wrong = tree.add((tokens[start] + 1) % 1000 + 5, ROOT, "test")
            tree.add(7, wrong, "test")
            path, node = [], ROOT
            for token in tokens[start : start + 3]:
                node = tree.add(token, node, "test")
                path.append(node)
            rows = context.forward(PassRequest(known, tree)).rows
            for at, row in enumerate([0, *(n + 1 for n in path)]):
                shifts.append(_gap_shift(rows[row], single[start + at]))
            context.commit(tree, path)
            known += tokens[start : start + 4]
    return max(shifts)


def _gap_shift(row: np.ndarray, reference: np.ndarray) -> float:
    second, first = reference.argsort()[-2:]
    return abs(float((row[first] - row[second]) - (reference[first] - reference[second])))


def divergence(
    context: Context, prompt: Sequence[int], expected: Sequence[int], got: Sequence[int]
) -> tuple[int, float] | None:
    """Where two greedy sequences diverge, and the gap between the two tokens' logits there; None if
    one is a prefix of the other."""
    at = next((i for i, (a, b) in enumerate(zip(expected, got, strict=False)) if a != b), None)
    if at is None:
        return None
    context.clear()
    row = context.extend(prompt)[-1]
    for token in expected[:at]:
        row = context.extend([token])[-1]
    return at, float(row[expected[at]] - row[got[at]])

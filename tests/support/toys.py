"""Toy parts, for which exact results are known.

A toy language model is a table: the next of three or four tokens depends on the last two. A
generation takes few coins and draws, so `enumerate_outcomes` can compute the exact probability of
every text. Models, caches and targets check their use, and invalidate rows of logits that a later
pass has overwritten.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TypeVar
from zlib import crc32

import numpy as np
import numpy.typing as npt
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from localspec.decoding.distribution import Distribution, Ids, Probabilities
from localspec.decoding.interfaces import Limits, PassRequest, PassResult, Plan
from localspec.decoding.random_source import SeededRandom
from localspec.decoding.sampling import (
    NEVER,
    Constraint,
    Row,
    Rows,
    Sampler,
    SamplingParams,
    top_ids,
)
from localspec.decoding.session import Session
from localspec.decoding.sources import Source
from localspec.decoding.tree import ROOT, TokenTree

Outcome = TypeVar("Outcome", bound=Hashable)

SIZE = 3  # tokens that toy models generate
START = SIZE
"""A further token for the end of prompts. Its follower is certain, so that the first step, which
never drafts, is deterministic."""
AS_IS = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
"""The model's own distribution."""
GREEDY = SamplingParams(temperature=0.0)


def never(token: int) -> bool:
    """No token ends the text."""
    return False


def examples(count: int) -> settings:
    """The same `count` examples in every run."""
    return settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


class ToyModel:
    """P(next | last two tokens), as logits. `size`: tokens in the vocabulary; `rows`: float32
    [size, size, size], log P(next | second last, last), -inf is impossible."""

    def __init__(self, weights: npt.ArrayLike) -> None:
        """`weights` need not sum to 1; missing leading axes are broadcast."""
        table = np.asarray(weights, np.float64)
        self.size = table.shape[-1]
        table = np.broadcast_to(table, (self.size,) * 3)
        with np.errstate(divide="ignore"):
            logs: Rows = np.log(table / table.sum(axis=-1, keepdims=True)).astype(np.float32)
        self.rows = logs
        self._distributions: dict[tuple[int, int], Distribution] = {}

    def logits(self, contexts: Sequence[Sequence[int]]) -> Rows:
        """A row after each of the contexts, float32 [len(contexts), size]."""
        pairs = np.array([(c[-2] if len(c) > 1 else 0, c[-1]) for c in contexts])
        rows: Rows = self.rows[pairs[:, 0], pairs[:, 1]]
        return rows

    def probabilities(self, context: Sequence[int]) -> npt.NDArray[np.float64]:
        """The next-token distribution, float64 [size], of the rounded logits of `logits`."""
        weights = np.exp(self.logits([context])[0].astype(np.float64))
        normalised: npt.NDArray[np.float64] = weights / weights.sum()
        return normalised

    def distribution(self, context: Sequence[int]) -> Distribution:
        """The same without impossible tokens, cached by the end of the context."""
        end = (context[-2] if len(context) > 1 else 0, context[-1])
        found = self._distributions.get(end)
        if found is None:
            probs = self.probabilities(context)
            ids = np.flatnonzero(probs).astype(np.int32)
            found = self._distributions[end] = Distribution(ids, probs[ids])
        return found


def with_start(weights: npt.ArrayLike) -> ToyModel:
    """A model over SIZE tokens and START, after which token 0 is certain."""
    inner = np.broadcast_to(np.asarray(weights, np.float64), (SIZE,) * 3)
    table = np.zeros((SIZE + 1,) * 3)
    table[:SIZE, :SIZE, :SIZE] = inner
    table[START, :SIZE, :SIZE] = inner[0]
    table[:, START, 0] = 1.0
    return ToyModel(table)


class SuccessorModel(ToyModel):
    """A known follower of each token has some probability; the rest is uniform."""

    def __init__(self, follows: Mapping[int, tuple[int, float]], size: int) -> None:
        self.size = size
        table = np.full((size, size), 1.0 / size)
        for token, (follower, p) in follows.items():
            table[token] = (1.0 - p) / size
            table[token, follower] += p
        self._table: Rows = np.log(table).astype(np.float32)
        self._distributions = {}

    def logits(self, contexts: Sequence[Sequence[int]]) -> Rows:
        rows: Rows = self._table[[context[-1] for context in contexts]]
        return rows


def models(least: int = 0, most: int = 4) -> st.SearchStrategy[ToyModel]:
    """Models with arbitrary conditional distributions, ties and (unless `least` > 0) zeros."""
    row = st.lists(st.integers(least, most), min_size=SIZE, max_size=SIZE)
    possible = row.map(lambda weights: weights if any(weights) else [1, 0, 0])
    rows = st.lists(possible, min_size=SIZE * SIZE, max_size=SIZE * SIZE)
    return rows.map(lambda table: with_start(np.reshape(table, (SIZE,) * 3)))


def random_case(name: str, least: int = 0) -> tuple[ToyModel, ToyModel, list[int]]:
    """A random target, draft model and prompt for each name. For tests of many combinations, where
    half of Hypothesis's examples would be the simplest one."""
    random = np.random.default_rng(crc32(name.encode()))
    weights = random.integers(least, 5, (2, SIZE, SIZE, SIZE))
    weights[..., 0] += ~weights.any(axis=-1)
    model, draft = map(with_start, weights)
    return model, draft, [*random.integers(0, SIZE, random.integers(2, 9)).tolist(), START]


def token_tree(*nodes: tuple[int, int]) -> TokenTree:
    """A tree of (token, parent) pairs."""
    tree = TokenTree()
    for token, parent in nodes:
        tree.add(token, parent, "test")
    return tree


class ToyTarget:
    """An `interfaces.Target` over a toy model that checks the protocol. `cache`: the tokens it
    holds; `passes`: their number, each one native second; `trees`: the tree of each pass."""

    def __init__(
        self, model: ToyModel, *, capacity: int = 64, max_leaves: int = 16, max_draft: int = 16
    ) -> None:
        self.model = model
        self.capacity = capacity
        self.max_leaves = max_leaves
        self.max_draft = max_draft
        self.cache: list[int] = []
        self.passes = 0
        self.trees: list[TokenTree] = []
        self._pending: TokenTree | None = None
        self._rows: Rows = np.empty((0, model.size), np.float32)

    @property
    def limits(self) -> Limits:
        return Limits(self.capacity, self.max_draft, self.max_leaves)

    def forward(self, request: PassRequest) -> PassResult:
        context, tree = request.context, request.tree
        held = len(self.cache)
        assert self._pending is None, "the last pass was neither committed nor rolled back"
        assert held < len(context), "a pass needs a token to start with"
        assert self.cache == list(context[:held]), "the cache holds another text"
        assert len(context) + len(tree) <= self.capacity
        assert len(tree) <= self.max_draft
        leaves = sum(not tree.children(node) for node in range(len(tree)))
        assert leaves <= self.max_leaves, f"{leaves} branches"
        contexts = [context]
        for parent, token in zip(tree.parents, tree.tokens, strict=True):
            contexts.append([*contexts[parent + 1][-1:], token])
        self._rows.fill(np.nan)
        self._rows = self.model.logits(contexts)
        self.cache = list(context)
        self._pending = tree if tree.tokens else None
        self.passes += 1
        self.trees.append(tree)
        if not request.hidden:
            return PassResult(self._rows, 1.0)
        # The hidden state of a token is its one-hot vector.
        states = np.eye(self.model.size, dtype=np.float32)
        hidden = {layer: states[[context[-1], *tree.tokens]] for layer in request.hidden}
        before = {layer: states[list(context[held:-1])] for layer in request.hidden}
        return PassResult(self._rows, 1.0, hidden, before)

    def commit(self, tree: TokenTree, path: Sequence[int]) -> None:
        assert tree is self._pending, "another tree was verified"
        parent = ROOT
        for node in path:
            assert tree.parents[node] == parent, "not a path from the root"
            parent = node
        self.cache += [tree.tokens[node] for node in path]
        self._pending = None

    def rollback(self, context: Sequence[int]) -> None:
        while self.cache != list(context[: len(self.cache)]):
            self.cache.pop()
        self._pending = None


class ToyCache:
    """A `Cache` over a toy model. `decoded`: every token that was ever decoded, with the text
    before it; `native_seconds`: one for each pass."""

    def __init__(self, model: ToyModel, *, capacity: int = 64, recurrent: bool = False) -> None:
        """`recurrent`: truncation goes back to the last checkpoint, or to nothing."""
        self.model = model
        self.capacity = capacity
        self.max_draft = 64
        self.tokens: list[int] = []
        self.native_seconds = 0.0
        self.decoded: list[tuple[int, ...]] = []
        self.recurrent = recurrent
        self._checkpoint = 0
        self._rows: Rows = np.empty((0, model.size), np.float32)

    def extend(self, tokens: Sequence[int], outputs: int = 1) -> Rows:
        assert len(tokens) > 0, "a pass needs a token"
        assert 0 <= outputs <= len(tokens)
        assert len(self.tokens) + len(tokens) <= self.capacity
        for token in tokens:
            self.tokens.append(token)
            self.decoded.append(tuple(self.tokens))
        self.native_seconds += 1.0
        self._rows.fill(np.nan)
        ends = range(len(self.tokens) - outputs + 1, len(self.tokens) + 1)
        empty: Rows = np.empty((0, self.model.size), np.float32)
        self._rows = self.model.logits([self.tokens[:end] for end in ends]) if outputs else empty
        return self._rows

    def truncate(self, length: int) -> None:
        if length >= len(self.tokens):
            return
        if self.recurrent:
            length = self._checkpoint if self._checkpoint <= length else 0
        del self.tokens[length:]
        self._checkpoint = min(self._checkpoint, length)

    def checkpoint(self) -> None:
        self._checkpoint = len(self.tokens)

    def filler(self, count: int) -> list[int]:
        return [0] * count

    def clear(self) -> None:
        self.tokens.clear()
        self._checkpoint = 0


def session_of(
    context: Sequence[int],
    *,
    size: int = START + 1,
    params: SamplingParams = AS_IS,
    random: SeededRandom | None = None,
    count: int = 40,
    ends: Callable[[int], bool] = never,
    constraint: Constraint | None = None,
) -> Session:
    """A session with room for `count` tokens after the context."""
    return Session(
        context,
        Sampler(params, size),
        random or SeededRandom(1),
        limit=len(context) + count,
        ends=ends,
        constraint=constraint,
    )


Propose = Callable[[Session, Plan, TokenTree], None]


class ToySource(Source):
    """A source whose drafts are made by a function; `native_seconds`: one for each proposal."""

    def __init__(self, draft: Propose, name: str = "toy") -> None:
        self.name = name
        self._calls = 0
        self._draft = draft

    @property
    def native_seconds(self) -> float:
        return float(self._calls)

    def propose(self, session: Session, plan: Plan, tree: TokenTree) -> None:
        self._calls += 1
        self._draft(session, plan, tree)


def drawn_chain(model: ToyModel) -> ToySource:
    """A source that draws `plan.depth` tokens from a toy model."""

    def draft(session: Session, plan: Plan, tree: TokenTree) -> None:
        node = tree.main_leaf()
        context = [*session.context, *tree.path_tokens(node)]
        for _ in range(plan.depth):
            q = model.distribution(context)
            context.append(session.propose(q, len(context) - len(session.context)))
            node = tree.add(context[-1], node, "toy", q)

    return ToySource(draft)


def chosen_chain(tokens: Sequence[int], name: str = "toy") -> ToySource:
    """A source that always proposes the same tokens, up to the plan's depth."""

    def draft(session: Session, plan: Plan, tree: TokenTree) -> None:
        node = tree.main_leaf()
        for token in tokens[: plan.depth]:
            node = tree.add(token, node, name)

    return ToySource(draft, name)


class ForbiddenPairs:
    """A `sampling.Constraint` that forbids pairs of consecutive tokens."""

    def __init__(self, pairs: set[tuple[int, int]], last: int) -> None:
        self.pairs = pairs
        self.last = last

    def allows(self, token: int) -> bool:
        return (self.last, token) not in self.pairs

    def masked(self, row: Row) -> Row:
        found = [x if self.allows(token) else NEVER for token, x in enumerate(row.tolist())]
        return np.array(found, np.float32)

    def likeliest(self, row: Row, k: int) -> Ids:
        found = top_ids(self.masked(row), k)
        return np.array([token for token in found.tolist() if self.allows(token)], np.int32)

    def advance(self, token: int) -> None:
        if (self.last, token) in self.pairs:
            raise ValueError(f"{token} may not follow {self.last}")
        self.last = token

    def fork(self) -> Constraint:
        return ForbiddenPairs(self.pairs, self.last)

    def forced(self) -> Sequence[int]:
        return ()


class EnumeratingSource(SeededRandom):
    """Follows a script of outcomes, and takes the first possible one after its end. Decisions at
    different positions are independent, as with `SeededRandom`, so each position may be used once
    only. `weight`: probability of the outcomes so far; `coupled`: whether drafts may share the
    target's noise, and so its positions."""

    def __init__(self, script: Sequence[int] = ()) -> None:
        self.weight = 1.0
        self.coupled = False
        self._script = script
        self._taken: list[int] = []
        self._chances: list[list[float]] = []
        self._places: set[tuple[int, ...]] = set()

    def _once(self, *place: int) -> None:
        assert self.coupled or place not in self._places, f"used twice: {place}"
        self._places.add(place)

    def coin(self, probability: float, position: int, node: int) -> bool:
        self._once(position, node)
        heads = min(1.0, max(0.0, float(probability)))
        return self._take([heads, 1.0 - heads]) == 0

    def draw(self, distribution: Distribution, position: int) -> int:
        self._once(position)
        return self._drawn(distribution)

    def _drawn(self, distribution: Distribution) -> int:
        ids = distribution.ids.tolist()
        assert all(before < after for before, after in pairwise(ids)), "ids ascend and are unique"
        chances = distribution.probs.tolist()
        assert abs(sum(chances) - 1.0) < 1e-9
        assert min(chances) >= 0.0
        return int(ids[self._take(chances)])

    def propose(self, distribution: Distribution, position: int, depth: int) -> int:
        return self._drawn(distribution)

    def race(self, distribution: Distribution, position: int) -> Probabilities:
        """The drawn token wins; the others tie."""
        return np.where(distribution.ids == self._drawn(distribution), -1.0, 0.0)

    def next_script(self) -> list[int] | None:
        """The outcomes that lead to the next leaf of the tree of all outcomes, depth first."""
        for place in reversed(range(len(self._taken))):
            chances = self._chances[place]
            for option in range(self._taken[place] + 1, len(chances)):
                if chances[option] > 0.0:
                    return [*self._taken[:place], option]
        return None

    def _take(self, chances: list[float]) -> int:
        place = len(self._taken)
        if place < len(self._script):
            option = self._script[place]
        else:
            option = next(i for i, chance in enumerate(chances) if chance > 0.0)
        self._taken.append(option)
        self._chances.append(chances)
        self.weight *= chances[option]
        return option


def leaves(run: Callable[[EnumeratingSource], Outcome]) -> Iterator[tuple[Outcome, float]]:
    """All outcomes of a program with their probabilities. It runs once for each."""
    script: list[int] | None = []
    while script is not None:
        source = EnumeratingSource(script)
        outcome = run(source)
        yield outcome, source.weight
        script = source.next_script()


def enumerate_outcomes(run: Callable[[EnumeratingSource], Outcome]) -> dict[Outcome, float]:
    """Exact distribution of a program's results over all its coins and draws."""
    found: dict[Outcome, float] = {}
    for outcome, weight in leaves(run):
        found[outcome] = found.get(outcome, 0.0) + weight
    assert abs(sum(found.values()) - 1.0) < 1e-9
    return found

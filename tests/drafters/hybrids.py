"""The measured planner and its drafter over toy models, made anew for every generation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from localspec.decoding.acceptance import AcceptanceRule
from localspec.decoding.rules import BestLossless
from localspec.decoding.sampling import Constraint
from localspec.decoding.tree import TokenTree
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.hybrid import Blend
from localspec.drafters.ngram import NgramIndex
from localspec.drafters.parallel import Ahead
from localspec.planning.adaptive import Measured
from localspec.planning.explore_then_commit import ExploreThenCommit
from localspec.planning.pair_profile import PairProfile
from tests.decoding.exact import Text, generate
from tests.planning.measuring import SHAPES, Clockless, knowledge_of
from tests.support.toys import (
    START,
    EnumeratingSource,
    ToyCache,
    ToyModel,
    ToyTarget,
    enumerate_outcomes,
    leaves,
    never,
)


@dataclass
class Pair:
    """What `build` makes a planner and a blend of.

    Attributes:
        draft: the draft model, None without one.
        shape: of the target's curve, see SHAPES.
        price: of a pass of the draft model over any number of tokens, in passes of the target.
        sampled: whether the draft model's tokens are drawn where the text is sampled.
        most_leaves: of a tree.
        crosses: makes a draft model with a vocabulary of its own of the cache.
        ahead: makes what reads on while the target verifies, None to leave it off.
        cache, knowledge, planner, reader: of the last `build`.
    """

    draft: ToyModel | None
    shape: str
    price: float = 0.05
    sampled: bool = True
    recurrent: bool = False
    draft_capacity: int = 64
    max_draft: int = 16
    capacity: int = 64
    most_leaves: int = 8
    kind: type[Blend] = Blend
    crosses: Callable[[ToyCache], DraftModel] | None = None
    ahead: Callable[[DraftModel], Ahead] | None = None
    cache: ToyCache | None = field(default=None, init=False)
    knowledge: PairProfile = field(default_factory=PairProfile, init=False)
    planner: Clockless | None = field(default=None, init=False)
    reader: Ahead | None = field(default=None, init=False)

    def build(self, *, greedy: bool) -> tuple[Clockless, Blend]:
        """A planner that knows nothing but what passes cost, and its drafter."""
        model, self.cache, self.reader = None, None, None
        if self.draft is not None:
            self.cache = ToyCache(
                self.draft, capacity=self.draft_capacity, recurrent=self.recurrent
            )
            make = self.crosses or (lambda cache: DraftModel(cache, cache.model.size))
            model = make(self.cache)
            self.reader = self.ahead(model) if self.ahead is not None else None
        self.knowledge = knowledge = knowledge_of(
            SHAPES[self.shape], None if model is None else [self.price] * 16
        )
        knowledge.looks = [1.5] * len(knowledge.looks)  # the draft model is asked, at first
        index = NgramIndex()
        measured = Measured(
            knowledge,
            index.expected,
            None if model is None else model.unread,
            most=self.max_draft,
            leaves=self.most_leaves,
            capacity=self.capacity,
            greedy=greedy,
            drawn=self.sampled,
            contest=None if self.reader is None else ExploreThenCommit(decided=True),
        )
        blend = self.kind(model, index, knowledge, greedy=not self.sampled, ahead=self.reader)
        self.planner = Clockless(measured, knowledge)
        return self.planner, blend

    def target(self, model: ToyModel) -> ToyTarget:
        """One with the limits that the planner was told."""
        return ToyTarget(
            model,
            capacity=self.capacity,
            max_leaves=self.most_leaves,
            max_draft=self.max_draft,
        )


def run(
    dice: EnumeratingSource,
    model: ToyModel,
    pair: Pair,
    rule: AcceptanceRule,
    *,
    prompt: Sequence[int] = (START,),
    count: int = 4,
    ends: Callable[[int], bool] = never,
    constraint: Constraint | None = None,
) -> tuple[Text, list[TokenTree]]:
    """One sampled generation, and the trees that the target verified."""
    planner, blend = pair.build(greedy=False)
    target = pair.target(model)
    text = generate(
        dice,
        model,
        blend,
        planner,
        rule,
        prompt=prompt,
        count=count,
        ends=ends,
        constraint=constraint,
        target=target,
    )
    if pair.cache is not None and pair.crosses is None:
        whole = [*prompt, *text]
        assert pair.cache.tokens == whole[: len(pair.cache.tokens)], "the draft model read another"
    return text, target.trees


def distribution_of(
    model: ToyModel,
    pair: Pair,
    rule: AcceptanceRule,
    *,
    prompt: Sequence[int] = (START,),
    count: int = 4,
    ends: Callable[[int], bool] = never,
    constraint: Constraint | None = None,
) -> dict[Text, float]:
    """Exact distribution of what the loop generates."""

    def once(dice: EnumeratingSource) -> Text:
        text, _ = run(
            dice,
            model,
            pair,
            rule,
            prompt=prompt,
            count=count,
            ends=ends,
            constraint=constraint,
        )
        return text

    return enumerate_outcomes(once)


def seen_trees(
    model: ToyModel, pair: Pair, *, prompt: Sequence[int] = (START,), count: int = 5
) -> list[TokenTree]:
    """Every tree that some generation verified."""
    found: list[TokenTree] = []

    def once(dice: EnumeratingSource) -> int:
        found.extend(run(dice, model, pair, BestLossless(), prompt=prompt, count=count)[1])
        return 0

    for _ in leaves(once):
        pass
    return found

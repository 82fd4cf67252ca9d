"""The policy of `auto` over toy models, new for each text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from localspec.decoding.acceptance import AcceptanceRule
from localspec.decoding.interfaces import Limits
from localspec.decoding.random_source import SeededRandom
from localspec.decoding.tree import TokenTree
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.ngram import NgramIndex, NgramSource
from localspec.policy.policy import Policy
from localspec.policy.source_profile import Gain
from tests.decoding.exact import Text, generate
from tests.policy.measuring import SHAPES, clockless, profile_of
from tests.support.drafting import as_source
from tests.support.toys import START, ToyCache, ToyModel, ToyTarget, enumerate_outcomes


@dataclass
class Pair:
    """Parameters of a policy. `draft`: the draft model, None without one; `shape`: of the target's
    curve, see SHAPES; `price`: of a pass of the draft model, in passes of the target; `sampled`:
    whether its tokens are drawn if the text is sampled; `crosses`: makes a draft model with another
    vocabulary of the cache; `cache`: of the last `build`; `seen`: every tree that the target
    verified."""

    draft: ToyModel | None
    shape: str
    price: float = 0.05
    sampled: bool = True
    recurrent: bool = False
    draft_capacity: int = 64
    max_draft: int = 16
    capacity: int = 64
    most_leaves: int = 8
    crosses: Callable[[ToyCache], DraftModel] | None = None
    cache: ToyCache | None = field(default=None, init=False)
    seen: list[TokenTree] = field(default_factory=list, init=False)

    def build(self, *, greedy: bool) -> Policy:
        """A policy that knows only the costs of passes."""
        self.cache, models = None, list[DraftModel]()
        profile = profile_of(SHAPES[self.shape], None if self.draft is None else [self.price] * 16)
        if self.draft is not None:
            self.cache = ToyCache(
                self.draft, capacity=self.draft_capacity, recurrent=self.recurrent
            )
            make = self.crosses or (lambda cache: DraftModel(cache, cache.model.size))
            model = as_source(make(self.cache), greedy=not self.sampled)
            profile.source(model).gain = Gain(3.0)  # so that it drafts at first
            models.append(model)
        policy = Policy(
            profile,
            [NgramSource(NgramIndex())],
            models,
            Limits(self.capacity, self.max_draft, self.most_leaves),
            branches=greedy,
            drawn=self.sampled and not greedy,
        )
        clockless(policy, profile)
        return policy

    def target(self, model: ToyModel) -> ToyTarget:
        leaves, draft = self.most_leaves, self.max_draft
        return ToyTarget(model, capacity=self.capacity, max_leaves=leaves, max_draft=draft)


def run(
    random: SeededRandom,
    model: ToyModel,
    pair: Pair,
    rule: AcceptanceRule,
    *,
    prompt: Sequence[int] = (START,),
    **options: Any,
) -> tuple[Text, list[TokenTree]]:
    """One sampled generation, and the trees that the target verified. `options`: of `generate`."""
    drafter = pair.build(greedy=rule.coupled)  # as `compose` does
    target = pair.target(model)
    text = generate(random, model, drafter, rule, prompt=prompt, target=target, **options)
    pair.seen += target.trees
    if pair.cache is not None and pair.crosses is None:
        whole = [*prompt, *text]
        assert pair.cache.tokens == whole[: len(pair.cache.tokens)], "the draft model read another"
    return text, target.trees


def distribution_of(
    model: ToyModel, pair: Pair, rule: AcceptanceRule, **options: Any
) -> dict[Text, float]:
    return enumerate_outcomes(lambda random: run(random, model, pair, rule, **options)[0])

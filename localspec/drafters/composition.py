"""Composition of the drafter of one answer from its `Drafting` options."""

from localspec.decoding.acceptance import AcceptanceRule
from localspec.decoding.interfaces import Limits, Plan
from localspec.decoding.loop import Drafter
from localspec.decoding.session import Session
from localspec.decoding.sources import LookupSource, ModelSource
from localspec.drafters.lookahead import LEVELS, LookaheadSource
from localspec.drafters.named import NamedDrafter
from localspec.drafters.options import TURNED_OFF, Drafting
from localspec.drafters.registry import REGISTRY, Parts
from localspec.errors import UsageError
from localspec.policy import reasons
from localspec.policy.cost_curve import CostCurve
from localspec.policy.model_state import repays_prompt
from localspec.policy.policy import Policy
from localspec.policy.profile import PairProfile

CHEAP = 1.2
"""Maximum time of a pass with a window of more than two columns, in plain passes."""


def compose(
    drafting: Drafting,
    parts: Parts,
    profile: PairProfile,
    limits: Limits,
    session: Session,
    rule: AcceptanceRule,
    *,
    cannot: str | None = None,
    costs: CostCurve | None = None,
    known: int = 0,
) -> Drafter:
    """The drafter of one answer. A source by name, a depth, a width or a threshold forces the
    choice; else the policy decides over all sources. Raises as `require`.

    Args:
        limits: of the target.
        session: of the answer, with its prompt; `auto` leaves out draft models that cannot earn
            back reading it.
        cannot: why `auto` must not draft for this target, or None.
        costs: of the target's passes; None for those of a single answer.
        known: tokens of the prompt that are cached.
    """
    name = require(drafting, parts)
    if name == "none":
        return Drafter(TURNED_OFF)
    if cannot is not None and (drafting.drafter == "auto" or not limits.max_draft):
        return Drafter(cannot)
    greedy = session.sampler.greedy
    # A draft model with another vocabulary may have to choose its tokens.
    drawn = drafting.sampled and (parts.model is None or parts.model.draws(greedy=greedy))
    for model in (parts.model, parts.head):
        if model is not None:
            model.greedy = not drawn
    if name == "auto":
        lookups, models = sources(parts)
        taking_part = [model for model in models if repays_prompt(profile, model, session, known)]
        chosen = greedy or rule.coupled
        return Policy(
            profile,
            lookups,
            taking_part,
            limits,
            branches=rule.trees and chosen,
            drawn=drawn and not chosen,
            costs=costs,
            nothing=reasons.TOO_SHORT if len(taking_part) < len(models) else reasons.NOTHING,
        )
    registered = REGISTRY[name]
    plan = Plan(
        name,
        drafting.depth or registered.depth,
        drafting.width,
        reason="fixed by option",
        min_confidence=drafting.min_confidence,
        min_likelihood=drafting.min_likelihood,
    )
    columns = _columns(plan, profile, limits) if rule.trees else 0
    return NamedDrafter(registered.build(parts), plan, limits, trees=rule.trees, columns=columns)


def decides(drafting: Drafting, parts: Parts, cannot: str | None) -> bool:
    """Whether `compose` returns the policy, which needs pass costs; raises as it does."""
    return cannot is None and require(drafting, parts) == "auto"


def require(drafting: Drafting, parts: Parts) -> str:
    """The effective drafter: "none", "auto", or the name of a source. A UsageError if it lacks a
    part that it needs."""
    name = drafting.drafter
    if name == "auto" and drafting.shaped:
        name = "ngram" if parts.model is None else "model"
        name = parts.head_source or name
    lack = parts.lack(REGISTRY[name]) if name in REGISTRY else None
    if lack is not None:
        raise UsageError(f"Drafter '{name}' {lack}")
    return name


def sources(parts: Parts) -> tuple[list[LookupSource], list[ModelSource]]:
    """The registered sources that take part in `auto`, of both kinds."""
    names = [name for name in parts.usable if name != LookaheadSource.name]
    known = [REGISTRY[name].build(parts) for name in names]
    lookups = [each for each in known if isinstance(each, LookupSource)]
    return lookups, [each for each in known if isinstance(each, ModelSource)]


def _columns(plan: Plan, profile: PairProfile, limits: Limits) -> int:
    """Columns of a window next to a draft: two, or more if their rows cost little."""
    beside = (limits.max_draft - plan.depth * plan.width) // LEVELS
    most = min(limits.max_leaves - plan.width, beside)
    if not profile.target:
        return min(2, most)
    seconds = profile.verifying(0, limits.max_draft)
    cheap = [n for n in range(3, most + 1) if seconds[1 + n * LEVELS] < CHEAP * seconds[1]]
    return max(cheap, default=min(2, most))

"""From what a user says about drafting to the planner and the drafter of one answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from localspec.decoding.auto_sources import LookupSource, ModelSource
from localspec.decoding.interfaces import Drafter, Limits, Plan, Planner, Source
from localspec.decoding.session import Session
from localspec.drafters.lookahead import KEPT
from localspec.drafters.named import NamedDrafter, Undrafted, Window, WindowSource
from localspec.drafters.options import TURNED_OFF, Drafting
from localspec.drafters.registry import REGISTRY, Parts
from localspec.drafters.window_shape import best_shape
from localspec.errors import UsageError
from localspec.policy import reasons
from localspec.policy.explore_then_commit import ExploreThenCommit
from localspec.policy.fixed import Fixed, Never
from localspec.policy.policy import Policy, repays
from localspec.policy.profile import PairProfile


def compose(
    drafting: Drafting,
    parts: Parts,
    profile: PairProfile,
    limits: Limits,
    *,
    greedy: bool,
    trees: bool,
    cannot: str | None,
    coupled: bool = False,
    session: Session | None = None,
    known: int = 0,
) -> tuple[Planner, Drafter]:
    """The planner for one generation, and the drafter that carries its plans out.

    Both share what is learned, so nothing else may generate meanwhile. A source by name, a depth,
    a width or a threshold forces the choice; else what was measured decides over all registered
    sources that can take part.

    Args:
        parts: what sources can be made of here.
        profile: what is known of the pair on this machine.
        limits: of the target.
        greedy: whether the answer is greedy.
        trees: whether the acceptance rule takes branches.
        coupled: whether model sources draw with the target's noise, so that the drafts are chosen
            as in a greedy answer.
        cannot: why this target should not be drafted for, None if it can be. A source asked for
            by name is used all the same.
        session: of the answer, with its prompt: draft models that cannot earn back reading that are
            left out. None has them all take part.
        known: tokens of the prompt that need not be read any more.

    Raises:
        UsageError: as `require`.
    """
    name = require(drafting, parts)
    if name == "none":
        return Never(TURNED_OFF), Undrafted()
    if cannot is not None and (drafting.drafter == "auto" or not limits.max_draft):
        return Never(cannot), Undrafted()
    # A draft model with another vocabulary may only be able to choose its tokens.
    drawn = drafting.sampled and (parts.model is None or parts.model.draws(greedy=greedy))
    parts = replace(parts, greedy=not drawn)
    if name == "auto":
        lookups, models = sources(parts)
        taking_part = models
        if session is not None:
            taking_part = [model for model in models if repays(profile, model, session, known)]
        policy = Policy(
            profile,
            lookups,
            taking_part,
            limits,
            branches=trees and (greedy or coupled),
            drawn=drawn and not (greedy or coupled),
            overlap=_overlap(drafting, parts),
            nothing=reasons.TOO_SHORT if len(taking_part) < len(models) else reasons.NOTHING,
        )
        return policy, policy
    registered = REGISTRY[name]
    plan = Plan(
        name,
        drafting.depth or registered.depth,
        drafting.width,
        reason="fixed by option",
        min_confidence=drafting.min_confidence,
        min_likelihood=drafting.min_likelihood,
    )
    source = registered.build(parts)
    window = None
    if isinstance(source, WindowSource):
        window = _window(source, plan, profile, limits, trees=trees)
    return Fixed(plan, limits, trees=trees), NamedDrafter(source, window)


def require(drafting: Drafting, parts: Parts) -> str:
    """The name of what drafts: "none", "auto", or that of a source.

    Raises:
        UsageError: a source by name that needs what there is not: a draft model, learned texts.
    """
    name = drafting.drafter
    if name == "auto" and drafting.shaped:
        name = "ngram" if parts.model is None else "model"
        name = parts.head_source or name
    lack = parts.lack(REGISTRY[name]) if name in REGISTRY else None
    if lack is not None:
        raise UsageError(f"Drafter '{name}' {lack}")
    return name


def asks_model(drafting: Drafting, parts: Parts) -> bool:
    """Whether the draft model may be asked for an answer."""
    name = require(drafting, parts)
    if name == "auto":
        return parts.model is not None
    return name in REGISTRY and REGISTRY[name].needs_model


_KINDS: dict[type, type] = {}


def sources(parts: Parts) -> tuple[list[LookupSource], list[ModelSource]]:
    """The registered sources that take part in `auto`, of both kinds."""
    lookups: list[LookupSource] = []
    models: list[ModelSource] = []
    for registered in REGISTRY.values():
        if parts.lack(registered) is not None:
            continue
        source = registered.build(parts)
        # To ask a protocol takes a tenth of a millisecond: each class is asked once.
        known = _KINDS.get(type(source))
        if known is None:
            kinds = (ModelSource, LookupSource)
            known = next((kind for kind in kinds if isinstance(source, kind)), Source)
            _KINDS[type(source)] = known
        if known is ModelSource:
            models.append(cast("ModelSource", source))
        elif known is LookupSource:
            lookups.append(cast("LookupSource", source))
    return lookups, models


def _window(
    source: WindowSource, plan: Plan, profile: PairProfile, limits: Limits, *, trees: bool
) -> Window:
    """The window of a source that was asked for by name.

    Raises:
        UsageError: the target, or the acceptance rule, takes no branches.
    """
    width, drafted = min(plan.width, KEPT), plan.depth * min(plan.width, KEPT)
    leaves = limits.max_leaves - width if trees else 0
    # Where nothing was measured, a row costs what any other does.
    seconds: Sequence[float] = range(limits.max_draft + 2)
    if profile.target:
        seconds = profile.verifying(0, limits.max_draft)
    shape = best_shape(seconds, leaves, min(drafted, limits.max_draft))
    if shape is None:
        raise UsageError(
            f"Drafter '{source.name}' tries several continuations per pass, which is not possible "
            "here: the model is recurrent, the rule accepts only chains, or depth times width is "
            "too large. Choose another drafter, or leave out --rule, --depth "
            "and --width."
        )
    return Window(source, shape, limits)


def _overlap(drafting: Drafting, parts: Parts) -> ExploreThenCommit | None:
    """Who says whether to overlap; None where it is out of the question."""
    if parts.reader is None or drafting.overlap == "off":
        return None
    return ExploreThenCommit(decided=True) if drafting.overlap == "on" else parts.overlap

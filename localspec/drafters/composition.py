"""From what a user says about drafting to the planner and the drafter of one answer."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from localspec.decoding.auto_sources import LookupSource, ModelSource
from localspec.decoding.interfaces import Drafter, Limits, Plan, Planner, Source
from localspec.drafters.named import NamedDrafter, Undrafted
from localspec.drafters.options import TURNED_OFF, Drafting
from localspec.drafters.registry import REGISTRY, Parts
from localspec.errors import UsageError
from localspec.planning.adaptive import AdaptivePlanner
from localspec.planning.draft_tree import DraftTreeBuilder
from localspec.planning.explore_then_commit import ExploreThenCommit
from localspec.planning.pair_profile import PairProfile
from localspec.planning.planner import Fixed, Never


def compose(
    drafting: Drafting,
    parts: Parts,
    profile: PairProfile,
    limits: Limits,
    *,
    greedy: bool,
    trees: bool,
    cannot: str | None,
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
        cannot: why this target should not be drafted for, None if it can be. A source asked for
            by name is used all the same.

    Raises:
        UsageError: as `require`.
    """
    name = require(drafting, parts)
    if name == "none":
        return Never(TURNED_OFF), Undrafted()
    if drafting.drafter == "auto" and cannot is not None:
        return Never(cannot), Undrafted()
    # A draft model with another vocabulary may only be able to choose its tokens.
    drawn = drafting.sampled and (parts.model is None or parts.model.draws(greedy=greedy))
    parts = replace(parts, greedy=not drawn)
    if name == "auto":
        lookups, models = sources(parts)
        planner = AdaptivePlanner(
            profile,
            lookups,
            models,
            limits,
            greedy=greedy,
            trees=trees,
            drawn=drawn,
            overlap=_overlap(drafting, parts),
        )
        return planner, DraftTreeBuilder(lookups, models, profile)
    registered = REGISTRY[name]
    plan = Plan(
        name,
        drafting.depth or registered.depth,
        drafting.width,
        reason="fixed by option",
        min_confidence=drafting.min_confidence,
        min_likelihood=drafting.min_likelihood,
    )
    return Fixed(plan, limits, trees=trees), NamedDrafter(registered.build(parts))


def require(drafting: Drafting, parts: Parts) -> str:
    """The name of what drafts: "none", "auto", or that of a source.

    Raises:
        UsageError: a source by name that needs what there is not: a draft model, learned texts.
    """
    name = drafting.drafter
    if name == "auto" and drafting.shaped:
        name = "ngram" if parts.model is None else "model"
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


def _overlap(drafting: Drafting, parts: Parts) -> ExploreThenCommit | None:
    """Who says whether to overlap; None where it is out of the question."""
    if parts.reader is None or drafting.overlap == "off":
        return None
    return ExploreThenCommit(decided=True) if drafting.overlap == "on" else parts.overlap

"""Everything that proposes tokens, and the one place where it is registered.

A new drafter is one file here (see `localspec.decoding.loop.Drafter`), its test, and one line in
REGISTRY.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from localspec.decoding.loop import Drafter
from localspec.drafters.cascade import CascadeDrafter
from localspec.drafters.continuation import Continuation
from localspec.drafters.draft_model import DraftModel, ModelDrafter
from localspec.drafters.ngram import NgramDrafter, NgramIndex
from localspec.drafters.parallel import Ahead
from localspec.planning.explore_then_commit import Contest


@dataclass(frozen=True, slots=True)
class Parts:
    """What drafters are made of; shared, so that the text is indexed and the model fed once.

    Attributes:
        model: the draft model, None without one.
        greedy: draft the model's most probable tokens even where the answer is sampled.
        index: the n-gram index over the context.
        ahead: reads on in the draft model while the target verifies; None where the two cannot
            run side by side.
        contest: whether that pays here.
    """

    model: DraftModel | None = None
    greedy: bool = False
    index: NgramIndex = field(default_factory=NgramIndex)
    ahead: Ahead | None = None
    contest: Contest = field(default_factory=Contest)


def _ngram(parts: Parts) -> Drafter:
    return NgramDrafter(parts.index)


def _model(parts: Parts) -> Drafter:
    assert parts.model is not None
    return ModelDrafter(parts.model, greedy=parts.greedy)


def _cascade(parts: Parts) -> Drafter:
    assert parts.model is not None
    return CascadeDrafter(parts.model, parts.index)


def _model_then_ngram(parts: Parts) -> Drafter:
    return Continuation("model+ngram", _model(parts), _ngram(parts))


def _ngram_then_model(parts: Parts) -> Drafter:
    return Continuation("ngram+model", _ngram(parts), _model(parts))


@dataclass(frozen=True, slots=True)
class Registration:
    """A drafter by name."""

    build: Callable[[Parts], Drafter]
    needs_model: bool
    about: str


REGISTRY: dict[str, Registration] = {
    "ngram": Registration(_ngram, False, "copies what followed the same words before"),
    "model": Registration(_model, True, "asks the draft model"),
    "cascade": Registration(_cascade, True, "the n-gram drafts for the draft model"),
    "model+ngram": Registration(_model_then_ngram, True, "the n-gram extends the model's draft"),
    "ngram+model": Registration(_ngram_then_model, True, "the model extends the n-gram's draft"),
}

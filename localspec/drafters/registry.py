"""The sources by name: the one place where they are registered.

A new source is one file here (see `localspec.decoding.interfaces.Source`), its test, and one line
in REGISTRY.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from localspec.decoding.interfaces import Source
from localspec.drafters.cascade import CascadeSource
from localspec.drafters.continuation import Continuation
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.model import DraftModelSource
from localspec.drafters.ngram import NgramIndex, NgramSource
from localspec.drafters.parallel import ParallelReader
from localspec.planning.explore_then_commit import ExploreThenCommit


@dataclass(frozen=True, slots=True)
class Parts:
    """What sources are made of; shared, so that the text is indexed and the model fed once.

    Attributes:
        model: the draft model, None without one.
        greedy: draft the model's most probable tokens even where the answer is sampled.
        index: the n-gram index over the context.
        reader: reads on in the draft model while the target verifies; None where the two cannot
            run side by side.
        overlap: whether that pays here.
    """

    model: DraftModel | None = None
    greedy: bool = False
    index: NgramIndex = field(default_factory=NgramIndex)
    reader: ParallelReader | None = None
    overlap: ExploreThenCommit = field(default_factory=ExploreThenCommit)


def _ngram(parts: Parts) -> Source:
    return NgramSource(parts.index)


def _model(parts: Parts) -> Source:
    assert parts.model is not None
    return DraftModelSource(parts.model, greedy=parts.greedy, reader=parts.reader)


def _cascade(parts: Parts) -> Source:
    assert parts.model is not None
    return CascadeSource(parts.model, parts.index, greedy=parts.greedy)


def _model_then_ngram(parts: Parts) -> Source:
    return Continuation("model+ngram", _model(parts), _ngram(parts))


def _ngram_then_model(parts: Parts) -> Source:
    return Continuation("ngram+model", _ngram(parts), _model(parts))


@dataclass(frozen=True, slots=True)
class Registration:
    """A source by name.

    Attributes:
        build: makes it, for one answer. Where the result is a `LookupSource` or a `ModelSource`,
            it takes part in `auto`.
        about: what it does, for help texts.
        needs_model: whether there has to be a draft model.
        depth: tokens that it drafts where it is asked for by name, and no depth is.
    """

    build: Callable[[Parts], Source]
    about: str
    needs_model: bool = False
    depth: int = 3
    """A pass over 4 is the cheapest per token on CPUs."""


REGISTRY: dict[str, Registration] = {
    # It costs nothing to ask, and copies long stretches.
    "ngram": Registration(_ngram, "copies what followed the same words before", depth=8),
    "model": Registration(_model, "asks the draft model", needs_model=True),
    "cascade": Registration(_cascade, "the n-gram drafts for the draft model", needs_model=True),
    "model+ngram": Registration(
        _model_then_ngram, "the n-gram extends the model's draft", needs_model=True
    ),
    "ngram+model": Registration(
        _ngram_then_model, "the model extends the n-gram's draft", needs_model=True
    ),
}

"""Drafting by named sources, including toys."""

from collections.abc import Iterator
from typing import Any, TypeVar

from localspec.decoding.interfaces import Limits, Plan
from localspec.decoding.session import Session
from localspec.decoding.sources import Prediction, Source
from localspec.decoding.tree import TokenTree
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.named import Cascade, NamedDrafter
from localspec.drafters.ngram import NgramIndex, NgramSource
from tests.support.toys import ToySource

Model = TypeVar("Model", bound=DraftModel)


class ToyDrafter(NamedDrafter):
    """A `NamedDrafter` that takes a `ToySource` as well."""

    def _extend(self, source: Source, plan: Plan, depth: int, width: int) -> None:
        if isinstance(source, ToySource):
            source.propose(self.session, plan._replace(depth=depth, width=width), self._tree)
        else:
            super()._extend(source, plan, depth, width)


def proposed(source: Source, session: Session, plan: Plan) -> TokenTree:
    """The draft of a source by a plan."""
    return ToyDrafter(source, plan, Limits(1000, 64, 16)).draft(session, plan).tree


class EagerNgram(NgramSource):
    """Drafts after a single repeated token."""

    def __init__(self) -> None:
        super().__init__(NgramIndex())

    def predict(self, position: Any) -> Iterator[Prediction]:
        return (prediction._replace(weight=4.0) for prediction in super().predict(position))


def as_source(model: Model, *, greedy: bool = False) -> Model:
    """A draft model as it is used in one answer."""
    model.greedy = greedy
    return model


def cascade_of(model: DraftModel) -> Cascade:
    """A draft model with predictions of an eager n-gram."""
    return Cascade("cascade", as_source(model), primer=EagerNgram())

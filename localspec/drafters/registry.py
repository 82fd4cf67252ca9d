"""The sources by name: a new one is a file here, its test, and one line in REGISTRY.

Modules of sources are imported when one is built, so that the command line can list the names
quickly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from localspec.decoding.sources import Source
    from localspec.drafters.draft_model import DraftModel
    from localspec.drafters.ngram import NgramIndex
    from localspec.drafters.trained_head import TrainedHead
    from localspec.retrieval.datastore import Datastore


def _index() -> NgramIndex:
    from localspec.drafters.ngram import NgramIndex

    return NgramIndex()


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts from which sources are built; shared by all of them."""

    model: DraftModel | None = None
    index: NgramIndex = field(default_factory=_index)
    datastore: Datastore | None = None
    head: TrainedHead | None = None

    @property
    def native_cache(self) -> Any:
        """Cache of the draft model or head, such as a `localspec.llama.context.Context`; None
        without either."""
        if self.head is not None:
            return self.head.cache
        cache: Any = None if self.model is None else self.model.cache
        return getattr(cache, "inner", cache)

    @property
    def head_source(self) -> str:
        return "" if self.head is None else self.head.name

    @property
    def usable(self) -> list[str]:
        """Names of the sources that lack nothing."""
        return [name for name, registered in REGISTRY.items() if self.lack(registered) is None]

    def lack(self, registered: Registration) -> str | None:
        """What a source lacks, and what to do, for users; None if it can be built."""
        if registered.needs_model and self.model is None:
            if self.head is not None:
                use = f"Use --drafter {self.head_source}, or auto."
                return f"needs a draft model, and --draft names a trained head. {use}"
            return "needs a draft model. Give one with --draft."
        if registered.needs_head and self.head_source != registered.needs_head:
            own = ", or self for the model's own MTP layers" * (registered.needs_head == "mtp")
            file = f"Give its file with --draft{own}."
            return f"needs a trained head ({registered.needs_head}). {file}"
        if registered.needs_datastore and (self.datastore is None or not self.datastore.now.tokens):
            return (
                "has nothing to look up: nothing was learned for this model's vocabulary. "
                "Learn texts with 'localspec learn PATH -m MODEL'."
            )
        return None


@dataclass(frozen=True, slots=True)
class Registration:
    """A source by name, and what it needs. `build`: builds it for one answer; a `LookupSource`, but
    not lookahead, or a `ModelSource` takes part in `auto`. `depth`: default depth of its drafts if
    used by name."""

    build: Callable[[Parts], Source]
    needs_model: bool = False
    needs_datastore: bool = False
    needs_head: str = ""
    depth: int = 3
    """A pass over 4 is the cheapest per token on CPUs."""


def _lookup(name: str, parts: Parts) -> Source:
    from localspec.drafters.forced import ForcedSource
    from localspec.drafters.lookahead import LookaheadSource
    from localspec.drafters.ngram import NgramSource
    from localspec.drafters.retrieval import RetrievalSource

    if name == "ngram":
        return NgramSource(parts.index)
    if name == "retrieval":
        assert parts.datastore is not None
        return RetrievalSource(parts.datastore)
    return ForcedSource() if name == "grammar" else LookaheadSource()


def _model(name: str, parts: Parts) -> Source:
    from localspec.drafters.named import Cascade
    from localspec.drafters.ngram import NgramSource

    model, ngram = parts.model, NgramSource(parts.index)
    assert model is not None
    if name == "model":
        return model
    if name == "cascade":
        return Cascade(name, model, primer=ngram)
    return Cascade(name, model, ngram) if name == "model+ngram" else Cascade(name, ngram, model)


REGISTRY: dict[str, Registration] = {
    # Lookups are free, and copy long passages.
    "ngram": Registration(partial(_lookup, "ngram"), depth=8),
    "grammar": Registration(partial(_lookup, "grammar"), depth=8),
    "retrieval": Registration(partial(_lookup, "retrieval"), needs_datastore=True, depth=8),
    "lookahead": Registration(partial(_lookup, "lookahead")),
    "model": Registration(partial(_model, "model"), needs_model=True),
    "eagle": Registration(attrgetter("head"), needs_head="eagle"),
    "mtp": Registration(attrgetter("head"), needs_head="mtp"),
    "medusa": Registration(attrgetter("head"), needs_head="medusa"),
    "dflash": Registration(attrgetter("head"), needs_head="dflash", depth=7),
    "dspark": Registration(attrgetter("head"), needs_head="dspark", depth=7),
    # Cascades of the n-gram drafter and the draft model.
    "cascade": Registration(partial(_model, "cascade"), needs_model=True),
    "model+ngram": Registration(partial(_model, "model+ngram"), needs_model=True),
    "ngram+model": Registration(partial(_model, "ngram+model"), needs_model=True),
}

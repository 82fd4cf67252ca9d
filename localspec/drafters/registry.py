"""The sources by name: a new one is a file here, its test, and one line in REGISTRY.

What sources are made of is imported when one is made, so that the command line can name them
without that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from localspec.decoding.sources import LookupSource, Source
    from localspec.drafters.draft_model import DraftModel
    from localspec.drafters.ngram import NgramIndex
    from localspec.drafters.parallel import ParallelReader
    from localspec.drafters.trained_head import TrainedHead
    from localspec.policy.explore_then_commit import ExploreThenCommit
    from localspec.retrieval.datastore import Datastore


def _index() -> NgramIndex:
    from localspec.drafters.ngram import NgramIndex

    return NgramIndex()


def _trial() -> ExploreThenCommit:
    from localspec.policy.explore_then_commit import ExploreThenCommit

    return ExploreThenCommit()


@dataclass(frozen=True, slots=True)
class Parts:
    """What sources are made of; shared by all of them.

    Attributes:
        greedy: draft the model's most probable tokens even where the answer is sampled.
        reader: reads on in the draft model while the target verifies; None where the two cannot run
            side by side.
        overlap: whether that pays here.
        datastore: what was learned for this vocabulary.
    """

    model: DraftModel | None = None
    greedy: bool = False
    index: NgramIndex = field(default_factory=_index)
    reader: ParallelReader | None = None
    overlap: ExploreThenCommit = field(default_factory=_trial)
    datastore: Datastore | None = None
    head: TrainedHead | None = None

    @property
    def head_source(self) -> str:
        return "" if self.head is None else self.head.source

    def lack(self, registered: Registration) -> str | None:
        """What a source lacks, and what to do, for people; None where it can be made."""
        if registered.needs_model and self.model is None:
            return "needs a draft model. Give one with --draft."
        if registered.needs_head and self.head_source != registered.needs_head:
            own = ", or self for MTP layers of the model's own" * (registered.needs_head == "mtp")
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
    """A source by name.

    Attributes:
        build: makes it, for one answer. A `LookupSource` or a `ModelSource` takes part in `auto`.
        about: for people.
        needs_datastore: whether something has to have been learned.
        needs_head: its own name, where there has to be a trained head for it.
        depth: of its drafts, where it is asked for by name and no depth is.
    """

    build: Callable[[Parts], Source]
    about: str
    needs_model: bool = False
    needs_datastore: bool = False
    needs_head: str = ""
    depth: int = 3
    """A pass over 4 is the cheapest per token on CPUs."""


def _ngram(parts: Parts) -> LookupSource:
    from localspec.drafters.ngram import NgramSource

    return NgramSource(parts.index)


def _forced(parts: Parts) -> Source:
    from localspec.drafters.forced import ForcedSource

    return ForcedSource()


def _retrieval(parts: Parts) -> Source:
    from localspec.drafters.retrieval import RetrievalSource

    assert parts.datastore is not None
    return RetrievalSource(parts.datastore)


def _lookahead(parts: Parts) -> Source:
    from localspec.drafters.lookahead import LookaheadSource

    return LookaheadSource()


def _model(parts: Parts, name: str = "model") -> Source:
    from localspec.drafters.model import DraftModelSource

    assert parts.model is not None
    return DraftModelSource(parts.model, name=name, greedy=parts.greedy, reader=parts.reader)


def _head(parts: Parts) -> Source:
    from localspec.drafters.trained_head import TrainedHeadSource

    assert parts.head is not None
    return TrainedHeadSource(parts.head, greedy=parts.greedy)


def _cascade(parts: Parts) -> Source:
    from localspec.drafters.named import Staged

    return Staged("cascade", _model(parts, "cascade"), primer=_ngram(parts))


def _model_then_ngram(parts: Parts) -> Source:
    from localspec.drafters.named import Staged

    return Staged("model+ngram", _model(parts), _ngram(parts))


def _ngram_then_model(parts: Parts) -> Source:
    from localspec.drafters.named import Staged

    return Staged("ngram+model", _ngram(parts), _model(parts))


REGISTRY: dict[str, Registration] = {
    # It costs nothing to ask, and copies long stretches.
    "ngram": Registration(_ngram, "copies what followed the same words before", depth=8),
    "grammar": Registration(_forced, "writes what a grammar leaves no choice about", depth=8),
    "retrieval": Registration(
        _retrieval,
        "copies the text that followed the same words in learned texts",
        needs_datastore=True,
        depth=8,
    ),
    "lookahead": Registration(
        _lookahead, "n-grams that the target generates in extra rows of its passes"
    ),
    "model": Registration(_model, "asks the draft model", needs_model=True),
    "eagle": Registration(
        _head, "asks a trained head that reads the model's hidden states", needs_head="eagle"
    ),
    "mtp": Registration(
        _head, "asks the layer that the model was trained with to predict ahead", needs_head="mtp"
    ),
    "medusa": Registration(
        _head, "asks trained heads, one for each of the next tokens", needs_head="medusa"
    ),
    "dflash": Registration(
        _head,
        "uses a head that proposes a block of tokens per pass",
        needs_head="dflash",
        depth=7,
    ),
    "dspark": Registration(
        _head,
        "uses a head that proposes a block of tokens per pass, each conditioned on the one before",
        needs_head="dspark",
        depth=7,
    ),
    "cascade": Registration(_cascade, "the n-gram drafts for the draft model", needs_model=True),
    "model+ngram": Registration(
        _model_then_ngram, "the n-gram extends the model's draft", needs_model=True
    ),
    "ngram+model": Registration(
        _ngram_then_model, "the model extends the n-gram's draft", needs_model=True
    ),
}

"""What the sources that take part in `auto` and the draft tree's builder say to each other.

A `LookupSource` says what it expects at a place of the text. A `ModelSource` is handed the draft in
the making (`Growing`), and offers what may follow the candidates that the builder picks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, runtime_checkable

from localspec.decoding.distribution import Distribution
from localspec.decoding.interfaces import Source
from localspec.decoding.session import Session
from localspec.decoding.tree import TokenTree


class Prediction(NamedTuple):
    """One token that a `LookupSource` expects.

    Attributes:
        token: its id.
        features: for the source's acceptance estimator; the first one is the constant 1.
        weight: how firmly it is expected, 0 to 4, for other sources that weigh it.
    """

    token: int
    features: tuple[float, ...]
    weight: float = 1.0


class AutoSource(Source, Protocol):
    """What both kinds of source that take part in `auto` declare.

    Attributes:
        priors: by kind of candidate, the weights that its acceptance estimators start from, see
            `localspec.policy.acceptance_estimator`. The profile of a pair keeps what is learned,
            under the source's name and these kinds.
    """

    @property
    def priors(self) -> Mapping[str, tuple[float, ...]]: ...

    def kind(self, session: Session) -> str:
        """The kind, one of `priors`, of what it proposes first in this answer."""
        ...


@runtime_checkable
class LookupSource(AutoSource, Protocol):
    """A source that looks its proposals up, at no cost worth counting: an index, a list.

    It works with places: opaque values that stand for the committed text and imagined tokens
    behind it.
    """

    def place(self, session: Session) -> Any:
        """The end of the committed text."""
        ...

    def follow(self, place: Any, token: int) -> Any:
        """The place one imagined token further."""
        ...

    def expected(self, place: Any) -> Iterator[Prediction]:
        """What most likely follows: a chain, worked out as far as it is asked for."""
        ...

    def others(self, place: Any, most: int) -> list[tuple[int, float]]:
        """What may follow, the likeliest first: tokens and rough probabilities."""
        ...


@runtime_checkable
class ModelSource(AutoSource, Protocol):
    """A source whose proposals take passes of a model, and so time.

    Its profile knows the cost of a pass; `priors` has the kind "second" as well, for its second
    and further choices, with the features 1, logit of the probability among what is left, and
    whether a lookup source expects the token; or one of that name and the kind of the first.

    Attributes:
        credit: the name under which its proposals are counted; `name`, with a suffix perhaps.
        passes: what the cost of its passes is measured of: a
            `localspec.policy.calibration.MeasuredCache`.
    """

    @property
    def credit(self) -> str: ...

    @property
    def passes(self) -> Any: ...

    def reads(self, prompt: Sequence[int], known: int) -> int:
        """Tokens of a prompt that `begin` has the model read, if it has the first `known`."""
        ...

    def unread(self, session: Session) -> int:
        """Tokens that the model has to read before it can propose."""
        ...

    def held(self, session: Session) -> int:
        """Tokens that its passes look back at: the committed ones, or those of them it reads."""
        ...

    def room(self, session: Session) -> int:
        """Most tokens that it can propose behind the committed text."""
        ...

    def branches(self, session: Session) -> int:
        """Branches of a draft that it can read in one pass; 1 for a chain."""
        ...

    def start(self, growing: Growing) -> None:
        """Another draft begins."""
        ...

    def knows(self, growing: Growing, node: int) -> bool:
        """Whether it can offer something behind a candidate without another pass. Asked of the
        candidates that were offered last: what is known behind others was offered before."""
        ...

    def expand(self, growing: Growing, nodes: Sequence[int]) -> None:
        """Offer what may follow each of these candidates, in one pass for all of them if one is
        needed. Its parent was expanded before; the first of a draft is ROOT."""
        ...

    def verifying(self, session: Session, tree: TokenTree) -> AbstractContextManager[object]:
        """Entered before the target's pass and left after it, where the plan overlaps."""
        ...


class RankedLogits(Protocol):
    """What a row of a draft model says before anything is drawn from it.

    Attributes:
        tokens: the most probable tokens that may come, best first.
        probs: their probabilities: at temperature 1, before any truncation; where they are drawn
            with the target's noise, with that noise.
        entropy: of all such probabilities, in nats.
    """

    @property
    def tokens(self) -> list[int]: ...

    @property
    def probs(self) -> list[float]: ...

    @property
    def entropy(self) -> float: ...

    def prob(self, token: int) -> float:
        """Probability of any token."""
        ...


class Growing(Protocol):
    """A draft in the making, as a `ModelSource` sees it. Candidates are numbers, parents first;
    ROOT stands for the committed text."""

    @property
    def session(self) -> Session: ...

    @property
    def drawn(self) -> bool:
        """Whether tokens are to be drawn from the model's distribution, else chosen."""
        ...

    @property
    def branching(self) -> bool:
        """Whether a place may get several candidates."""
        ...

    def token(self, node: int) -> int:
        """The token of a candidate."""
        ...

    def parent(self, node: int) -> int:
        """The candidate that it follows, ROOT at the first level."""
        ...

    def path(self, node: int) -> list[int]:
        """Tokens from the committed text down to a candidate, its own included."""
        ...

    def hint(self, node: int) -> Prediction | None:
        """What lookup sources expect most firmly behind a candidate."""
        ...

    def primes(self, node: int, unread: int) -> list[int]:
        """Expected tokens that are worth reading along behind a candidate, in the pass that reads
        `unread` tokens before them: where the model says the same, the rows behind them need no
        other pass (staged drafting: Spector & Ré 2023, section 3.2)."""
        ...

    def read(self, size: int) -> None:
        """Count a pass of the model over so many tokens."""
        ...

    def worth_drawing(self, node: int, features: tuple[float, ...]) -> bool:
        """Whether a token with these features should follow; asked before it is drawn."""
        ...

    def offer(
        self,
        node: int,
        token: int,
        features: tuple[float, ...],
        *,
        proposal: Distribution | None = None,
        logits: RankedLogits | None = None,
    ) -> int:
        """Put the first choice behind a candidate, and further ones of `logits` beside it."""
        ...

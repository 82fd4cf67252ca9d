"""What proposes tokens, used the same way by name and in `auto`.

A `LookupSource` predicts what follows a place of the text. Of a `ModelSource` the policy asks rows
behind candidates, and draws or chooses tokens from them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol

from localspec.decoding.caches import Cache
from localspec.decoding.sampling import Row, Rows
from localspec.decoding.session import Session
from localspec.decoding.tree import TokenTree

FIRM = 2.0
"""Weight of a prediction that a named drafter proposes."""
TAIL = 64
"""Tokens that a place of a text holds, unless a source says otherwise."""


class Source:
    """Anything that proposes tokens: one file, registered in `localspec.drafters.registry`.

    Attributes:
        name: in options, statistics, colours and reports.
        priors: by kind of candidate, initial weights of an acceptance estimator
            (`localspec.policy.acceptance_estimator`); profiles are stored under these names.
        hidden: layers of the target whose rows it reads, see `PassRequest`.
    """

    name: str
    priors: Mapping[str, tuple[float, ...]]
    hidden: tuple[int, ...] = ()

    @property
    def native_seconds(self) -> float:
        return 0.0

    def kind(self, session: Session) -> str:
        """The kind, one of `priors`, of its first choices in this answer."""
        kind = "greedy" if session.sampler.greedy else "sampled"
        return kind if kind in self.priors else next(iter(self.priors))

    def begin(self, prompt: Sequence[int]) -> None:
        pass

    def committed(self, context: Sequence[int], hidden: Mapping[int, Rows]) -> None:
        """Drop what was proposed beyond the committed text; after every step and every answer.

        Args:
            hidden: by layer, rows [n, width] behind the n tokens before the last one, back to the
                last token before this step, after a prompt further. Empty where the step was
                interrupted.
        """


class Prediction(NamedTuple):
    """One token that a `LookupSource` expects.

    Attributes:
        features: for the source's acceptance estimator; the first one is the constant 1.
        weight: how firmly it is expected, 0 to 4; below FIRM it is used in `auto` alone.
    """

    token: int
    features: tuple[float, ...]
    weight: float = FIRM


class LookupSource(Source, ABC):
    """A source that costs nothing worth counting: an index, a list.

    A *place* stands for the committed text and imagined tokens behind it; it is whatever the source
    makes of them, the latest tokens unless it says otherwise.
    """

    def place(self, session: Session) -> Any:
        return list(session.context[-TAIL:])

    def follow(self, place: Any, token: int) -> Any:
        return [*place, token]

    @abstractmethod
    def expected(self, place: Any) -> Iterator[Prediction]:
        """What most likely follows, computed on demand."""

    def others(self, place: Any, most: int) -> list[tuple[int, float]]:
        """What else may follow, likeliest first: tokens and rough probabilities."""
        return []


class Drafted(Protocol):
    """A draft in the making, as passes of a model see it."""

    @property
    def session(self) -> Session: ...

    @property
    def depth(self) -> int:
        """Longest path, in tokens."""
        ...

    def primes(self, unread: int) -> list[int]:
        """Expected tokens to read along, in the pass over the `unread` tokens before them (staged
        drafting: Spector & Ré 2023, section 3.2)."""
        ...

    def read(self, size: int) -> None: ...


class DraftPasses(Protocol):
    """What the passes of one draft gave. A `path` has the tokens behind the committed text."""

    def knows(self, path: list[int]) -> bool:
        """Whether the row behind one of the latest paths needs no other pass."""
        ...

    def read(self, draft: Drafted, path: list[int]) -> None:
        """One pass for the row behind a path; the one behind all but its last token is known.
        Without room for it that stays unknown."""
        ...

    def row(self, path: list[int]) -> Row: ...


class ModelSource(Source, ABC):
    """A source whose proposals take passes of a model.

    `priors` also has the kind "second", for further choices, with the features of
    `localspec.policy.growing.further_choices`; "second" and the kind of the first takes precedence.

    Attributes:
        greedy: whether it chooses its tokens where the answer is sampled, too.
        cache: what its cost is measured of.
    """

    greedy: bool
    cache: Cache

    @property
    def credit(self) -> str:
        """The name under which its proposals are counted."""
        return self.name

    @abstractmethod
    def reads(self, prompt: Sequence[int], known: int) -> int:
        """Tokens of a prompt that `begin` reads, if the first `known` are cached."""

    @abstractmethod
    def unread(self, context: Sequence[int]) -> int:
        """Tokens to read before it can propose."""

    @abstractmethod
    def held(self, context: Sequence[int]) -> int:
        pass

    @abstractmethod
    def room(self, context: Sequence[int]) -> int:
        """Most tokens that it can propose behind the committed text."""

    @abstractmethod
    def start(self, draft: Drafted) -> DraftPasses:
        pass

    def verifying(self, session: Session, tree: TokenTree) -> AbstractContextManager[object]:
        return nullcontext()

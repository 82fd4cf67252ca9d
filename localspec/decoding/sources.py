"""What proposes tokens, and how a policy uses it: by name or in `auto`, the same way.

A `LookupSource` says what it expects at a place of the text. Of a `ModelSource` the policy asks
rows behind the candidates that it picks, and draws or chooses tokens from them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol

from localspec.decoding.sampling import Row, Rows
from localspec.decoding.session import Session
from localspec.decoding.tree import TokenTree

FIRM = 2.0
"""Weight of a prediction that is worth verifying unless its chance is known to be small."""
TAIL = 64
"""Tokens that a place of a text holds, unless a source says otherwise."""


class Source:
    """Anything that proposes tokens: one file, registered in `localspec.drafters.registry`.

    Attributes:
        name: in options, statistics, colours and reports.
        priors: weights that the acceptance estimators start from, by kind of candidate, see
            `localspec.policy.acceptance_estimator`. The profile of a pair keeps what is learned
            under these names.
        hidden: layers of the target whose rows it reads, see `PassRequest`.
    """

    name: str
    priors: Mapping[str, tuple[float, ...]]
    hidden: tuple[int, ...] = ()

    @property
    def native_seconds(self) -> float:
        """Seconds spent in native passes so far."""
        return 0.0

    def kind(self, session: Session) -> str:
        """The kind, one of `priors`, of its first choices in this answer."""
        kind = "greedy" if session.sampler.greedy else "sampled"
        return kind if kind in self.priors else next(iter(self.priors))

    def begin(self, prompt: Sequence[int]) -> None:
        """Catch up with the prompt of a new answer."""

    def committed(self, context: Sequence[int], hidden: Mapping[int, Rows]) -> None:
        """Drop what was proposed beyond the committed text; after every step and every answer.

        Args:
            hidden: rows [n, width] of the layers asked for, behind the n tokens before the last
                one. They go back to what was the last token before this step, after a prompt
                further. Empty where the step did not end as planned.
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
        """The end of the committed text."""
        return list(session.context[-TAIL:])

    def follow(self, place: Any, token: int) -> Any:
        """The place one imagined token further."""
        return [*place, token]

    @abstractmethod
    def expected(self, place: Any) -> Iterator[Prediction]:
        """What most likely follows: a chain, worked out as far as it is asked for."""

    def others(self, place: Any, most: int) -> list[tuple[int, float]]:
        """What else may follow, likeliest first: tokens and rough probabilities."""
        return []


class WindowSource(LookupSource):
    """A source that learns from the target's rows behind tokens that nobody proposes. These are
    padding in the tree that is verified: they count as nothing."""

    @abstractmethod
    def open_window(self, session: Session, tree: TokenTree, columns: int, levels: int) -> None:
        """Add up to columns · levels tokens of padding, in up to so many branches as columns."""

    @abstractmethod
    def verified(self, rows: Rows) -> None:
        """Read the rows of a pass, valid during the call; also without a window."""


class Drafted(Protocol):
    """A draft in the making, as passes of a model see it. Candidates are numbers, parents before
    children; ROOT stands for the committed text."""

    @property
    def session(self) -> Session: ...

    @property
    def depth(self) -> int:
        """Longest path, in tokens."""
        ...

    @property
    def branching(self) -> bool:
        """Whether more than one branch is read."""
        ...

    def token(self, node: int) -> int: ...

    def parent(self, node: int) -> int: ...

    def path(self, node: int) -> list[int]:
        """Tokens from the committed text down to a candidate, its own included."""
        ...

    def primes(self, node: int, unread: int) -> list[int]:
        """Expected tokens to read along behind a candidate, in the pass over the `unread` tokens
        before them: where the model says the same, the rows behind them need no other pass (staged
        drafting: Spector & Ré 2023, section 3.2)."""
        ...

    def read(self, size: int) -> None:
        """Count a pass over so many tokens."""
        ...


class DraftPasses(Protocol):
    """Passes of a model over one draft, and the rows behind its candidates."""

    def knows(self, draft: Drafted, node: int) -> bool:
        """Whether the row behind a candidate needs no other pass. Asked of the candidates that came
        last."""
        ...

    def read(self, draft: Drafted, nodes: Sequence[int]) -> None:
        """One pass for the rows behind these candidates, whose parents' are known. Without room for
        some of them theirs stay unknown."""
        ...

    def row(self, node: int) -> Row:
        """The row behind a candidate that is known."""
        ...


class ModelSource(Source, ABC):
    """A source whose proposals take passes of a model, and so time.

    `priors` has the kind "second" as well, for its second and further choices, or one of that name
    and the kind of the first, with the features of `localspec.policy.growing.further_choices`.

    Attributes:
        greedy: whether it chooses its tokens where the answer is sampled, too.
    """

    greedy: bool

    @property
    def credit(self) -> str:
        """The name under which its proposals are counted: `name`, with a suffix perhaps."""
        return self.name

    @property
    @abstractmethod
    def passes(self) -> Any:
        """What its cost is measured of: a `localspec.policy.calibration.MeasuredCache`."""

    @abstractmethod
    def reads(self, prompt: Sequence[int], known: int) -> int:
        """Tokens of a prompt that `begin` has the model read, if it has the first `known`."""

    @abstractmethod
    def unread(self, session: Session) -> int:
        """Tokens to read before it can propose."""

    @abstractmethod
    def held(self, session: Session) -> int:
        """Tokens that its passes look back at."""

    @abstractmethod
    def room(self, session: Session) -> int:
        """Most tokens that it can propose behind the committed text."""

    @abstractmethod
    def branches(self, session: Session) -> int:
        """Branches of a draft that it can read in one pass; 1 for a chain."""

    @abstractmethod
    def start(self, draft: Drafted) -> DraftPasses:
        """Another draft begins."""

    def verifying(self, session: Session, tree: TokenTree) -> AbstractContextManager[object]:
        """Entered before the target's pass and left after it, where the plan overlaps."""
        return nullcontext()

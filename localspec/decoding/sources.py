"""Interfaces of the sources that propose tokens, the same for named drafters and `auto`.

A `LookupSource` predicts the tokens after a position of the text. A `ModelSource` gives rows of
logits after candidates, from which tokens are drawn or chosen."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from localspec.decoding.sampling import Row, Rows
from localspec.decoding.session import Session

FIRM = 2.0
"""Minimum weight of a prediction that a named drafter proposes."""
TAIL = 64
"""Tokens that a position holds by default."""


class Cache(Protocol):
    """The part of `localspec.llama.context.Context` that drafters use.

    Attributes:
        tokens: the cached tokens.
        capacity: most tokens it can hold.
        max_draft: maximum rows of a pass, not counting the first one.
        recurrent: whether `truncate` may lose everything.
    """

    tokens: list[int]

    @property
    def capacity(self) -> int: ...

    @property
    def max_draft(self) -> int: ...

    @property
    def recurrent(self) -> bool: ...

    @property
    def native_seconds(self) -> float: ...

    def filler(self, count: int) -> list[int]:
        """Return `count` tokens whose passes cost as much as those of ordinary text."""
        ...

    def extend(self, tokens: Sequence[int], outputs: int = 1) -> Rows:
        """Append tokens; returns logits after the last `outputs`, valid until the next pass."""
        ...

    def truncate(self, length: int) -> None:
        """Drop the tokens from `length` on; more if the memory is recurrent."""
        ...

    def checkpoint(self) -> None:
        """Make a later `truncate` to the current length possible for any kind of memory."""
        ...

    def clear(self) -> None: ...


class Source:
    """Anything that proposes tokens: one file, registered in `localspec.drafters.registry`.

    Attributes:
        name: in options, statistics, colours and reports.
        priors: by kind of candidate, initial weights of an acceptance estimator
            (`localspec.policy.acceptance_estimator`); profiles are stored under these names.
        hidden: target layers whose hidden states it reads, see `PassRequest`.
    """

    name: str
    priors: Mapping[str, tuple[float, ...]]
    hidden: tuple[int, ...] = ()

    @property
    def native_seconds(self) -> float:
        return 0.0

    def kind(self, session: Session) -> str:
        """The key of `priors` for its first choices in this answer."""
        kind = "greedy" if session.sampler.greedy else "sampled"
        return kind if kind in self.priors else next(iter(self.priors))

    def begin(self, prompt: Sequence[int]) -> None:
        pass

    def committed(self, context: Sequence[int], hidden: Mapping[int, Rows]) -> None:
        """Drop everything after the committed text. Called after every step and every answer.

        Args:
            hidden: by layer, rows [n, width] after each token from the last one before this step
                (after a prompt, an earlier one) to the last but one now. Empty if the step was
                interrupted.
        """


class Prediction(NamedTuple):
    """One token that a `LookupSource` predicts.

    Attributes:
        features: for the source's acceptance estimator; the first one is the constant 1.
        weight: confidence, 0 to 4; below FIRM only `auto` uses it.
    """

    token: int
    features: tuple[float, ...]
    weight: float = FIRM


class LookupSource(Source, ABC):
    """A source whose cost is negligible: an index, a list.

    A *position* is the source's state after the committed text and hypothetical tokens: by default
    the latest tokens.
    """

    def position(self, session: Session) -> Any:
        return list(session.context[-TAIL:])

    def advance(self, position: Any, token: int) -> Any:
        return [*position, token]

    @abstractmethod
    def predict(self, position: Any) -> Iterator[Prediction]:
        """Yield the most likely continuation, computed lazily."""

    def alternatives(self, position: Any, most: int) -> list[tuple[int, float]]:
        """Other possible next tokens with rough probabilities, likeliest first."""
        return []


class DraftContext(Protocol):
    """A draft under construction, as passes of a model see it. `depth`: of the longest path."""

    session: Session
    depth: int

    def predicted_tokens(self, unread: int) -> list[int]:
        """Predicted tokens to read in the same pass as the `unread` tokens before them (staged
        drafting: Spector & Ré 2023, section 3.2)."""
        ...


class ModelSource(Source, ABC):
    """A source whose proposals take passes of a model. A `path` has the tokens after the committed
    text.

    `priors` also has the kind "second", for further choices, with the features of
    `localspec.policy.draft_builder.further_choices`; "second KIND", with the kind of the first
    choice, takes precedence.

    Attributes:
        greedy: whether it chooses its most probable tokens even if the answer is sampled.
        cache: the cache whose passes are timed for its cost curve.
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
        """Most tokens that it can propose after the committed text."""

    @abstractmethod
    def start(self, draft: DraftContext) -> None:
        """Begin the passes of a draft."""

    @abstractmethod
    def knows(self, path: list[int]) -> bool:
        """Whether the row after `path`, one of the latest, is known without a further pass."""

    @abstractmethod
    def read(self, draft: DraftContext, path: list[int]) -> int:
        """Run a pass for the row after a path; the row before its last token is known. Returns its
        tokens, 0 if the row stays unknown, as the cache has no room."""

    @abstractmethod
    def row(self, path: list[int]) -> Row: ...

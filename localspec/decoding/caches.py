"""The KV cache of a model, as drafting and measuring use it: `localspec.llama.context.Context`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from localspec.decoding.sampling import Rows


class Cache(Protocol):
    """A `localspec.llama.context.Context`, as drafters see it.

    Attributes:
        tokens: what the cache holds.
        capacity: tokens it can hold.
        max_draft: most tokens of a pass whose rows are wanted, the first one aside.
        recurrent: whether cutting it back may lose everything.
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
        """`count` tokens whose passes cost what a text's tokens cost."""
        ...

    def extend(self, tokens: Sequence[int], outputs: int = 1) -> Rows:
        """Append tokens; logits after the last `outputs` of them, valid until the next pass."""
        ...

    def truncate(self, length: int) -> None:
        """Drop the tokens from `length` on; more where the memory is recurrent."""
        ...

    def checkpoint(self) -> None:
        """Make `truncate` to at least the present length possible for any memory."""
        ...

    def clear(self) -> None: ...

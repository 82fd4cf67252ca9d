"""Interface of a model's KV cache, for drafters and calibration."""

from collections.abc import Sequence
from typing import Protocol

from localspec.decoding.sampling import Rows


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

"""What a task computes over."""

from __future__ import annotations

from localspec.decoding.interfaces import Limits
from localspec.drafters.registry import Parts
from localspec.llama.context import Context
from localspec.llama.target import LlamaTarget


class Seat:
    """A place for one task.

    Attributes:
        cache: of the target.
        target: its passes.
        parts: what its drafts are made of.
        limits: of its trees.
        drafting: whether a draft is being made.
    """

    def __init__(self, cache: Context, parts: Parts) -> None:
        self.cache, self.parts = cache, parts
        self.target = LlamaTarget(cache)
        self.limits = Limits(cache.capacity, cache.max_draft, cache.max_leaves)
        self.drafting = False

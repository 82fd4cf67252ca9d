"""A drafter that fails, with half a tree proposed and the draft model's cache run ahead."""

from __future__ import annotations

import pytest

from localspec import Drafting
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.registry import REGISTRY, Parts, Registration


def failing_drafter(patch: pytest.MonkeyPatch, error: type[Exception], *, at: int = 4) -> Drafting:
    """Register it; it raises at so many tokens."""

    class Failing(DraftModel):
        name = "failing"
        calls = 0

        @property
        def credit(self) -> str:
            self.calls += 1
            if self.calls == at:
                raise error
            return super().credit

    def build(parts: Parts) -> Failing:
        assert parts.model is not None
        return Failing(parts.model.cache, parts.model.vocabulary)

    patch.setitem(REGISTRY, "failing", Registration(build, needs_model=True))
    return Drafting(drafter="failing", depth=4)

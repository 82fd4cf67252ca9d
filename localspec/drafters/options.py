"""Options for drafting."""

from __future__ import annotations

from dataclasses import dataclass

from localspec.drafters.registry import REGISTRY
from localspec.errors import UsageError
from localspec.typed import convert, convert_fields

MAX_DEPTH = 64
TURNED_OFF = "drafting is turned off"
"""Reason shown for the drafter "none"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """How to draft and verify.

    Attributes:
        drafter: "auto" decides at every step, "none" decodes plainly, else a name from
            `localspec.drafters.registry`.
        depth: tokens per draft; None lets "auto" decide. With "auto", a given depth, width or
            minimum fixes the drafter: the draft model if there is one, else the n-gram drafter.
        width: candidates at each position; above 1 the drafts are trees.
        sampled: for sampled answers, draw drafts from the draft model's distribution instead of
            taking its most probable tokens.
        min_confidence: stop a draft if the best next token is less probable than this.
        min_likelihood: stop a draft if it is less probable than this as a whole.
        rule: acceptance rule, see `localspec.decoding.rules`.
        threshold: threshold of a lossy rule.

    Raises UsageError for a value out of range.
    """

    drafter: str = "auto"
    depth: int | None = None
    width: int = 1
    sampled: bool = True
    min_confidence: float = 0.0
    min_likelihood: float = 0.0
    rule: str = "auto"
    threshold: float | None = None

    @property
    def shaped(self) -> bool:
        """Whether the shape of the drafts is given, so that nothing is left to plan."""
        return bool(
            self.depth is not None or self.width > 1 or self.min_confidence or self.min_likelihood
        )

    def require_exact(self) -> None:
        """Raise UsageError for a rule whose text is not plain decoding's with the same seed."""
        if self.rule not in ("auto", "match"):
            raise UsageError(
                f"exact answers need the rule 'match', not '{self.rule}'. Leave out --rule, or "
                "exact."
            )

    def __post_init__(self) -> None:
        convert_fields(self)
        convert("rule", self.rule, str)
        known = ("auto", "none", *REGISTRY)
        if not isinstance(self.drafter, str) or self.drafter not in known:
            raise UsageError(
                f"There is no drafter '{self.drafter}'. Choose one of {', '.join(known)}."
            )
        if self.depth is not None and not 1 <= self.depth <= MAX_DEPTH:
            raise UsageError(
                f"depth is {self.depth}. Give 1 to {MAX_DEPTH}, or turn drafting off with "
                "--drafter none."
            )
        if not 1 <= self.width <= 16:
            raise UsageError(f"width is {self.width}. Give 1 (a chain) to 16.")
        for name in ("min_confidence", "min_likelihood"):
            if not 0.0 <= (value := getattr(self, name)) < 1.0:
                what = name.replace("_", "-")
                raise UsageError(f"{what} is {value}. Give 0 (off) or more, and less than 1.")

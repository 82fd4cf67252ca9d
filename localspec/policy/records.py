"""What is stored of a pair, checked before it is believed. Written by `PairProfile.as_dict`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

SITUATIONS = 3
"""Gains of a model source are learned apart by whether lookups offer nothing, something, or sure
bets."""


class _Record(BaseModel):
    model_config = ConfigDict(allow_inf_nan=False)


class CurveRecord(_Record):
    """Seconds by size with an empty cache, and what a cached token adds: b₀ and b₁."""

    sizes: dict[PositiveInt, PositiveFloat]
    cached: tuple[NonNegativeFloat, NonNegativeFloat]
    length: NonNegativeInt
    two_lengths: bool


class EstimatorRecord(_Record):
    weights: list[float]
    variance: list[list[float]]
    seen: NonNegativeInt

    @model_validator(mode="after")
    def _square(self) -> EstimatorRecord:
        n = len(self.weights)
        if [len(row) for row in self.variance] != [n] * n:
            raise ValueError("another number of features")
        return self


class SourceRecord(_Record):
    costs: dict[NonNegativeInt, CurveRecord] = {}
    estimators: dict[str, EstimatorRecord]
    gains: Annotated[
        list[tuple[float, PositiveFloat]], Field(min_length=SITUATIONS, max_length=SITUATIONS)
    ]
    saved: float | None


class BudgetRecord(_Record):
    fund: float | None
    saved: float
    seconds: float


class ProfileRecord(_Record):
    target: dict[NonNegativeInt, CurveRecord]
    budget: BudgetRecord
    doubts: NonNegativeInt
    measured_at: NonNegativeFloat
    answers: NonNegativeFloat
    said: NonNegativeFloat
    step_overhead: NonNegativeFloat
    row_overhead: NonNegativeFloat
    stock: PositiveFloat | None
    sources: dict[str, SourceRecord]


def sources_of(stored: Any) -> dict[str, SourceRecord]:
    """What answers have taught, by source. Raises ValueError if it is no such record."""
    if not isinstance(stored, dict):
        raise ValueError("no such record")
    return {str(name): SourceRecord.model_validate(source) for name, source in stored.items()}

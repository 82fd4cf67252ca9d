"""Sampling options, in a module without numpy, which the command line imports."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import index

from localspec.errors import UsageError
from localspec.typed import convert_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How a token is picked. The defaults are llama.cpp's.

    Attributes:
        temperature: divides the logits; 0 picks the most probable token (greedy).
        top_k: keep the k most probable tokens; 0 keeps all.
        top_p: keep the smallest set of tokens with at least this probability; 1 keeps all.
        min_p: keep tokens at least this probable relative to the best one; 0 keeps all.
        repeat_penalty: divides positive and multiplies negative logits of recent tokens; 1 is off.
        frequency_penalty: subtracted from a logit for each recent occurrence; 0 is off.
        presence_penalty: subtracted once from the logit of each recent token; 0 is off.
        penalty_last_n: how many tokens back the penalties look; -1 is the whole context.
        logit_bias: token id to a number added to its logit; -inf bans the token.
        seed: None draws one.

    Raises:
        UsageError: a value is out of range.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    penalty_last_n: int = 64
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None

    def __post_init__(self) -> None:
        convert_fields(self, "logit_bias")
        try:
            bias = {
                int(token) if isinstance(token, str) else index(token): float(bias)
                for token, bias in dict(self.logit_bias).items()
            }
        except (TypeError, ValueError, OverflowError):
            shown = f"logit-bias is {self.logit_bias!r}"[:100]
            raise UsageError(f"{shown}. Give a number for each token id.") from None
        object.__setattr__(self, "logit_bias", bias)
        penalty = "between -1000000 and 1000000 (0 is off)"
        checks = {
            "temperature": (0.0 <= self.temperature < math.inf, "0 or more"),
            "top_k": (self.top_k >= 0, "0 (off) or more"),
            "top_p": (0.0 < self.top_p <= 1.0, "above 0 and at most 1 (off)"),
            "min_p": (0.0 <= self.min_p <= 1.0, "between 0 (off) and 1"),
            "repeat_penalty": (
                1e-6 <= self.repeat_penalty <= 1e6,
                "between 0.000001 and 1000000 (1 is off)",
            ),
            "frequency_penalty": (abs(self.frequency_penalty) <= 1e6, penalty),
            "presence_penalty": (abs(self.presence_penalty) <= 1e6, penalty),
            "penalty_last_n": (self.penalty_last_n >= -1, "-1 (the whole context) or more"),
            "logit_bias": (
                all(id < 2**31 and value < math.inf for id, value in bias.items()),
                "a number for each token (-inf bans it)",
            ),
            "seed": (self.seed is None or self.seed >= 0, "0 or more"),
        }
        for field_name, (holds, wanted) in checks.items():
            if not holds:
                name, value = field_name.replace("_", "-"), getattr(self, field_name)
                raise UsageError(f"{name} is {value}. Give a value that is {wanted}.")

    @property
    def greedy(self) -> bool:
        """Whether exactly one token can be picked at every position."""
        return self.temperature == 0.0 or self.top_k == 1

"""Fields that several protocols share, and what they mean to the engine.

Numbers have to be numbers: `"5"` is refused, as the clients' own libraries would. What is not named
here is ignored, as OpenAI's clients expect of other servers.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from localspec import Engine, SamplingParams
from localspec.server.failures import ApiError

MOST_STOPS = 32
LONGEST_STOP = 500
MOST_CHOICES = 16
_TINY = 1e-9

Finite = Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False)]
Probability = Annotated[float, Field(ge=0.0, le=1.0)]


class Record(BaseModel):
    """A part of a request."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class SamplingFields(Record):
    """How tokens are picked: OpenAI's fields, and llama.cpp's further ones.

    Attributes:
        biased_texts: whether a key of logit_bias may be a text, as for llama.cpp.
    """

    biased_texts: ClassVar[bool] = False

    temperature: Annotated[float, Field(ge=0.0, le=100.0)] | None = None
    top_p: Probability | None = None
    top_k: Annotated[int, Field(ge=-1, le=1_000_000)] | None = None
    min_p: Probability | None = None
    presence_penalty: Finite | None = None
    frequency_penalty: Finite | None = None
    repeat_penalty: Annotated[float, Field(ge=1e-6, le=100.0)] | None = None
    repeat_last_n: Annotated[int, Field(ge=-1, le=1_000_000_000)] | None = None
    seed: int | None = None
    logit_bias: dict[str, float] | list[list[int | float | str | bool]] | None = None
    ignore_eos: bool | None = None
    # Refused where they ask for something that is not there.
    mirostat: int | None = None
    dry_multiplier: float | None = None
    xtc_probability: float | None = None
    typical_p: float | None = None
    dynatemp_range: float | None = None


def sampling_of(
    fields: SamplingFields, defaults: SamplingParams, engine: Engine, *, choice: int = 0
) -> SamplingParams:
    """The sampling parameters that a request means.

    Args:
        defaults: for what it does not say.
        choice: number of the answer among several, which must not all be the same.

    Raises:
        ApiError, UsageError: a value that cannot be meant.
    """
    _require_plain(fields)
    said: dict[str, Any] = {
        "temperature": fields.temperature,
        "top_p": None if fields.top_p is None else max(fields.top_p, _TINY),
        "top_k": None if fields.top_k is None else max(fields.top_k, 0),
        "min_p": fields.min_p,
        "presence_penalty": fields.presence_penalty,
        "frequency_penalty": fields.frequency_penalty,
        "repeat_penalty": fields.repeat_penalty,
        "penalty_last_n": fields.repeat_last_n,
    }
    if fields.seed is not None and fields.seed >= 0:  # llama.cpp's -1 draws one
        said["seed"] = (fields.seed + choice) % (1 << 64)
    bias = _bias(fields, engine)
    if fields.ignore_eos:
        ends = engine.model.vocabulary.ends
        bias |= {t: -math.inf for t in range(engine.model.vocabulary.size) if ends(t)}
    if bias:
        said["logit_bias"] = {**defaults.logit_bias, **bias}
    return dataclasses.replace(
        defaults, **{name: value for name, value in said.items() if value is not None}
    )


def _require_plain(fields: SamplingFields) -> None:
    """Return unless the request wants a sampler that localspec does not have."""
    off = {
        "mirostat": fields.mirostat in (None, 0),
        "dry_multiplier": fields.dry_multiplier in (None, 0.0),
        "xtc_probability": fields.xtc_probability in (None, 0.0),
        "typical_p": fields.typical_p in (None, 1.0),
        "dynatemp_range": fields.dynatemp_range in (None, 0.0),
    }
    for name, is_off in off.items():
        if not is_off:
            raise ApiError(400, f"{name} is not supported. Leave it out.", param=name)


def _bias(fields: SamplingFields, engine: Engine) -> dict[int, float]:
    """Token ids and what is added to their logits: OpenAI's object, or llama.cpp's pairs, whose
    tokens may be texts and whose bias may be false for "never"."""
    said = fields.logit_bias
    found: dict[int, float] = {}
    pairs: list[Any] = list(said.items()) if isinstance(said, Mapping) else list(said or ())
    if len(pairs) > 10_000:
        raise ApiError(400, "logit_bias names more than 10,000 tokens.", param="logit_bias")
    for pair in pairs:
        if len(pair) != 2:
            raise ApiError(400, "logit_bias consists of pairs.", param="logit_bias")
        token, bias = pair
        number = -math.inf if bias is False else bias
        if isinstance(number, (bool, str)) or math.isnan(number):
            raise ApiError(400, "A bias of logit_bias is not a number.", param="logit_bias")
        if isinstance(said, Mapping) and token.isascii() and token.isdigit() and len(token) < 10:
            found[int(token)] = float(number)
        elif isinstance(said, Mapping) and not fields.biased_texts:
            raise ApiError(400, "logit_bias has a key that is not an id.", param="logit_bias")
        elif isinstance(token, str):
            for one in engine.model.vocabulary.tokenize(token, special=True, add_bos=False):
                found[one] = float(number)
        elif isinstance(token, int) and not isinstance(token, bool):
            found[token] = float(number)
        else:
            raise ApiError(400, "logit_bias has a token that is not an id.", param="logit_bias")
    return found


def stops_of(stop: str | list[str] | None) -> tuple[str, ...]:
    """The stop strings of a request.

    Raises:
        ApiError: too many, or too long ones.
    """
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > MOST_STOPS or any(len(text) > LONGEST_STOP for text in stops):
        raise ApiError(
            400,
            f"Give at most {MOST_STOPS} stop strings of {LONGEST_STOP} characters.",
            param="stop",
        )
    return tuple(text for text in stops if text)


def length_of(asked: int | None) -> int | None:
    """The longest answer that is asked for; None (or a negative number) sets no limit.

    Raises:
        ApiError: none at all.
    """
    if asked is None or asked < 0:
        return None
    if asked == 0:
        raise ApiError(400, "max_tokens is 0. Give 1 or more.", param="max_tokens")
    return min(asked, 1 << 30)

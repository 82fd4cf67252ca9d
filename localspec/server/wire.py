"""Fields that several protocols share, and what they mean to the engine.

Values are not converted: "5" is not a number. Unknown fields are ignored, as clients expect.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from localspec import Engine, SamplingParams
from localspec.server.failures import ApiError

MOST_STOPS = 32
LONGEST_STOP = 500
MOST_CHOICES = 16
_MOST_BIASED = 10_000
_TINY = 1e-9
NEVER = -1e9
"""The bias of tokens that are not wanted: a grammar that leaves nothing else has them all the same,
as at its end."""
_SAME = ["temperature", "min_p", "presence_penalty", "frequency_penalty", "repeat_penalty"]

Finite = Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False)]
Object = Annotated[dict[str, Any], BeforeValidator(lambda given: {} if given == [] else given)]
"""PHP writes an empty one as a list."""
Bias = Annotated[tuple[int | str, Literal[False] | float], Field(strict=False)]
"""A token or a text and its bias; False is llama.cpp's "never"."""
Probability = Annotated[float, Field(ge=0.0, le=1.0)]


class Record(BaseModel):
    """A request, or a part of one."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class Sampling(Record):
    temperature: Annotated[float, Field(ge=0.0, le=100.0)] | None = None
    top_p: Probability | None = None
    top_k: Annotated[int, Field(ge=-1, le=1_000_000)] | None = None
    min_p: Probability | None = None
    presence_penalty: Finite | None = None
    frequency_penalty: Finite | None = None
    repeat_penalty: Annotated[float, Field(ge=1e-6, le=100.0)] | None = None
    repeat_last_n: Annotated[int, Field(ge=-1, le=1_000_000_000)] | None = None
    # vLLM's and SGLang's name, where it counts the whole text.
    repetition_penalty: Annotated[float, Field(ge=1e-6, le=100.0)] | None = None
    seed: int | None = None


class BiasedSampling(Sampling):
    """Those of OpenAI and llama.cpp besides; for llama.cpp, keys of logit_bias may be texts."""

    biased_texts: ClassVar[bool] = False

    logit_bias: dict[str, float] | list[Bias] | None = None
    ignore_eos: bool | None = None

    def bias(self, engine: Engine) -> dict[int, float]:
        vocabulary = engine.model.vocabulary
        found: dict[int, float] = {}
        given = self.logit_bias or ()
        named = isinstance(given, dict)
        pairs = [*given.items()] if isinstance(given, dict) else given
        if len(pairs) > _MOST_BIASED:
            raise _invalid_bias(f"names more than {_MOST_BIASED:,} tokens")
        for token, bias in pairs:
            if isinstance(token, int):
                tokens = [token]
            elif named and token.isascii() and token.isdigit() and len(token) < 10:
                tokens = [int(token)]
            elif self.biased_texts or not named:
                tokens = vocabulary.tokenize(token, special=True, add_bos=False)
            else:
                raise _invalid_bias("has a token that is not an id")
            if any(not 0 <= one < vocabulary.size for one in tokens):
                raise _invalid_bias(f"names a token id outside 0 … {vocabulary.size - 1}")
            found |= dict.fromkeys(tokens, NEVER if bias is False else max(NEVER, bias))
        if self.ignore_eos:
            found |= {t: NEVER for t in range(vocabulary.size) if vocabulary.ends(t)}
        return found


def _invalid_bias(why: str) -> ApiError:
    return ApiError(400, f"logit_bias {why}.", param="logit_bias")


def sampling_of(fields: Sampling, defaults: SamplingParams, engine: Engine) -> SamplingParams:
    options = {name: getattr(fields, name) for name in _SAME}
    options["penalty_last_n"] = fields.repeat_last_n
    if fields.repetition_penalty is not None and fields.repeat_penalty is None:
        options |= {"repeat_penalty": fields.repetition_penalty, "penalty_last_n": -1}
    if fields.top_p is not None:
        options["top_p"] = max(fields.top_p, _TINY)
    if fields.top_k is not None:
        options["top_k"] = max(fields.top_k, 0)
    if fields.seed is not None and fields.seed >= 0:  # llama.cpp's -1 draws one
        options["seed"] = fields.seed % (1 << 64)
    if isinstance(fields, BiasedSampling):
        options["logit_bias"] = {**defaults.logit_bias, **fields.bias(engine)}
    return dataclasses.replace(
        defaults, **{name: value for name, value in options.items() if value is not None}
    )


def schema_of(form: Any, name: str) -> str | None:
    """The JSON schema that an output format of OpenAI or Anthropic asks for; `name` for errors."""
    if form is None:
        return None
    form = form if isinstance(form, Mapping) else {}
    kind, within = form.get("type"), form.get("json_schema")
    schema = within.get("schema") if isinstance(within, Mapping) else form.get("schema")
    if kind == "text":
        return None
    if kind == "json_object" and schema is None:
        schema = {"type": "object"}
    if kind not in ("json_object", "json_schema") or not isinstance(schema, Mapping):
        why = f"{name} is none of text, json_object, and json_schema with a schema."
        raise ApiError(400, why, param=name)
    return json.dumps(schema)


def stops_of(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > MOST_STOPS or any(len(text) > LONGEST_STOP for text in stops):
        raise ApiError(
            400,
            f"Give at most {MOST_STOPS} stop strings of {LONGEST_STOP} characters.",
            param="stop",
        )
    return tuple(text for text in stops if text)

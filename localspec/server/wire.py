"""Bodies of requests: read within limits, parsed, validated; and fields that protocols share.

Values are not converted: "5" is not a number. Unknown fields are ignored, as clients expect.
"""

import asyncio
import codecs
import dataclasses
import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails, from_json
from starlette.requests import ClientDisconnect, Request

from localspec import Engine, SamplingParams
from localspec.server.failures import ApiError

_MOST_STOPS = 32
_LONGEST_STOP = 500
MOST_CHOICES = 16
_MOST_BIASED = 10_000
_MOST_VALUES = 200_000
"""Values in a body, token ids of a prompt included."""
_READ = 8
"""Read up to this multiple of the limit: clients that are still sending would miss the refusal."""
_TINY = 1e-9
NEVER = -1e9
"""The bias of forbidden tokens. It is finite, so that a grammar that allows nothing else can still
take them, as at its end."""
_SAME = ["temperature", "min_p", "presence_penalty", "frequency_penalty", "repeat_penalty"]
_SAMPLERS = {"penalties": ("penalty_last_n", 0), "top_k": ("top_k", 0), "top_p": ("top_p", 1.0)}
_SAMPLERS |= {"min_p": ("min_p", 0.0), "temperature": ("temperature", 1.0)}
"""Samplers in order, with the parameter and value that disable each."""
_LETTERS = dict(zip("ekpmt", _SAMPLERS, strict=True))
_Finite = Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False)]
Object = Annotated[dict[str, Any], BeforeValidator(lambda given: {} if given == [] else given)]
"""A JSON object; PHP writes an empty one as a list."""
Bias = Annotated[tuple[int | str, Literal[False] | float], Field(strict=False)]
"""A token or a text and its bias; False is llama.cpp's "never"."""
Probability = Annotated[float, Field(ge=0.0, le=1.0)]


class Record(BaseModel):
    """A request, or a part of one."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _normalise(cls, given: Any) -> Any:
        """Convert whole floats to integers, for clients in languages with one number type, and drop
        nulls, which some clients send for missing fields."""
        if not isinstance(given, dict):
            return {} if given == [] else given  # as for `Object`
        return {
            name: int(one) if isinstance(one, float) and one.is_integer() else one
            for name, one in given.items()
            if one is not None
        }


_REFUSED = {
    name: instead
    for instead, names in {
        "response_format, regex or grammar": "structured_outputs guided_json guided_regex "
        "guided_choice guided_grammar regex_pattern",
        "grammar": "ebnf grammar_string",
        "tools": "functions",
        "stop": "stop_token_ids stop_regex stopping_strings custom_stopping_strings stop_sequence",
        "stop, and add it": "include_stop_str_in_output",
        "logit_bias": "allowed_token_ids bad_words custom_token_bans banned_tokens banned_strings "
        "logits_processors",
        "logit_bias or ignore_eos": "min_tokens min_new_tokens min_length",
        "ignore_eos": "ban_eos_token",
        "max_tokens": "max_new_tokens max_length",
        "repeat_penalty": "rep_pen",
        "/v1/completions": "chat_template",
        "a shorter prompt": "truncate_prompt_tokens",
        "messages": "documents image_data response_prefix",
        "echo and logprobs of /v1/completions": "prompt_logprobs",
    }.items()
    for name in names.split()
}
"""Fields of other servers, and OpenAI's former tools, that cannot be ignored without changing the
answer; and the alternative to each."""
_TWICE = (
    *("stopping_strings", "custom_stopping_strings", "stop_sequence", "grammar_string", "rep_pen"),
    *("max_new_tokens", "max_length"),
)
"""Those that multi-server frontends send along with the alternative."""
_OFF: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("mirostat", "mirostat_mode", "dry_multiplier", "xtc_probability"), ()),
    **dict.fromkeys(("dynatemp_range", "smoothing_factor", "top_a", "use_beam_search"), ()),
    **dict.fromkeys(("no_repeat_ngram_size", "epsilon_cutoff", "eta_cutoff", "penalty_alpha"), ()),
    **dict.fromkeys(("typical_p", "typical", "tfs", "tfs_z", "num_beams", "cfg_scale"), (1,)),
    **dict.fromkeys(("encoder_repetition_penalty", "guidance_scale"), (1,)),
    **dict.fromkeys(("top_n_sigma", "adaptive_target"), ()),
    **dict.fromkeys(("lora", "audio", "dynamic_temperature", "grammar_lazy", "echo"), ()),
    "min_keep": (1,),
    "modalities": (["text"],),
}
"""Samplers and other features that localspec lacks, and the values besides 0 and negative numbers
that disable them."""


class Sampling(Record):
    """Sampling fields. `biased_texts`: keys of logit_bias may be texts, as in llama.cpp."""

    model_config = ConfigDict(extra="allow")
    biased_texts: ClassVar[bool] = False
    others: ClassVar = _OFF.keys() | _REFUSED.keys()

    temperature: Annotated[float, Field(ge=0.0, le=100.0)] | None = None
    top_p: Probability | None = None
    top_k: Annotated[int, Field(ge=-1, le=(1 << 31) - 1)] | None = None
    min_p: Probability | None = None
    presence_penalty: _Finite | None = None
    frequency_penalty: _Finite | None = None
    repeat_penalty: Annotated[float, Field(ge=1e-6, le=100.0)] | None = None
    repeat_last_n: Annotated[int, Field(ge=-1, le=1_000_000_000)] | None = None
    # vLLM's and SGLang's; it applies to the whole text.
    repetition_penalty: Annotated[float, Field(ge=1e-6, le=100.0)] | None = None
    seed: int | None = None
    logit_bias: dict[str, Literal[False] | float] | list[Bias] | None = None
    ignore_eos: bool | None = None
    samplers: str | list[str] | None = None
    grammar: str | None = None
    regex: str | None = None

    def refuse_others(self, more: Mapping[str, tuple[Any, ...]]) -> None:
        """Raise an ApiError for fields of other servers that are on; `more`: as for _OFF."""
        extra = self.model_extra or {}
        for name, instead in _REFUSED.items():
            if extra.get(name) and not (name in _TWICE and instead in self.model_fields_set):
                raise ApiError(400, f"{name} is not known here. Use {instead}.", param=name)
        for name, values in {**_OFF, **more}.items():
            value = extra.get(name)
            negative = isinstance(value, int | float) and value < 0
            if value and value not in values and not negative:
                raise ApiError(400, f"{name} is not supported. Leave it out.", param=name)

    def sampling(self, defaults: SamplingParams, engine: Engine) -> SamplingParams:
        options = {name: getattr(self, name) for name in _SAME}
        options["penalty_last_n"] = self.repeat_last_n
        if self.repetition_penalty is not None and self.repeat_penalty is None:
            options |= {"repeat_penalty": self.repetition_penalty, "penalty_last_n": -1}
        if self.top_p is not None:
            options["top_p"] = max(self.top_p, _TINY)
        if self.top_k is not None:
            options["top_k"] = max(self.top_k, 0)
        if self.seed is not None and 0 <= self.seed != 0xFFFFFFFF:  # llama.cpp's -1 picks one
            options["seed"] = self.seed % (1 << 64)
        options |= self._disabled_samplers()
        options["logit_bias"] = {**defaults.logit_bias, **self.bias(engine)}
        return dataclasses.replace(
            defaults, **{name: value for name, value in options.items() if value is not None}
        )

    def _disabled_samplers(self) -> dict[str, Any]:
        """Options that disable the samplers missing from llama.cpp's list of names or letters."""
        if self.samplers is None:
            return {}
        listed = [_LETTERS.get(one, one) for one in self.samplers]
        known = [one for one in listed if one in _SAMPLERS]
        if known != sorted(known, key=[*_SAMPLERS].index):
            why = f"samplers are in a different order than {', '.join(_SAMPLERS)}. Leave them out."
            raise ApiError(400, why, param="samplers")
        return {name: off for one, (name, off) in _SAMPLERS.items() if one not in listed}

    def bias(self, engine: Engine) -> dict[int, float]:
        vocabulary = engine.model.vocabulary
        found: dict[int, float] = {}
        given = self.logit_bias or ()
        named = isinstance(given, dict)
        pairs = [*given.items()] if isinstance(given, dict) else given
        if len(pairs) > _MOST_BIASED:
            raise _invalid_bias(f"names more than {_MOST_BIASED:,} tokens", "Name fewer")
        for token, bias in pairs:
            if isinstance(token, int):
                tokens = [token]
            elif named and token.isascii() and token.isdigit() and len(token) < 10:
                tokens = [int(token)]
            elif self.biased_texts or not named:
                tokens = vocabulary.tokenize(token, special=True)
            else:
                raise _invalid_bias("has a token that is not an id")
            if any(not 0 <= one < vocabulary.size for one in tokens):
                raise _invalid_bias(f"names a token id outside 0 … {vocabulary.size - 1}")
            for one in tokens:  # further entries of a token are added
                more = NEVER if bias is False else bias
                found[one] = max(NEVER, found.get(one, 0.0) + more)
        if self.ignore_eos:
            found |= {t: NEVER for t in range(vocabulary.size) if vocabulary.ends(t)}
        return found


def _invalid_bias(why: str, then: str = "Ask /tokenize") -> ApiError:
    return ApiError(400, f"logit_bias {why}. {then}.", param="logit_bias")


def schema_of(form: Any, name: str) -> dict[str, Any] | None:
    """The JSON schema of an output format of OpenAI or Anthropic; `name`: its field, for errors."""
    if not form:
        return None
    form = form if isinstance(form, Mapping) else {}
    kind, within = form.get("type"), form.get("json_schema")
    schema = within.get("schema") if isinstance(within, Mapping) else form.get("schema")
    if kind == "text":
        return None
    if kind in ("json", "json_object") and schema is None:
        schema = form.get("value") or {"type": "object"}  # as huggingface-hub writes schemas
    schema = {} if schema == [] else schema
    if kind not in ("json", "json_object", "json_schema") or not isinstance(schema, Mapping):
        why = f"{name} must be text, json_object, or json_schema with a schema."
        raise ApiError(400, why, param=name)
    return dict(schema)


def stops_of(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > _MOST_STOPS or any(len(text) > _LONGEST_STOP for text in stops):
        why = f"Give at most {_MOST_STOPS} stop strings of {_LONGEST_STOP} characters."
        raise ApiError(400, why, param="stop")
    return tuple(text for text in stops if text)


Wire = TypeVar("Wire", bound=Record)


async def read_body(request: Request, *, most: int, timeout: float) -> bytes:
    too_large = ApiError(
        413, f"The request is larger than {most:,} bytes. Send less.", code="request_too_large"
    )
    if request.headers.get("content-encoding", "").lower() not in ("", "identity"):
        raise ApiError(415, "The body is compressed. Send it without Content-Encoding.")
    if int(request.headers.get("content-length") or 0) > _READ * most:
        raise too_large

    async def whole() -> bytes:
        body, size = bytearray(), 0
        async for part in request.stream():
            size += len(part)
            if size <= most:
                body += part
            elif size > _READ * most:
                break
        if size > most:
            raise too_large
        return bytes(body)

    try:
        return await asyncio.wait_for(whole(), timeout)
    except asyncio.TimeoutError:
        raise ApiError(408, f"The request did not arrive within {timeout:g} seconds.") from None
    except ClientDisconnect:
        raise ApiError(400, "The client disconnected before its request was complete.") from None


def parse_body(body: bytes, record: type[Wire]) -> Wire:
    try:
        value = from_json(body.removeprefix(codecs.BOM_UTF8), allow_inf_nan=False)
    except ValueError as error:
        why = f"is not JSON: {error}."
        if "surrogate" in why or "hex escape" in why:
            why = "contains a lone surrogate, such as \\ud800. Send whole characters."
        raise ApiError(400, f"The body {why}") from None
    if not isinstance(value, dict):
        raise ApiError(400, "The body is not a JSON object. Wrap it in { }.")
    if _count(value) > _MOST_VALUES:
        raise ApiError(400, f"The body has more than {_MOST_VALUES:,} values. Send less.")
    try:
        return record.model_validate(value)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False, include_context=False)
        paths = [_error_path(value, one) for one in errors]
        # Report the alternative of a union type that fits best.
        best = max(range(len(paths)), key=lambda n: (paths[n][:1] == paths[0][:1], len(paths[n])))
        name = ".".join(paths[best])[:200]
        why = errors[best]["msg"].partition(" or instance of")[0]
        why = why.replace("valid dictionary", "JSON object").replace("valid tuple", "valid list")
        raise ApiError(400, f"{name or 'The body'}: {why}.", param=name or None) from None


def _error_path(value: Any, error: ErrorDetails) -> list[str]:
    """The path of an error in the body, without pydantic's names of union members."""
    found = []
    for part in error["loc"]:
        missing = error["type"] == "missing" and part == error["loc"][-1]
        if isinstance(value, dict) and (part in value or missing):
            value = value.get(part)
        elif isinstance(value, list) and isinstance(part, int):
            value = value[part] if part < len(value) else None
        else:
            continue
        found.append(str(part))
    return found


def _count(value: Any) -> int:
    if isinstance(value, float) and not math.isfinite(value):  # 1e999
        raise ApiError(400, "The body has a number that is too large. Send a smaller one.")
    inner = value.values() if isinstance(value, dict) else value
    return 1 + (sum(map(_count, inner)) if isinstance(value, dict | list) else 0)

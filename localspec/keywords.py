"""Options of an answer, and keyword arguments of `load` and `Engine.stream`, for type checkers and
editors. A test compares them with the records of options, which document them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import wraps
from typing import Any, ParamSpec, TypedDict, TypeVar

from localspec.decoding.params import SamplingParams
from localspec.decoding.session import ContextShift
from localspec.drafters.options import Drafting
from localspec.errors import UsageError
from localspec.llama.options import AdapterSource, ModelOptions
from localspec.typed import convert, convert_fields

Asked = ParamSpec("Asked")
Result = TypeVar("Result")

OTHER_NAMES = {
    "n_ctx": "context",
    "ctx": "context",
    "ctx_size": "context",
    "max_seq_len": "context",
    "ngl": "gpu_layers",
    "flash_attn": "flash_attention",
    "kv_type": "kv_type_k",
    "cache_type_k": "kv_type_k",
    "cache_type_v": "kv_type_v",
    "type_k": "kv_type_k",
    "type_v": "kv_type_v",
    "n_ubatch": "batch",
    "lora_path": "lora",
    "clip_model_path": "mmproj",
    "lora_adapters": "lora",
    "n_parallel": "parallel",
    "num_draft_tokens": "depth",
    "draft_model": "draft",
    "model_path": "model",
}
IN_ANSWERS_ELSEWHERE = {
    **dict.fromkeys(("n_predict", "num_predict", "max_length"), "max_tokens"),
    **dict.fromkeys(("stop_sequences", "stop_strings", "stop_words"), "stop"),
    **dict.fromkeys(("response_format", "format", "schema"), "json_schema"),
    "messages": "prompt",
}
"""Names in other tools, too different to be suggested by spelling."""


class ModelKeywords(TypedDict, total=False):
    context: int
    threads: int | str
    draft_threads: int | None
    gpu_layers: int
    draft_gpu_layers: int | None
    flash_attention: str
    kv_type_k: str
    kv_type_v: str
    kernels: str
    mmap: bool
    mlock: bool
    rpc: tuple[str, ...]
    lora: AdapterSource | tuple[AdapterSource, ...]
    lora_draft: AdapterSource | tuple[AdapterSource, ...]
    mmproj: str | os.PathLike[str] | None
    cross_vocabulary: str
    batch: int
    prompt_cache: int
    parallel: int
    parallel_chunk: int
    exact: bool


class DraftingKeywords(TypedDict, total=False):
    drafter: str
    depth: int | None
    width: int
    sampled: bool
    min_confidence: float
    min_likelihood: float
    rule: str
    threshold: float | None


class LoadKeywords(ModelKeywords, DraftingKeywords, total=False):
    """Keyword arguments of `localspec.load` besides its own parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerOptions:
    """The options of an answer. Raises UsageError for one that is out of range.

    Attributes:
        max_tokens: most tokens to generate; None continues to the end of the context.
        stop: one or more strings that end the answer.
        stop_after: a regular expression for the beginning of the answer; stop strings count only
            after its match.
        sampling: how tokens are picked.
        grammar: in GBNF or Lark.
        json_schema, regex: what the whole answer has to match.
        drafting: how to draft, instead of what the engine was loaded with.
        overflow: for messages longer than the context: "error", or "drop_oldest" to leave out the
            oldest turns (never a leading system message, never the last) with a notice.
        logprobs: give the target's log-probability of each token in `Chunk.step.logprobs`, and
            this many of the most probable ones; None for neither.
        as_sampled: take logprobs after bias, grammar, penalties, truncation and temperature.
        prediction: text that much of the answer may repeat, such as a file to be edited; lookups
            draft from it.
        reuse: whether cached prefixes may be used. If not, the whole prompt is prefilled, in
            passes of the same shapes every time; with `parallel` it is not kept for other answers.
        shift: which tokens to drop when the context is full, so that the answer continues; None
            ends it there. Without `max_tokens` it then has at most one context of tokens. A leading
            BOS token always stays.
        thinks: True if the prompt ended with <think>, False if the answer may begin with it: stop
            strings count after </think>, and if True, so do constraints. None: from the start.
        progress: called during prefill with the tokens done, and their total.
    """

    max_tokens: int | None = None
    stop: str | Sequence[str] | None = ()
    stop_after: str = ""
    sampling: SamplingParams | None = None
    grammar: str | None = None
    json_schema: str | Mapping[str, Any] | None = None
    regex: str | None = None
    drafting: Drafting | None = None
    overflow: str = "error"
    logprobs: int | None = None
    as_sampled: bool = False
    prediction: str = ""
    reuse: bool = True
    shift: ContextShift | None = None
    thinks: bool | None = None
    progress: Callable[[int, int], None] | None = None

    def __post_init__(self) -> None:
        convert_fields(self)
        for name in ("stop_after", "prediction"):
            convert(name, getattr(self, name), str)
        stop = () if self.stop is None else self.stop
        stops = (stop,) if isinstance(stop, str) else tuple(convert("stop", x, str) for x in stop)
        object.__setattr__(self, "stop", stops)
        if not all(stops):
            raise UsageError("A stop string is empty. Leave it out, or give some text.")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise UsageError(f"max-tokens is {self.max_tokens}. Give 1 or more.")
        if self.logprobs is not None and self.logprobs < 0:
            raise UsageError(f"logprobs is {self.logprobs}. Give 0 or more, or None.")


class AnswerKeywords(TypedDict, total=False):
    """Keyword arguments of `Engine.stream`, the fields of `AnswerOptions`."""

    max_tokens: int | None
    stop: str | Sequence[str] | None
    stop_after: str
    sampling: SamplingParams | None
    grammar: str | None
    json_schema: str | Mapping[str, Any] | None
    regex: str | None
    drafting: Drafting | None
    overflow: str
    logprobs: int | None
    as_sampled: bool
    prediction: str
    reuse: bool
    shift: ContextShift | None
    thinks: bool | None
    progress: Callable[[int, int], None] | None


def with_keywords(
    options: ModelOptions | None,
    drafting: Drafting | None,
    given: Mapping[str, Any],
    own: tuple[str, ...],
) -> tuple[ModelOptions, Drafting]:
    """Return the options objects (None for defaults) with the fields given by keywords.

    Args:
        own: other parameters of the caller, for suggestions.

    Raises:
        TypeError: an unknown name; suggests the nearest.
        UsageError: a value out of range.
    """
    model, draft = _names(ModelOptions), _names(Drafting)
    for name in given:
        if name not in model and name not in draft:
            raise TypeError(_unknown(name, (*own, *model, *draft)))
    options = convert("options", options or ModelOptions(), ModelOptions)
    drafting = convert("drafting", drafting or Drafting(), Drafting)
    return (
        dataclasses.replace(options, **{n: given[n] for n in model if n in given}),
        dataclasses.replace(drafting, **{n: given[n] for n in draft if n in given}),
    )


def advised(stream: Callable[Asked, Result]) -> Callable[Asked, Result]:
    """Decorate a function to suggest the nearest name for an unknown keyword of an answer."""
    known = ("prompt", *AnswerKeywords.__annotations__)

    @wraps(stream)
    def call(*args: Asked.args, **keywords: Asked.kwargs) -> Result:
        for name in keywords.keys() - {*known}:
            raise TypeError(_unknown(name, known, "An answer"))
        return stream(*args, **keywords)

    return call


def _names(record: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(record))


def _unknown(name: str, known: tuple[str, ...], what: str = "load()") -> str:
    elsewhere = OTHER_NAMES if what == "load()" else IN_ANSWERS_ELSEWHERE
    wrong = f"{what} takes no keyword argument {name!r}."
    if name in _names(SamplingParams):
        return (
            f"{wrong} Sampling is set per answer: "
            f"engine.stream(…, sampling=SamplingParams({name}=…))."
        )
    near = get_close_matches(name, known, 1, cutoff=0.5)
    meant = elsewhere.get(name) or (near[0] if near else None)
    advice = f"Did you mean {meant!r}?" if meant else f"It takes {', '.join(known)}."
    return f"{wrong} {advice}"

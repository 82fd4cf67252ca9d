"""Build requests from options, settings and standard input."""

from __future__ import annotations

import dataclasses
import math
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec import Drafting, ModelOptions, SamplingParams, paths
from localspec.cli.input_texts import (
    GRAMMAR,
    SCHEMA,
    read_prompt,
    require_texts,
    require_utf8,
    text_or_file,
)
from localspec.errors import UsageError
from localspec.files import require_file
from localspec.hub.packages import default_reference
from localspec.llama.options import IN_MEMORY, thread_count
from localspec.paths import EMBEDDED_TARGET
from localspec.text import size_in_bytes

if TYPE_CHECKING:
    from localspec import Engine
    from localspec.cli.output import Console
    from localspec.keywords import AnswerKeywords

LONGEST = 2048
"""Default limit of an answer in tokens; some models never stop."""


_CONSTRAINTS = ("grammar", "json_schema", "regex")
_FLAGS = (
    *("model", "draft", "drafter", "ctx", "threads", "gpu_layers", "kv_type", "kernels"),
    *("temperature", "prompt_cache"),
)
"""Fields of `localspec.settings.Settings` that options override."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpeningOptions:
    """Models and generation options; see `localspec.load` and `Engine.stream`. `named`: whether the
    user named the model; `given_sampling`: the sampling parameters that were given, for programs
    with other defaults; `max_tokens`: -1 for no limit, None if not given."""

    model: str | None
    named: bool
    draft: str
    offline: bool | None
    options: ModelOptions
    drafting: Drafting = field(default_factory=Drafting)
    sampling: SamplingParams = field(default_factory=SamplingParams)
    given_sampling: Mapping[str, float | int] = field(default_factory=dict)
    max_tokens: int | None = None

    def load(self, progress: Callable[[float], None]) -> Engine:
        """Load the models; raises as `localspec.load`."""
        from localspec import load

        return load(
            self.model,
            draft=self.draft,
            options=self.options,
            drafting=self.drafting,
            progress=progress,
            offline=self.offline,
        )

    def scaled(
        self, name: str, report: Callable[[str], None], draft: str = "auto"
    ) -> OpeningOptions:
        """With the models of a pair of `localspec.bench.scale`, written on first use."""
        from localspec.bench.scale import find_pair, scaled_pair

        disk = find_pair(name).disk
        report(f"scale {name}: finding the models; a minute and {disk:g} GB of disk if new")
        target, own = scaled_pair(name, offline=self.offline)
        return replace(self, model=str(target), draft=str(own) if draft == "auto" else draft)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRequest:
    """Request for one answer. `keywords`: of `Engine.stream`."""

    opening: OpeningOptions
    prompt: str
    system: str | None
    raw: bool
    keywords: AnswerKeywords
    session: Path | None = None
    images: tuple[bytes, ...] = ()

    @property
    def free(self) -> bool:
        """Whether no grammar restricts the answer."""
        return all(self.keywords.get(name) is None for name in _CONSTRAINTS)


def read_request(params: Mapping[str, Any], *, default: str | None = None) -> AnswerRequest:
    """Build a request from a command's parameters (None if not given), and check it as far
    as possible without the model. `default`: prompt if none is given or piped in. Raises as
    `read_prompt`, and UsageError for an invalid value."""
    opening = read_opening(params)
    if params["raw"] and params["system"] is not None:
        raise UsageError("--raw excludes --system. Leave out one of them.")
    if sum(params[name] is not None for name in _CONSTRAINTS) > 1:
        raise UsageError("--grammar, --json-schema and --regex cannot be combined. Give one.")
    longest = opening.max_tokens
    stdin = None if sys.stdin is None or sys.stdin.closed else sys.stdin
    return AnswerRequest(
        opening=opening,
        system=read_text(params, "system"),
        raw=bool(params["raw"]),
        keywords={
            "max_tokens": LONGEST if longest is None else longest if longest > 0 else None,
            "stop": require_texts(params["stop"], "--stop", escapes=True),
            "sampling": opening.sampling,
            "grammar": text_or_file(params["grammar"], "--grammar", GRAMMAR),
            "json_schema": text_or_file(params["json_schema"], "--json-schema", SCHEMA),
            "regex": read_text(params, "regex"),
        },
        session=params.get("session"),
        images=_images(params),
        # Last, so that other errors are reported before it waits for standard input.
        prompt=read_prompt(params["prompt"], stdin, default),
    )


def _images(params: Mapping[str, Any]) -> tuple[bytes, ...]:
    files = params.get("images") or ()
    if not files:
        return ()
    if params["mmproj"] is None:
        raise UsageError("--image needs the model's projector. Name it with --mmproj FILE.")
    if params["raw"]:
        raise UsageError("--raw excludes --image. Leave out one of them.")
    from localspec.llama.pictures import require_image

    found = []
    for file in files:
        found.append(require_file(file, streams=True))
        require_image(found[-1])
    return tuple(found)


def read_opening(params: Mapping[str, Any]) -> OpeningOptions:
    """Read models and generation options; raises UsageError for an invalid value."""
    params = _with_settings(params)
    drafting = Drafting(
        **given_fields(
            Drafting,
            params,
            sampled=False if params["greedy_drafts"] else None,
            threshold=params.get("rule_threshold"),
        )
    )
    if params.get("seed") == -1:  # llama.cpp's default
        params["seed"] = None
    given = given_fields(SamplingParams, params, logit_bias=_logit_bias(params.get("logit_bias")))
    sampling = SamplingParams(**given)
    if params.get("rule") is not None or drafting.threshold is not None:
        from localspec.decoding.rules import acceptance_rule

        acceptance_rule(drafting.rule, greedy=sampling.greedy, threshold=drafting.threshold)
    if params.get("session") is not None and params.get("mmproj") is not None:
        raise UsageError("A session holds only text. Leave out --session, or --mmproj.")
    # Engine.stream checks this too, but only once the model is loaded.
    longest = params.get("max_tokens")
    if longest is not None and longest < 1 and longest != -1:
        raise UsageError(f"max-tokens is {longest}. Give 1 or more, or -1 for no limit.")
    models = _models(params)
    # Load no draft model automatically for a drafter that does not need one.
    needless = models.draft == "auto" and not uses_model(drafting.drafter)
    return replace(
        models,
        draft="none" if needless else models.draft,
        drafting=drafting,
        sampling=sampling,
        given_sampling=given,
        max_tokens=longest,
    )


def read_models(params: Mapping[str, Any]) -> OpeningOptions:
    """Read only the options of models; raises UsageError for an invalid value."""
    return _models(_with_settings(params))


def find_model(
    reference: str | None, console: Console, *, embedded: str = EMBEDDED_TARGET
) -> tuple[Path, str]:
    """Find a model's file and name, and check that it is usable. The default is that of `run`."""
    from localspec.hub import resolution
    from localspec.hub.cache import require_usable
    from localspec.settings import load_settings

    reference = reference or load_settings().model or default_reference()
    found = resolution.find(reference, embedded=embedded)
    console.notices(found.notices)
    require_usable(found.path)
    return found.path, resolution.name_of(reference, found.path)


def read_text(params: Mapping[str, Any], name: str) -> str | None:
    text = params[name]
    return None if text is None else require_utf8(text, f"--{name}")


def _models(params: Mapping[str, Any]) -> OpeningOptions:
    size = params.get("prompt_cache")
    kept = IN_MEMORY if params.get("keeps_conversations") else None
    return OpeningOptions(
        model=default_reference() if params["model"] is None else params["model"],
        named=params["model"] is not None,
        draft=params["draft"],
        offline=params["offline"],
        options=ModelOptions(
            **given_fields(
                ModelOptions,
                params,
                context=params["ctx"],
                kv_type_k=params["kv_type"],
                kv_type_v=params["kv_type"],
                prompt_cache=kept if size is None else size_in_bytes(size, "prompt-cache"),
            )
        ),
    )


def given_fields(kind: type[Any], params: Mapping[str, Any], **overrides: Any) -> dict[str, Any]:
    """Parameters that are fields of a dataclass and were given; `overrides` take precedence."""
    names = {field.name for field in dataclasses.fields(kind)}
    values = {name: value for name, value in params.items() if name in names} | overrides
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in values.items()
        if value is not None
    }


def _with_settings(params: Mapping[str, Any]) -> dict[str, Any]:
    """Fill in parameters that were not given from variables and the config file. pydantic is
    slow to import, so it is only imported if there are any."""
    flags = {name: params.get(name) for name in _FLAGS}
    if flags["threads"] is not None:
        flags["threads"] = thread_count(flags["threads"])
    own = (name for name, value in os.environ.items() if name.startswith("LOCALSPEC_") and value)
    if paths.config_file().exists() or any(name != "LOCALSPEC_HOME" for name in own):
        from localspec.settings import load_settings

        flags = load_settings(**flags).model_dump(include=set(_FLAGS))
    # Verbs that measure have no prompt cache, because they measure prefill.
    cache = flags["prompt_cache"] if "prompt_cache" in params else None
    draft = "auto" if flags["draft"] is None else flags["draft"]
    return {**params, **flags, "draft": draft, "prompt_cache": cache}


def uses_model(drafter: str) -> bool:
    """Whether a drafter uses a draft model or a trained head."""
    if drafter == "auto":
        return True
    from localspec.drafters.registry import REGISTRY

    found = REGISTRY.get(drafter)
    return found is not None and (found.needs_model or found.needs_head != "")


def _logit_bias(values: list[str] | None) -> dict[int, float] | None:
    found: dict[int, float] = {}
    for value in values or ():
        token, _, bias = value.partition("=")
        try:
            found[int(token)] = number = float(bias)
        except ValueError:
            number = math.nan
        if not number < math.inf:
            raise UsageError(
                f"logit-bias is '{value}'. Give the id of a token, =, and a number or -inf."
            )
    return found or None

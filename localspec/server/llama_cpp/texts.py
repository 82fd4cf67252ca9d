"""`/tokenize`, `/detokenize`, `/apply-template`, `/props`: what the model makes of text."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from localspec import Engine, SamplingParams, Stream
from localspec.prompting.content import plain
from localspec.server.conversation import with_system
from localspec.server.events import as_json
from localspec.server.openai.chat_wire import FunctionTool, Message, messages_of, tools_of
from localspec.server.prompts import prompt_text
from localspec.server.service import FINGERPRINT, Service
from localspec.server.tools import chosen, explained
from localspec.server.wire import Record


class TokenizeRequest(Record):
    model: str | None = None
    content: str = ""
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False
    # What vLLM calls the same.
    prompt: str | None = None
    add_special_tokens: bool = True


class DetokenizeRequest(Record):
    model: str | None = None
    tokens: list[int] | None = None


class TemplateRequest(Record):
    model: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)]
    tools: list[FunctionTool] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


def reply(value: Any) -> Response:
    """A JSON response."""
    return Response(as_json(value), media_type="application/json")


async def tokenize(service: Service, request: Request) -> Response:
    """Token ids of a text."""
    wanted = await service.read(request, TokenizeRequest)
    engine = await service.open(wanted.model)
    as_vllm = wanted.prompt is not None
    tokens = await asyncio.to_thread(
        engine.model.vocabulary.tokenize,
        wanted.content if wanted.prompt is None else wanted.prompt,
        special=wanted.parse_special,
        add_bos=wanted.add_special_tokens if as_vllm else wanted.add_special,
    )
    if not wanted.with_pieces:
        return reply({"tokens": tokens})
    return reply({"tokens": [{"id": token, "piece": _piece(token, engine)} for token in tokens]})


async def detokenize(service: Service, request: Request) -> Response:
    """The text of token ids."""
    wanted = await service.read(request, DetokenizeRequest)
    engine = await service.open(wanted.model)
    text = text_of_tokens(wanted.tokens or [], engine)
    return reply({"content": text, "prompt": text})  # the second is vLLM's word for it


async def tokenizer_info(service: Service, request: Request) -> Response:
    """vLLM's `/tokenizer_info`, by which lm-evaluation-harness knows that it may ask for tokens."""
    engine = service.engine()
    vocabulary = engine.model.vocabulary
    return reply(
        {
            "bos_token": vocabulary.special_text(vocabulary.bos) or None,
            "eos_token": vocabulary.special_text(vocabulary.eos) or None,
            "chat_template": engine.model.chat_template,
        }
    )


async def apply_template(service: Service, request: Request) -> Response:
    """The prompt that messages become."""
    wanted = await service.read(request, TemplateRequest)
    engine = await service.open(wanted.model)
    prompts = engine.prompts
    messages = messages_of(wanted.messages)
    tools = chosen(tools_of(wanted.tools), "auto", several=False)
    if tools.tools and not prompts.knows_tools:
        messages = with_system(messages, explained(tools))
    described = [tool.as_openai() for tool in tools.tools] if prompts.knows_tools else None

    def text() -> str:
        text = prompt_text(
            engine,
            messages,
            tools=described,
            more=service.variables(wanted.chat_template_kwargs),
            begins=wanted.add_generation_prompt,
            goes_on=wanted.continue_final_message,
        )
        return str(plain(text))

    return reply({"prompt": await asyncio.to_thread(text)})


async def props(service: Service, request: Request) -> Response:
    """What the server has, and how it answers by itself."""
    engine = service.engine()
    vocabulary = engine.model.vocabulary
    return reply(
        {
            "default_generation_settings": {
                "n_ctx": engine.context_length,
                "params": settings_of(service.defaults),
            },
            "total_slots": service.gate.slots,
            "model_alias": service.host.name,
            "model_path": str(engine.model.path),
            "modalities": {"vision": engine.prompts.sees_images, "audio": False},
            "chat_template": engine.model.chat_template or "",
            "bos_token": vocabulary.special_text(vocabulary.bos),
            "eos_token": vocabulary.special_text(vocabulary.eos),
            "build_info": FINGERPRINT,
            "kernels": engine.model.kernels.words,
            "is_sleeping": False,
        }
    )


def settings_of(sampling: SamplingParams) -> dict[str, Any]:
    """Sampling parameters by llama.cpp's names."""
    found = {**_OFF, **dataclasses.asdict(sampling)}
    found["seed"] = -1 if sampling.seed is None else sampling.seed
    found["repeat_last_n"] = found.pop("penalty_last_n")
    found["logit_bias"] = [
        {"token": token, "bias": None if math.isinf(bias) else bias}  # JSON has no infinity
        for token, bias in sampling.logit_bias.items()
    ]
    return found


_OFF: dict[str, Any] = {
    "dynatemp_range": 0.0,
    "dynatemp_exponent": 1.0,
    "top_n_sigma": -1.0,
    "xtc_probability": 0.0,
    "xtc_threshold": 0.1,
    "typical_p": 1.0,
    "dry_multiplier": 0.0,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": -1,
    "mirostat": 0,
    "mirostat_tau": 5.0,
    "mirostat_eta": 0.1,
    "adaptive_target": -1.0,
    "adaptive_decay": 0.9,
    "n_keep": 0,
    "min_keep": 0,
    "samplers": ["penalties", "top_k", "top_p", "min_p", "temperature"],
    "lora": [],
}
"""Settings that llama.cpp's clients look for, as they are where a sampler is not used."""


def text_of_tokens(tokens: list[int], engine: Engine) -> str:
    """The text that token ids stand for.

    Raises:
        UsageError: one that there is not.
    """
    tokens = engine.prompts.checked(tokens)
    piece = engine.model.vocabulary.piece
    return b"".join(piece(token, special=True) for token in tokens).decode("utf-8", "replace")


def prompt_of(stream: Stream, engine: Engine) -> str:
    """The prompt of an answer as the model reads it, special tokens included."""
    return text_of_tokens(list(stream.prompt), engine)


def _piece(token: int, engine: Engine) -> str | list[int]:
    """A token's text, or its bytes where they are no text by themselves."""
    data = engine.model.vocabulary.piece(token, special=True)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)

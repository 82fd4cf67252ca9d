"""`/tokenize`, `/detokenize`, `/tokenizer_info`, `/apply-template` and `/props`."""

import asyncio
import dataclasses
from typing import Any

from pydantic import Field

from localspec import Engine, SamplingParams
from localspec.prompting.marked_text import unmarked
from localspec.prompting.reasoning import reasons
from localspec.server.answer_figures import text_of_tokens
from localspec.server.chat_prompt import chat_text, mark_chat, request_of
from localspec.server.openai.chat import CountRequest
from localspec.server.openai.completions import Mixed, tokens_of
from localspec.server.openai.messages import Message
from localspec.server.service import FINGERPRINT, Service
from localspec.server.wire import NEVER, Record


class TokenizeRequest(CountRequest):
    content: str | Mixed = ""
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False
    # vLLM's names: a text or a conversation.
    messages: list[Message] = Field(default_factory=list)
    prompt: str | None = None
    add_special_tokens: bool = True


class DetokenizeRequest(Record):
    model: str | None = None
    tokens: list[int] | None = None


async def tokenize(service: Service, wanted: TokenizeRequest) -> Any:
    engine = await service.open(wanted.model)
    as_vllm = wanted.prompt is not None
    if wanted.messages:
        ask = await request_of(engine, wanted.chat(service, engine))
        return {"tokens": [*ask.prompt], **_sizes(len(ask.prompt), engine)}
    tokens = await asyncio.to_thread(
        tokens_of,
        wanted.content if wanted.prompt is None else wanted.prompt,
        engine,
        special=wanted.parse_special,
        add_bos=wanted.add_special_tokens if as_vllm else wanted.add_special,
    )
    if not wanted.with_pieces:
        return {"tokens": tokens, **(_sizes(len(tokens), engine) if as_vllm else {})}
    return {"tokens": [{"id": token, "piece": _piece(token, engine)} for token in tokens]}


def _sizes(count: int, engine: Engine) -> dict[str, int]:
    return {"count": count, "max_model_len": engine.context_length}


async def detokenize(service: Service, wanted: DetokenizeRequest) -> Any:
    engine = await service.open(wanted.model)
    text = text_of_tokens(wanted.tokens or [], engine)
    return {"content": text, "prompt": text}


async def tokenizer_info(service: Service) -> Any:
    engine = service.engine()
    vocabulary = engine.model.vocabulary
    return {
        "bos_token": vocabulary.special_text(vocabulary.bos) or None,
        "eos_token": vocabulary.special_text(vocabulary.eos) or None,
        "chat_template": engine.model.chat_template,
    }


async def apply_template(service: Service, wanted: CountRequest) -> Any:
    engine = await service.open(wanted.model)
    chat, _ = mark_chat(engine, wanted.chat(service, engine))
    text = await asyncio.to_thread(chat_text, engine, chat)
    return {"prompt": str(unmarked(text))}


async def props(service: Service) -> Any:
    engine = service.engine()
    vocabulary, template = engine.model.vocabulary, engine.model.chat_template
    can = dict.fromkeys(("tools", "tool_calls", "parallel_tool_calls"), engine.prompts.knows_tools)
    can |= dict.fromkeys(("system_role", "typed_content", "object_arguments"), bool(template))
    can |= {"string_content": bool(template), "preserve_reasoning": reasons(template)}
    return {
        "default_generation_settings": {
            "n_ctx": engine.context_length,
            "params": settings_of(service.defaults),
        },
        "total_slots": service.host.queue.slots,
        "model_alias": service.host.name,
        "model_path": str(engine.model.path),
        "modalities": {"vision": engine.prompts.sees_images, "audio": False},
        "chat_template": template or "",
        "chat_template_caps": {f"supports_{what}": able for what, able in can.items()},
        "bos_token": vocabulary.special_text(vocabulary.bos),
        "eos_token": vocabulary.special_text(vocabulary.eos),
        "build_info": FINGERPRINT,
        "kernels": engine.model.kernels.words,
        "is_sleeping": False,
    }


def settings_of(sampling: SamplingParams) -> dict[str, Any]:
    """Sampling parameters by llama.cpp's names."""
    found = {**_OFF, **dataclasses.asdict(sampling)}
    found["seed"] = -1 if sampling.seed is None else sampling.seed
    found["repeat_last_n"] = found.pop("penalty_last_n")
    found["logit_bias"] = [
        {"token": token, "bias": None if bias <= NEVER else bias}
        for token, bias in sampling.logit_bias.items()
    ]
    return found


_OFF: dict[str, Any] = {
    **dict.fromkeys(("dynatemp_range", "xtc_probability", "dry_multiplier"), 0.0),
    **dict.fromkeys(("dynatemp_exponent", "typical_p"), 1.0),
    **dict.fromkeys(("top_n_sigma", "adaptive_target"), -1.0),
    **dict.fromkeys(("mirostat", "n_keep", "min_keep"), 0),
    "xtc_threshold": 0.1,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": -1,
    "mirostat_tau": 5.0,
    "mirostat_eta": 0.1,
    "adaptive_decay": 0.9,
    "samplers": ["penalties", "top_k", "top_p", "min_p", "temperature"],
    "lora": [],
}
"""Disabled samplers, which llama.cpp's clients expect in the list."""


def _piece(token: int, engine: Engine) -> str | list[int]:
    data = engine.model.vocabulary.piece(token, special=True)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)

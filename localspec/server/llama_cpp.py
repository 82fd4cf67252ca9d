"""The endpoints of llama.cpp's own server: `/completion`, `/infill`, `/tokenize`, `/detokenize`,
`/tokenizer_info`, `/apply-template`, `/props`, and `/slots/{id}` for caches in files."""

import asyncio
import dataclasses
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import AliasChoices, Field

from localspec import Engine, SamplingParams
from localspec.decoding.logprobs import TokenLogprob
from localspec.errors import SessionError
from localspec.prompting.marked_text import unmarked
from localspec.prompting.prompt import Tokens
from localspec.prompting.reasoning import reasons
from localspec.server.answer_figures import TextOffsets, chat_logprobs, text_of_tokens
from localspec.server.answers import Answer, AnswerPart, Answers, StreamRequest
from localspec.server.chat_prompt import chat_text, mark_chat
from localspec.server.failures import ApiError
from localspec.server.openai.chat import CountRequest, prepared
from localspec.server.openai.completions import (
    Alternatives,
    Mixed,
    Prompts,
    RawFields,
    infill_prompt,
    tokens_of,
)
from localspec.server.openai.messages import Message
from localspec.server.reply import Event, Reply
from localspec.server.service import FINGERPRINT, Service
from localspec.server.wire import NEVER, Record

_LONGEST_NAME = 200  # bytes


class Completion(RawFields):
    """`t_max_predict_ms`: a time limit, after which the answer ends with its first line;
    `n_indent`: white space that every further line has to begin with, or the answer ends."""

    biased_texts = True
    prompt: Prompts = ""
    n_probs: Alternatives = Field(None, validation_alias=AliasChoices("n_probs", "logprobs"))
    post_sampling_probs: bool | None = None
    return_tokens: bool | None = None
    response_fields: list[str] | None = None
    t_max_predict_ms: Annotated[float, Field(allow_inf_nan=False)] | None = None
    n_indent: Annotated[int, Field(le=1000)] | None = None


async def completion(service: Service, wanted: Completion) -> Reply:
    engine = await service.open(wanted.model)

    def prepared() -> list[StreamRequest]:
        prompts = wanted.prompts(wanted.prompt, engine)
        return wanted.requests(service, engine, prompts, silent=wanted.limit[1] == 0)

    requests = await asyncio.to_thread(prepared)
    logprobs, sampled = wanted.n_probs or None, bool(wanted.post_sampling_probs)
    asked = [ask.with_options(logprobs=logprobs, as_sampled=sampled) for ask in requests]
    return CompletionReply(await service.begin(engine, *asked), wanted)


class CompletionReply(Reply):
    def __init__(self, answers: Answers, wanted: Completion) -> None:
        super().__init__(answers, streamed=wanted.stream)
        self._wanted = wanted

    def events_of(self, part: AnswerPart) -> Iterable[Event]:
        answer, chunk = part.answer, part.chunk
        if part.complete:
            yield self._final(answer)
        elif part.progress is not None:
            yield {**self._part(answer), "prompt_progress": part.progress}
        elif chunk is not None or part.logprobs:
            excess = len(answer.text) - self._end(answer)
            said, tokens = (chunk.text, chunk.token_ids) if chunk else ("", ())
            text = said[: max(0, len(said) - excess)]
            found = self._part(answer, text, tokens)
            if part.logprobs:
                found["completion_probabilities"] = self._probabilities(part.logprobs)
            if self._wanted.timings_per_token:
                found["timings"] = answer.timings
            if text or not excess:
                yield found
            most = self._wanted.t_max_predict_ms or 0.0
            late = 0 < most < answer.stream.stats.decode_seconds * 1e3
            if excess or (late and "\n" in answer.text):
                answer.stream.cancel()

    def _end(self, answer: Answer) -> int:
        """The length of an answer up to its first line with too little white space."""
        least = self._wanted.n_indent or 0
        line = rf"\n[ \t]{{0,{least - 1}}}(?=[^ \t])"
        found = re.search(line, answer.text) if least > 0 else None
        return len(answer.text) if found is None else found.end()

    def whole(self) -> Any:
        found = [self._final(answer) for answer in self.answers]
        return found[0] if len(found) == 1 else found

    def _part(self, answer: Answer, text: str = "", tokens: Sequence[int] = ()) -> dict[str, Any]:
        return {
            "index": answer.number,
            "content": text,
            "tokens": list(tokens),
            "stop": False,
            "id_slot": answer.slot,
            "tokens_predicted": len(answer.tokens),
            "tokens_evaluated": answer.stream.stats.prompt_tokens,
        }

    def _probabilities(self, logprobs: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
        return chat_logprobs(logprobs, self.engine, sampled=bool(self._wanted.post_sampling_probs))

    def _final(self, answer: Answer) -> Event:
        stream, ask, wanted = answer.stream, answer.ask, self._wanted
        stats = stream.stats
        kind = "eos" if stream.finish_reason == "stop" else "limit"
        kind = kind if stream.stopped is None else "word"
        text, tokens = answer.text[: self._end(answer)], answer.tokens
        if len(text) < len(answer.text):
            starts = TextOffsets(self.engine).of(tokens)
            kind, tokens = "limit", tokens[: sum(start < len(text) for start in starts)]
        longest = 0 if ask.silent else ask.options["max_tokens"] or -1
        found: dict[str, Any] = {
            "index": answer.number,
            "content": "" if self.streamed else text,
            "tokens": tokens if wanted.return_tokens and not self.streamed else [],
            "id_slot": answer.slot,
            "stop": True,
            "model": self.model,
            "tokens_predicted": 0 if ask.silent else len(tokens),
            "tokens_evaluated": stats.prompt_tokens,
            "generation_settings": {
                **settings_of(ask.sampling),
                "seed": stats.seed,
                "n_keep": wanted.n_keep or 0,
                "n_discard": wanted.n_discard or 0,
                "n_predict": longest,
                "max_tokens": longest,
                "stop": list(ask.options["stop"] or ()),
                "stream": self.streamed,
                "n_probs": wanted.n_probs or 0,
                "post_sampling_probs": bool(wanted.post_sampling_probs),
                "grammar": ask.options["grammar"] or "",
                "ignore_eos": bool(wanted.ignore_eos),
                "timings_per_token": bool(wanted.timings_per_token),
            },
            "prompt": text_of_tokens(stream.prompt, self.engine),
            "has_new_line": "\n" in text,
            "truncated": stream.truncated,
            "stop_type": kind,
            "stopping_word": (stream.stopped or "") if kind == "word" else "",
            "tokens_cached": len(stream.context) - 1,
            "timings": answer.timings,
        }
        if answer.logprobs and not self.streamed:
            found["completion_probabilities"] = self._probabilities(answer.logprobs[: len(tokens)])
        return _pick_fields(found, wanted.response_fields)


def _pick_fields(found: dict[str, Any], fields: Sequence[str] | None) -> dict[str, Any]:
    picked: dict[str, Any] = {}
    for path in fields or ():
        value: Any = found
        for name in path.split("/"):
            if not isinstance(value, Mapping) or name not in value:
                break
            value = value[name]
        else:
            picked[path] = value
    return picked if fields else found


class Extra(Record):
    text: str
    filename: str = "tmp"


class Infill(Completion):
    input_prefix: str = ""
    input_suffix: str = ""
    input_extra: tuple[Extra, ...] | list[Extra] = ()
    prompt: str = ""

    def prompts(self, given: Any, engine: Engine) -> list[str | Tokens]:
        others = [(one.filename, one.text) for one in self.input_extra]
        prefix, suffix = self.input_prefix, self.input_suffix
        return [
            infill_prompt(
                engine, prefix, suffix, limit=self.limit[1], begun=self.prompt, files=others
            )
        ]


async def infill(service: Service, wanted: Infill) -> Reply:
    return await completion(service, wanted)


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
        ask = await prepared(service, engine, wanted)
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

    def pieces() -> list[dict[str, Any]]:
        return [{"id": token, "piece": _piece(token, engine)} for token in tokens]

    return {"tokens": await asyncio.to_thread(pieces)}


def _sizes(count: int, engine: Engine) -> dict[str, int]:
    return {"count": count, "max_model_len": engine.context_length}


async def detokenize(service: Service, wanted: DetokenizeRequest) -> Any:
    engine = await service.open(wanted.model)
    text = await asyncio.to_thread(text_of_tokens, wanted.tokens or [], engine)
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

    def text() -> str:
        chat, _ = mark_chat(engine, wanted.chat(service, engine))
        return str(unmarked(chat_text(engine, chat)))

    return {"prompt": await asyncio.to_thread(text)}


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


class SlotRequest(Record):
    filename: str = ""
    model: str | None = None


async def save_or_restore(service: Service, wanted: SlotRequest) -> Any:
    query = service.request.query_params
    engine = await service.open(wanted.model)
    number, last = service.request.path_params["number"], service.host.queue.slots - 1
    if number > last:
        raise ApiError(400, f"There is no slot {number}. Choose one from 0 to {last}.")
    action = query.get("action")
    if action == "erase":
        erased = await service.run_in_slot(lambda disconnected: engine.clear())
        return {"id_slot": number, "n_erased": erased}
    if action not in ("save", "restore"):
        why = "action is missing or unknown. Give save, restore or erase."
        raise ApiError(400, why, param="action")
    path = _path(service, wanted.filename)

    def work(_disconnected: object) -> dict[str, Any]:
        started = time.perf_counter()
        if action == "save":
            figures = {"n_saved": engine.save_session(path), "n_written": path.stat().st_size}
        else:
            figures = {"n_restored": _restore(engine, path), "n_read": path.stat().st_size}
        return {**figures, "timings": {f"{action}_ms": (time.perf_counter() - started) * 1e3}}

    try:
        figures = await service.run_in_slot(work)
    except SessionError as error:
        raise ApiError(400, str(error)) from None
    return {"id_slot": number, "filename": wanted.filename, **figures}


def _path(service: Service, name: str) -> Path:
    folder = service.options.slot_save_path
    if folder is None:
        why = "There is no folder for slots. Start the server with --slot-save-path DIR."
        raise ApiError(501, why)
    plain = name.isprintable() and not name.startswith(".") and not set(name) & set('/\\:*?"<>|')
    if not name or not plain or len(name.encode()) > _LONGEST_NAME:
        why = "filename is not a plain name. Give one without folders, such as fox.bin."
        raise ApiError(400, why, param="filename")
    return folder / name


def _restore(engine: Engine, path: Path) -> int:
    if not path.is_file():
        raise SessionError("There is no file of that name. Save a slot first.")
    found = engine.open_session(path)
    if not found.tokens:
        raise SessionError(f"{path.name} cannot be restored: {found.why}. Save the slot again.")
    engine.clear()  # also drops the opened session
    return engine.open_session(path).tokens

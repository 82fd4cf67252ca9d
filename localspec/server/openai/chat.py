"""`/v1/chat/completions`."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from localspec.decoding.logprobs import TokenLogprob
from localspec.prompting.pieces import CallBegins, Piece, Text, Thought
from localspec.server.answers import Answers, Part
from localspec.server.conversation import ask_of
from localspec.server.failures import ApiError
from localspec.server.figures import chat_logprobs, timings, usage
from localspec.server.llama_cpp.texts import prompt_of
from localspec.server.openai.chat_wire import ChatRequest, CountRequest
from localspec.server.pieces import Call
from localspec.server.reply import Event, Reply
from localspec.server.service import FINGERPRINT, Service
from localspec.server.speculation import Speculation
from localspec.server.wire import sampling_of

DONE = b"data: [DONE]\n\n"


async def chat_completions(service: Service, wanted: ChatRequest) -> Reply:
    if wanted.top_logprobs and not wanted.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs.", param="top_logprobs")
    engine = await service.open(wanted.model)
    ask = await ask_of(engine, wanted.asked(service, engine))
    asks = [
        replace(ask, sampling=sampling_of(wanted, service.defaults, engine, choice=number))
        for number in range(wanted.n or 1)
    ]
    return ChatReply(await service.begin(engine, *asks), wanted)


async def input_tokens(service: Service, wanted: CountRequest) -> Any:
    engine = await service.open(wanted.model)
    ask = await ask_of(engine, wanted.chat(service, engine))
    return {"object": "response.input_tokens", "input_tokens": len(ask.prompt)}


class ChatReply(Reply):
    last: ClassVar[bytes] = DONE

    def __init__(self, answers: Answers, wanted: ChatRequest) -> None:
        super().__init__(answers, streamed=wanted.stream)
        self._wanted = wanted
        followed = answers.streams if wanted.speculation else []
        self._speculation = [Speculation(answers.engine, stream) for stream in followed]
        self._head = {
            "id": f"chatcmpl-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": answers.model,
            "system_fingerprint": FINGERPRINT,
        }

        nothing = {"usage": None} if wanted.wants_usage else {}
        self._chunk_head = {**self._head, "object": "chat.completion.chunk", **nothing}

    def begin(self) -> Iterable[Event]:
        for number in range(len(self.answers.streams)):
            yield self._chunk(number, {"role": "assistant", "content": ""})

    def events_of(self, part: Part) -> Iterable[Event]:
        number, stream = part.number, self.answers.streams[part.number]
        if part.reading is not None:
            yield self._chunk(number, {}, prompt_progress=part.reading.as_llama_cpp())
        more: dict[str, Any] = {}
        if self._speculation and part.chunk is not None:
            more["speculation"] = self._speculation[number].step(part.chunk)
        logprobs = part.logprobs
        for piece in part.pieces or ([Text("")] if logprobs or more else []):
            message = self.answers.messages[number]
            message.add(piece)
            if self._wanted.timings_per_token:
                more["timings"] = timings(stream.stats)
            yield self._chunk(number, _delta(piece, message.calls), logprobs=logprobs, **more)
            logprobs, more = (), {}
        if part.complete:
            more = {"timings": timings(stream.stats)}
            if self._speculation:
                more["speculation"] = self._speculation[number].figures()
            yield self._chunk(number, {}, finish=self._finish(number), **more)

    def end(self) -> Iterable[Event]:
        if self._wanted.wants_usage:
            figures = {"usage": self._usage(), "timings": timings(self.stream.stats)}
            yield {**self._chunk_head, "choices": [], **figures}

    def whole(self) -> Any:
        verbose = {"__verbose": {"prompt": prompt_of(self.stream, self.answers.engine)}}
        return {
            **self._head,
            "object": "chat.completion",
            "choices": [self._choice(number) for number in range(len(self.answers.streams))],
            "usage": self._usage(),
            "timings": timings(self.stream.stats),
            **(verbose if self._wanted.verbose else {}),
        }

    def _chunk(
        self,
        number: int,
        delta: dict[str, Any],
        *,
        finish: str | None = None,
        logprobs: Sequence[TokenLogprob] = (),
        **more: Any,
    ) -> Event:
        choice = {
            "index": number,
            "delta": delta,
            "logprobs": self._logprobs(logprobs) if logprobs else None,
            "finish_reason": finish,
        }
        return {**self._chunk_head, "choices": [choice], **more}

    def _choice(self, number: int) -> dict[str, Any]:
        answer = self.answers.messages[number]
        message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
        if answer.thought:
            message["reasoning_content"] = answer.thought
        if answer.calls:
            message["tool_calls"] = [call.as_openai() for call in answer.calls]
            message["content"] = answer.text or None
        return {
            "index": number,
            "message": message,
            "logprobs": self._logprobs(answer.logprobs) if self._wanted.logprobs else None,
            "finish_reason": self._finish(number),
        }

    def _logprobs(self, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        return {"content": chat_logprobs(logprobs, self.answers.engine), "refusal": None}

    def _finish(self, number: int) -> str:
        if self.answers.streams[number].finish_reason == "length":
            return "length"
        return "tool_calls" if self.calls(number) else "stop"

    def _usage(self) -> dict[str, Any]:
        return usage([stream.stats for stream in self.answers.streams])


def _delta(piece: Piece, calls: Sequence[Call]) -> dict[str, Any]:
    if isinstance(piece, Text):
        return {"content": piece.text}
    if isinstance(piece, Thought):
        return {"reasoning_content": piece.text}
    call: dict[str, Any] = {"index": len(calls) - 1}
    if isinstance(piece, CallBegins):
        call |= {"id": calls[-1].id, "type": "function"}
        call["function"] = {"name": piece.name, "arguments": ""}
    else:
        call["function"] = {"arguments": piece.text}
    return {"tool_calls": [call]}

"""`/v1/responses`: OpenAI's newer protocol; nothing is stored between requests."""

import asyncio
import itertools
import json
import secrets
import time
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

from pydantic import Field

from localspec.prompting.reasoning import CallArguments, CallBegins, Text, Thought
from localspec.server.answer_figures import chat_logprobs
from localspec.server.answers import AnswerPart, Answers, Call
from localspec.server.failures import ApiError, logger
from localspec.server.openai import chat
from localspec.server.openai.chat import ChatRequest, Thinking, begin
from localspec.server.openai.messages import (
    KEPT,
    Content,
    ContentPart,
    FunctionCall,
    FunctionTool,
    Message,
    ToolCall,
    text_of,
)
from localspec.server.reply import Event, NamedEvents
from localspec.server.service import Service
from localspec.server.wire import Object, Record, Sampling, schema_of

_HOSTED = (
    *("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call"),
    *("mcp_list_tools", "additional_tools", "mcp_call", "mcp_approval_request"),
    *("mcp_approval_response", "compaction", "program", "program_output"),
)
"""Items without text for the model: those of tools that OpenAI runs, and further tools."""
_LOGPROBS, _THOUGHTS = "message.output_text.logprobs", "reasoning.encrypted_content"
_ECHOED = {
    *("instructions", "max_output_tokens", "metadata", "parallel_tool_calls", "reasoning"),
    *("tool_choice", "top_logprobs", "user", "max_tool_calls", "prompt_cache_key"),
    *("safety_identifier", "service_tier"),
}
_DEFAULTS: dict[str, Any] = dict.fromkeys(("error", "previous_response_id", *_ECHOED))
_DEFAULTS |= {"object": "response", "background": False, "store": False, "truncation": "disabled"}
_DEFAULTS |= {"metadata": {}, "parallel_tool_calls": True, "tool_choice": "auto", "top_logprobs": 0}
"""Fields of a response, all of which strict clients expect; those of the request are returned."""
_CALLS = {
    "function_call": ("fc", "arguments", "function_call_arguments"),
    "custom_tool_call": ("ctc", "input", "custom_tool_call_input"),
    "tool_search_call": ("tsc", "arguments", ""),  # without events
}
"""By type of call: the prefix of its ids, and the names of the model's text and of its events."""


class Item(Record):
    type: str | None = None
    id: str | None = None
    role: str | None = None
    content: Content | None = None
    summary: list[ContentPart] | None = None  # of a thought
    encrypted_content: str | None = None  # of a thought, see KEPT
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    tools: list[FunctionTool] | None = None
    arguments: str | Object | None = None
    input: str | None = None
    action: dict[str, Any] | None = None  # of a shell
    operation: dict[str, Any] | None = None  # of a patch
    execution: str | None = None  # of a search for tools
    output: Annotated[Content | list[Any] | Object | None, Field(union_mode="left_to_right")] = None

    @property
    def hosted(self) -> bool:
        search = self.type in ("tool_search_call", "tool_search_output")
        return self.type in _HOSTED or (search and self.execution != "client")


class ResponsesRequest(Thinking, Sampling):
    model: str | None = None
    input: str | list[Item]
    instructions: str | None = None
    max_output_tokens: int | None = None
    # llama.cpp's, as for chat completions.
    max_tokens: int | None = None
    response_format: Object | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: Object | None = None
    include: list[str] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    metadata: Object | None = None

    def as_chat(self) -> ChatRequest:
        return ChatRequest.of(
            self,
            messages=self.messages(),
            tools=[tool for _, tool in self.functions()],
            json_schema=schema_of((self.text or {}).get("format"), "text.format"),
            logprobs=_LOGPROBS in (self.include or ()),
        )

    def functions(self) -> Iterator[tuple[str | None, FunctionTool]]:
        """Yield all tools, each with its namespace, which precedes its name."""
        items = () if isinstance(self.input, str) else self.input
        kinds = ("function", "custom", "namespace")
        more = [t for one in items for t in one.tools or () if t.type in kinds]
        own = [*_named(self.tools or ())]
        names = {tool.name for _, tool in own}
        later = {tool.name: (space, tool) for space, tool in _named(more)}  # items repeat them
        yield from own
        yield from (found for name, found in later.items() if name not in names)

    def messages(self) -> list[Message]:
        for name in ("previous_response_id", "conversation", "background", "prompt"):
            if (self.model_extra or {}).get(name):
                why = f"{name} is not supported: nothing is stored. Send all, with store: false."
                raise ApiError(400, why, param=name)
        items = [Item(content=self.input)] if isinstance(self.input, str) else self.input
        if hosted := {item.type for item in items if item.hosted}:
            logger.warning("items are left out, of type %s", ", ".join(map(str, hosted)))
        found = list[Message]()
        for message in (_message(item) for item in items if not item.hosted):
            last = found[-1] if found else None
            if last is not None and last.role == message.role == "assistant":
                calls = [*(last.tool_calls or ()), *(message.tool_calls or ())]
                if _is_thought(last) or calls:  # of one turn
                    texts = (text_of(one.content) for one in (last, message))
                    thoughts = (one.reasoning_content for one in (last, message))
                    both = {
                        "content": "\n".join(filter(None, texts)) or message.content,
                        "reasoning_content": "\n".join(filter(None, thoughts)) or None,
                        "tool_calls": calls or None,
                    }
                    message = message.model_copy(update=both)
                    found.pop()
            found.append(message)
        found = [message for message in found if not _is_thought(message)]
        if not found:
            raise ApiError(400, "The input is empty.", param="input")
        if self.instructions:
            found.insert(0, Message(role="system", content=self.instructions))
        return found


def _named(tools: Iterable[FunctionTool]) -> Iterator[tuple[str | None, FunctionTool]]:
    for tool in tools:
        if tool.searches:
            yield None, tool.model_copy(update={"type": "function", "name": "tool_search"})
        elif tool.tools is None:
            yield None, tool
        for one in tool.tools or ():
            yield tool.name, one.model_copy(update={"name": f"{tool.name}__{one.name}"})


def _message(item: Item) -> Message:
    kind = item.type or "message"
    if kind in ("message", "agent_message"):  # the latter of one of Codex's agents to another
        return Message(role=item.role or "user", content=item.content or "")
    if kind.endswith("_call"):  # of a function, or of a tool that the client runs
        values = {"input": item.input or ""} if kind == "custom_tool_call" else {}
        values = item.action or item.operation or values
        name = "__".join(filter(None, (item.namespace, item.name or kind.removesuffix("_call"))))
        function = FunctionCall(name=name, arguments=item.arguments or values)
        return Message(role="assistant", tool_calls=[ToolCall(id=item.call_id, function=function)])
    if kind.endswith("_call_output"):
        content: Any = item.output or ""
        if not isinstance(content, str) and not isinstance(next(iter(content)), ContentPart):
            content = json.dumps(content, ensure_ascii=False)
        return Message(role="tool", content=content, tool_call_id=item.call_id or item.id)
    if kind == "tool_search_output":
        names = json.dumps([tool.name for _, tool in _named(item.tools or ())], ensure_ascii=False)
        return Message(role="tool", content=f"Tools: {names}", tool_call_id=item.call_id)
    if kind == "reasoning":
        parts = item.content if item.content and isinstance(item.content, list) else item.summary
        thought = "\n".join(part.text or "" for part in parts or ())
        thought = thought or (item.encrypted_content or "").partition(KEPT)[2]
        return Message(role="assistant", reasoning_content=thought)
    advice = " Send the item itself, with store: false." if kind == "item_reference" else ""
    raise ApiError(400, f"Items of type '{kind[:40]}' are not known here.{advice}", param="input")


def _is_thought(message: Message) -> bool:
    return message.content is None and not message.tool_calls


async def responses(service: Service, wanted: ResponsesRequest) -> NamedEvents:
    return ResponseReply(await begin(service, await asyncio.to_thread(wanted.as_chat)), wanted)


async def input_tokens(service: Service, wanted: ResponsesRequest) -> Any:
    return await chat.input_tokens(service, await asyncio.to_thread(wanted.as_chat))


class ResponseReply(NamedEvents):
    def __init__(self, answers: Answers, wanted: ResponsesRequest) -> None:
        super().__init__(answers, streamed=wanted.stream)
        self._numbers = itertools.count()
        self._done: list[dict[str, Any]] = []
        self._item: dict[str, Any] = {}  # the open one
        self._logprobs: list[dict[str, Any]] = []  # of text that is not sent yet
        self._said = ""  # of a call so far
        self._namespaces = {tool.name: space for space, tool in wanted.functions()}
        self._keeps = _THOUGHTS in (wanted.include or ())
        self._searches = any(tool.searches for tool in wanted.tools or ())
        empty = {"description": None, "parameters": None, "strict": False}
        sampling = self.answer.ask.sampling
        self._head = {
            **_DEFAULTS,
            **wanted.model_dump(include=_ECHOED, exclude_none=True),
            "id": f"resp_{secrets.token_hex(12)}",
            "created_at": int(time.time()),
            "model": answers.model,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "text": {"format": {"type": "text"}, **(wanted.text or {})},
            "tools": [
                {**(empty if tool.type == "function" else {}), **tool.model_dump(exclude_none=True)}
                for tool in wanted.tools or ()
            ],
        }

    def begin(self) -> Iterable[Event]:
        for kind in ("response.created", "response.in_progress"):
            yield self._event(kind, response=self._response(status="in_progress"))

    def events_of(self, part: AnswerPart) -> Iterable[Event]:
        piece, found = part.piece, chat_logprobs(part.logprobs, self.engine)
        if piece is None:
            self._logprobs += found
            return
        call = part.answer.calls[-1] if part.answer.calls else None
        kind = "custom_tool_call" if call and call.custom else "function_call"
        if call and self._searches and call.name == "tool_search":
            kind = "tool_search_call"
        if isinstance(piece, Text | Thought):
            kind = "message" if isinstance(piece, Text) else "reasoning"
        if kind != self._item.get("type") or isinstance(piece, CallBegins):
            if self._item:  # they are of marks behind its text
                self._logprobs = []
            yield from self._close()
            yield from self._open(kind)
        logprobs, self._logprobs = [*self._logprobs, *found], []
        if isinstance(piece, CallArguments):
            _, said, event = _CALLS[kind]
            self._said += piece.text
            if event:
                self._item[said] = self._said
                yield self._item_event(f"response.{event}.delta", delta=piece.text)
        elif isinstance(piece, Text | Thought):
            (content,) = self._item["content"]
            content["text"] += piece.text
            more: dict[str, Any] = {}
            if isinstance(piece, Text):
                content["logprobs"] += logprobs
                more = {"logprobs": logprobs}
            yield self._part_event(f"response.{content['type']}.delta", delta=piece.text, **more)

    def end(self) -> Iterable[Event]:
        cut = self.answer.stream.finish_reason == "length"
        yield from self._close("incomplete" if cut else "completed")
        response = self._response()
        yield self._event(f"response.{response['status']}", response=response)

    def failed(self, error: ApiError) -> Event:
        why = {"code": "server_error", "message": error.message}
        response = {**self._response(status="failed"), "error": why}
        return self._event("response.failed", response=response)

    def whole(self) -> Any:
        return self._response()

    def _open(self, kind: str) -> Iterable[Event]:
        item: dict[str, Any] = {"type": kind, "status": "in_progress"}
        part: dict[str, Any] | None = None
        if kind in _CALLS:
            call, (prefix, said, _) = self.answer.calls[-1], _CALLS[kind]
            item |= {"id": f"{prefix}_{secrets.token_hex(12)}", "call_id": call.id}
            space = self._namespaces.get(call.name)
            item |= {"namespace": space} if space else {}
            item |= {"name": call.name.removeprefix(f"{space}__"), said: ""}
            if kind == "tool_search_call":
                item |= {"execution": "client", said: {}}
            self._said = ""
        elif kind == "reasoning":
            item |= {"id": f"rs_{secrets.token_hex(12)}", "summary": [], "content": []}
            part = {"type": "reasoning_text", "text": ""}
        else:
            item |= {"id": f"msg_{secrets.token_hex(12)}", "role": "assistant", "content": []}
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        self._item = item
        yield self._event("response.output_item.added", output_index=len(self._done), item=item)
        if part is not None:
            item["content"] = [part]
            yield self._part_event("response.content_part.added", part=part)

    def _close(self, status: str = "completed") -> Iterable[Event]:
        item = self._item
        if not item:
            return
        if item["type"] in _CALLS:
            _, said, event = _CALLS[item["type"]]
            empty = "{}" if said == "arguments" and status == "completed" else ""
            item[said] = self._said or empty
            if event:
                done = {said: item[said], "name": item["name"]}
                yield self._item_event(f"response.{event}.done", **done)
            else:
                item[said] = Call(item.pop("name"), arguments=self._said).as_object()
        else:
            (part,) = item["content"]
            more: dict[str, Any] = {}
            if item["type"] == "message":
                part["logprobs"] += self._logprobs
                more = {"logprobs": part["logprobs"]}
            elif self._keeps:
                item["encrypted_content"] = KEPT + part["text"]
            yield self._part_event(f"response.{part['type']}.done", text=part["text"], **more)
            yield self._part_event("response.content_part.done", part=part)
        item["status"] = status
        yield self._event("response.output_item.done", output_index=len(self._done), item=item)
        self._done.append(item)
        self._item = {}

    def _item_event(self, kind: str, **members: Any) -> Event:
        return self._event(kind, item_id=self._item["id"], output_index=len(self._done), **members)

    def _part_event(self, kind: str, **members: Any) -> Event:
        return self._item_event(kind, content_index=0, **members)

    def _event(self, kind: str, **members: Any) -> Event:
        return {"type": kind, "sequence_number": next(self._numbers), **members}

    def _response(self, status: str | None = None) -> dict[str, Any]:
        stats = self.answer.stream.stats
        cut = status is None and self.answer.stream.finish_reason == "length"
        usage = {
            "input_tokens": stats.prompt_tokens,
            "input_tokens_details": {"cached_tokens": stats.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": stats.generated_tokens,
            "output_tokens_details": {"reasoning_tokens": self.thought_tokens(self.answer)},
            "total_tokens": stats.prompt_tokens + stats.generated_tokens,
        }
        return {
            **self._head,
            "status": status or ("incomplete" if cut else "completed"),
            "completed_at": None if status or cut else int(time.time()),
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": list(self._done),
            "usage": usage if status is None else None,
        }

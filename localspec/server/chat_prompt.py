"""From messages and tools to a prompt, and to the reader of its answer, for every chat protocol."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from localspec import Engine
from localspec.llama import pictures
from localspec.prompting.content import mark_text
from localspec.prompting.detokenizer import ANALYSIS, CHANNEL
from localspec.prompting.pieces import Reader
from localspec.prompting.prompt import Tokens
from localspec.prompting.reasoning import ends_thinking, reasoning_reader, reasons
from localspec.prompting.roles import joined
from localspec.prompting.template import check_messages
from localspec.server.answers import StreamRequest
from localspec.server.failures import ApiError
from localspec.server.tool_readers import CONTROL
from localspec.server.tools import ToolChoice, explained, reader_for, schema_of_calls

_SILENT = {"enable_thinking": False, "thinking": False, "thinking_budget": 0}
_RESPONSE = r'\s*\{\s*"response"\s*:\s*"'
"""What an answer by `schema_of_calls` begins with, where it is no call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """A conversation whose next message is wanted; `ask` has all but the prompt. `begins`: whether
    the prompt ends where an answer begins, None leaves it to the template; `goes_on`: whether it
    ends with the last message, None: with one of the assistant; `apart`: whether thoughts are told
    apart from the text."""

    messages: Sequence[Mapping[str, Any]]
    ask: StreamRequest = field(default_factory=StreamRequest)
    tools: ToolChoice = field(default_factory=ToolChoice)
    variables: Mapping[str, Any] = field(default_factory=dict)
    begins: bool | None = None
    goes_on: bool | None = None
    apart: bool = True

    @property
    def schema(self) -> Any:
        """What the answer has to be, where it is no call."""
        return self.ask.options.get("json_schema")


def marked_chat(engine: Engine, chat: Chat) -> tuple[Chat, Mapping[str, bytes]]:
    """The same with marks in place of images, and with the tools in the system message where the
    template has no place for them. And the images by their marks."""
    messages, images = pictures.mark_images(chat.messages)
    if chat.tools.tools and not engine.prompts.knows_tools:
        system = {"role": "system", "content": explained(chat.tools, chat.schema)}
        if messages[0]["role"] == "system":
            first, *messages = messages
            system = {**first, "content": f"{first['content']}\n\n{system['content']}"}
        messages = [system, *messages]
    return replace(chat, messages=messages), images


def chat_text(engine: Engine, chat: Chat) -> str:
    """The prompt for a conversation without images as marked text, see `ChatTemplate.render`. A
    last message of the assistant is the beginning of its answer, as for llama.cpp and Anthropic. An
    ApiError if it is to end in two ways, or the last message cannot be continued; a UsageError if
    there is no template, or it refuses the messages."""
    messages, prompts, more = chat.messages, engine.prompts, dict(chat.variables)
    check_messages(messages)
    tools = [tool.as_openai() for tool in chat.tools.tools] if prompts.knows_tools else None
    last, goes_on = messages[-1], chat.goes_on
    begun = last["role"] == "assistant" and not last.get("tool_calls")
    if goes_on is None:
        goes_on = chat.begins is None and begun
        while goes_on and [one["role"] for one in messages[-2:]] == ["assistant"] * 2:
            *before, first, last = messages  # as agents send it
            content = joined(first.get("content") or "", last["content"])
            messages = [*before, last := {**first, **last, "content": content}]
            goes_on = not last.get("tool_calls")
    if not goes_on:
        if chat.begins is not None:
            more["add_generation_prompt"] = chat.begins
        return prompts.text(messages, tools=tools, more=more)
    if chat.begins:
        raise ApiError(400, "add_generation_prompt and continue_final_message exclude each other.")
    if not begun:
        raise ApiError(400, "Only a text of the assistant can be continued.")
    if len(messages) == 1:
        raise ApiError(400, "There is nothing before the assistant's message. Ask something.")
    text = prompts.text(messages[:-1], tools=tools, more=more)
    return text + _begun(text, last, *prompts.begun_marks)


async def ask_of(engine: Engine, chat: Chat) -> StreamRequest:
    """What a conversation asks of the engine; raises what `chat_text` does."""
    ask, tools, knows = chat.ask, chat.tools, engine.prompts.knows_tools
    formed = chat.schema is not None
    constrained = formed or any(ask.options.get(one) for one in ("grammar", "regex"))
    if constrained and tools.must:
        raise ApiError(400, "An output format and a required call of a tool exclude each other.")
    if constrained and not formed and not knows:
        tools = ToolChoice()  # a grammar leaves no room for a call in our words
    chat, images = marked_chat(engine, replace(chat, tools=tools))

    model, last = engine.model, chat.messages[-1]
    source = (model.tool_template if tools.tools else model.chat_template) or ""
    guided = bool(tools.tools) and (tools.must or formed or not knows)
    opens, _, final = engine.prompts.begun_marks
    # Where it was asked to think, it begins so: nothing but the answer may come otherwise.
    asked = (guided or constrained) and chat.variables.get("thinking") is True and reasons(source)
    asked = asked and not final and chat.begins is not False and last["role"] != "assistant"

    def tokens() -> tuple[str, Tokens]:
        text = chat_text(engine, chat)
        if asked and not ends_thinking(text, last):  # and where the template knows of it
            silent = replace(chat, variables={**chat.variables, **_SILENT})
            text += opens if text != chat_text(engine, silent) else ""
        return text, engine.prompts.rendered(text, images, CONTROL if tools.tools else ())

    text, prompt = await asyncio.to_thread(tokens)
    if tools.must:
        ask = ask.having(stop=())  # they are for text, and there is none
    elif guided and not formed:  # they are for the response, within JSON
        stops = ask.options.get("stop") or ()
        stops = tuple(json.dumps(one, ensure_ascii=False)[1:-1] for one in stops)
        ask = ask.having(stop=stops, stop_after=_RESPONSE)
    if guided:
        schema = await asyncio.to_thread(schema_of_calls, tools, chat.schema)
        ask = ask.having(json_schema=schema)
    thinking = ends_thinking(text, last)
    thinks = thinking if reasons(source) and (thinking or not (guided or constrained)) else None
    begun = bool(final) and str.rfind(text, opens) > str.rfind(text, "<|end|>")

    def reader() -> Reader:
        inner = reader_for(tools, text, guided=guided, formed=formed)
        if (guided and thinks is None) or not chat.apart:
            return inner
        calls = CONTROL if tools.tools else ()
        found = reasoning_reader(source, inner, thinks=thinks, calls=calls)
        if begun:
            found.push(ANALYSIS)
        return found

    ask = ask.having(thinks=thinks)
    return replace(ask, prompt=prompt, messages=chat.messages, reader=reader)


def _begun(text: str, last: Mapping[str, Any], opens: str, between: str, final: str) -> str:
    """The beginning of an answer after its prompt: its thoughts, then its text."""
    thought = mark_text(str(last.get("reasoning_content") or ""), answer=True)
    said = mark_text(str(last.get("content") or ""), answer=True)
    mark = opens.rstrip()
    opened = text.rstrip().endswith(mark)
    if not thought and said.lstrip().startswith((mark, CHANNEL)):  # it brings its thoughts along
        return said.lstrip().removeprefix(mark).lstrip("\n") if opened else said
    told = final + said if said else ""
    if thought:
        return ("" if opened else opens) + thought + (between + told if said else "")
    return between + told if opened and said else told

"""From messages and tools to a prompt, and to the reader of its answer, for every chat protocol."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from localspec import Engine
from localspec.llama.pictures import marked
from localspec.prompting.prompt import Tokens
from localspec.server.answers import Ask
from localspec.server.failures import ApiError
from localspec.server.pieces import OPENS, Reader, Thinking
from localspec.server.prompts import ends_thinking, prompt_text
from localspec.server.tools import ToolChoice, explained, reader_for, schema_of_calls


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """A conversation whose next message is wanted. `ask` has all but the prompt; for `messages` see
    `localspec.llama.pictures.marked`, for `begins` and `goes_on` `prompt_text`."""

    messages: Sequence[Mapping[str, Any]]
    ask: Ask = field(default_factory=Ask)
    tools: ToolChoice = field(default_factory=ToolChoice)
    variables: Mapping[str, Any] = field(default_factory=dict)
    begins: bool | None = None
    goes_on: bool | None = None


def with_tools(engine: Engine, chat: Chat) -> Chat:
    """The same with the tools in the system message, where the template has no place for them."""
    if not chat.tools.tools or engine.prompts.knows_tools:
        return chat
    system, rest = {"role": "system", "content": explained(chat.tools)}, [*chat.messages]
    if rest[0]["role"] == "system":
        first = rest.pop(0)
        system = {**first, "content": f"{first['content']}\n\n{system['content']}"}
    return replace(chat, messages=[system, *rest])


def chat_text(engine: Engine, chat: Chat) -> str:
    """The prompt for a conversation without images, see `prompt_text`."""
    knows = engine.prompts.knows_tools
    return prompt_text(
        engine,
        chat.messages,
        tools=[tool.as_openai() for tool in chat.tools.tools] if knows else None,
        more=chat.variables,
        begins=chat.begins,
        goes_on=chat.goes_on,
    )


async def ask_of(engine: Engine, chat: Chat) -> Ask:
    """What a conversation asks of the engine.

    Raises:
        ApiError, UsageError: there is no template, or it refuses the messages.
    """
    ask, tools = chat.ask, chat.tools
    constrained = not ask.grammar is ask.json_schema is ask.regex is None
    if constrained and tools.tools:
        if tools.must:
            raise ApiError(
                400, "An output format and a required call of a tool exclude each other."
            )
        tools = ToolChoice()  # the format leaves no room for a call
    messages, images = marked(chat.messages)
    chat = with_tools(engine, replace(chat, messages=messages, tools=tools))

    def tokens() -> tuple[str, Tokens]:
        text = chat_text(engine, chat)
        return text, engine.prompts.rendered(text, images)

    text, prompt = await asyncio.to_thread(tokens)
    knows, model = engine.prompts.knows_tools, engine.model
    source = (model.tool_template if tools.tools else model.chat_template) or ""
    if tools.tools and (tools.must or not knows):
        schema = await asyncio.to_thread(schema_of_calls, tools)
        ask, constrained = replace(ask, json_schema=json.dumps(schema)), True
    thinking = ends_thinking(text, chat.messages[-1])
    thinks = OPENS in source and (thinking or not constrained)

    def reader() -> Reader:
        inner = reader_for(tools, source if knows else None)
        return Thinking(inner, open=thinking) if thinks else inner

    return replace(
        ask,
        prompt=prompt,
        messages=chat.messages,
        reader=reader,
        thinks=thinking if thinks else None,
    )

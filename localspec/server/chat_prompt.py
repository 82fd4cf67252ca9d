"""Builds a prompt and the reader of its answer from messages and tools, for all chat protocols."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from localspec import Engine
from localspec.llama import pictures
from localspec.prompting.continuation import begun_text, is_answer_text, merge_answers
from localspec.prompting.detokenizer import ANALYSIS
from localspec.prompting.reasoning import Reader, ends_thinking, reasoning_reader, reasons
from localspec.prompting.template import check_messages
from localspec.server.answers import StreamRequest
from localspec.server.call_formats import CONTROL
from localspec.server.failures import ApiError
from localspec.server.tool_readers import RESPONSE
from localspec.server.tools import (
    ArgumentReader,
    ToolChoice,
    call_format,
    describe_tools,
    reader_for,
)

_SILENT = {"enable_thinking": False, "thinking": False, "thinking_budget": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """A conversation to be answered; `ask` has all fields except the prompt.

    `begins`: whether to add a generation prompt (None: the template decides). `continues`: whether
    to continue the last message (None: if it is the assistant's), or in which part of it,
    "reasoning_content" or "content". `splits_thoughts`: whether thoughts are separated from the
    text."""

    messages: Sequence[Mapping[str, Any]]
    ask: StreamRequest = field(default_factory=StreamRequest)
    tools: ToolChoice = field(default_factory=ToolChoice)
    variables: Mapping[str, Any] = field(default_factory=dict)
    begins: bool | None = None
    continues: bool | str | None = None
    splits_thoughts: bool = True

    @property
    def schema(self) -> Any:
        """The JSON schema of answers that are not calls; None if a call is required."""
        return None if self.tools.must else self.ask.options.get("json_schema")


def mark_chat(engine: Engine, chat: Chat) -> tuple[Chat, Mapping[str, bytes]]:
    """Replace images by marks, and describe the tools in the system message if the template lacks
    support. Returns the chat, and the images by mark."""
    messages, images = pictures.mark_images(chat.messages)
    if chat.tools.tools and not engine.prompts.knows_tools:
        system = {"role": "system", "content": describe_tools(chat.tools, chat.schema)}
        if messages[0]["role"] == "system":
            first, *messages = messages
            system = {**first, "content": f"{first['content']}\n\n{system['content']}"}
        messages = [system, *messages]
    return replace(chat, messages=messages), images


def chat_text(engine: Engine, chat: Chat) -> str:
    """Render a conversation without images as marked text, see `ChatTemplate.render`. The answer
    continues a last message of the assistant, as in llama.cpp and Anthropic's API. Raises ApiError
    for conflicting options, or a last message that cannot be continued, and UsageError if there is
    no template, or it refuses the messages."""
    messages, prompts, more = chat.messages, engine.prompts, dict(chat.variables)
    check_messages(messages)
    tools = [tool.as_openai() for tool in chat.tools.tools] if prompts.knows_tools else None
    continues, begun = chat.continues, is_answer_text(messages[-1])
    if continues is None and chat.begins is None:
        messages, continues = merge_answers(messages)
    if not continues:
        if chat.begins is not None:
            more["add_generation_prompt"] = chat.begins
        return prompts.text(messages, tools=tools, more=more)
    if chat.begins:
        raise ApiError(400, "add_generation_prompt and continue_final_message cannot be combined.")
    if not begun:
        raise ApiError(400, "Only a text by the assistant can be continued.")
    if len(messages) == 1:
        raise ApiError(400, "There is nothing before the assistant's message. Ask something.")
    last = {**messages[-1], "content": ""} if continues == "reasoning_content" else messages[-1]
    text, marks = prompts.text(messages[:-1], tools=tools, more=more), prompts.thought_marks
    return begun_text(text, last, marks, prompts.begun_marks, closed=continues == "content")


def request_of(engine: Engine, chat: Chat) -> StreamRequest:
    """Build the engine's request, which may take seconds; errors are those of `chat_text`."""
    ask, tools, knows = chat.ask, chat.tools, engine.prompts.knows_tools
    formed = chat.schema is not None
    constrained = formed or any(ask.options.get(one) for one in ("grammar", "regex"))
    if constrained and tools.must:
        raise ApiError(400, "A grammar and a required tool call cannot be combined.")
    if constrained and not formed and not knows:
        tools = ToolChoice()  # a grammar excludes calls in localspec's JSON format
    chat, images = mark_chat(engine, replace(chat, tools=tools))

    model, last = engine.model, chat.messages[-1]
    source = (model.tool_template if tools.tools else model.chat_template) or ""
    guided = bool(tools.tools) and (tools.must or formed or not knows)
    opens, between, final = engine.prompts.begun_marks
    # A grammar or schema would not allow a thought, so a requested one is opened in the prompt.
    asked = (guided or constrained) and chat.variables.get("thinking") is True and reasons(source)
    asked = asked and not final and chat.begins is not False and last["role"] != "assistant"

    text = chat_text(engine, chat)
    if asked and not ends_thinking(text, last):  # only if the template has a switch
        silent = replace(chat, variables={**chat.variables, **_SILENT})
        text += opens if text != chat_text(engine, silent) else ""
    calls = CONTROL if tools.tools else ()
    prompt = engine.prompts.rendered(text, images, calls)
    if tools.must:
        ask = ask.with_options(stop=())  # stop strings apply to text, and a required call has none
    elif guided and not formed:  # stop strings apply to the response, which is escaped in JSON
        stops = ask.options.get("stop") or ()
        stops = tuple(json.dumps(one, ensure_ascii=False)[1:-1] for one in stops)
        ask = ask.with_options(stop=stops, stop_after=RESPONSE)
    if guided:
        ask = ask.with_options(**call_format(tools, chat.schema))
    thinking = ends_thinking(text, last)
    thinks = thinking if reasons(source) and (thinking or not (guided or constrained)) else None
    begun = bool(final) and str.rfind(text, opens) > str.rfind(text, between)

    def reader() -> Reader:
        inner = reader_for(tools, text, guided=guided, formed=formed)
        if (guided and thinks is None) or not chat.splits_thoughts:
            return ArgumentReader(inner, tools.tools)
        names = [tool.name for tool in tools.tools]
        found = reasoning_reader(source, inner, thinks=thinks, calls=calls, names=names)
        if begun:
            found.push(ANALYSIS)
        return ArgumentReader(found, tools.tools)

    reader()  # compiles patterns of the tools' names, which are cached
    ask = ask.with_options(thinks=thinks)
    return replace(ask, prompt=prompt, messages=chat.messages, reader=reader)

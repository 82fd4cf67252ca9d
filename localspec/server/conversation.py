"""From messages and tools, however they came in, to what the engine is asked and how its answer is
read. Every chat protocol goes through here."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from localspec import Chunk, Engine
from localspec.decoding.logprobs import TokenLogprob
from localspec.llama.pictures import marked
from localspec.prompting.prompt import Tokens
from localspec.server.answer import Answers, Ask
from localspec.server.pieces import (
    OPENS,
    CallArguments,
    CallBegins,
    Piece,
    Reader,
    Text,
    Thinking,
    Thought,
)
from localspec.server.prompts import ends_thinking, prompt_text
from localspec.server.reading import Reading
from localspec.server.tools import ToolChoice, explained, reader_for, schema_of_calls


@dataclass(frozen=True, slots=True)
class Turn:
    """An answer that is wanted in a conversation.

    Attributes:
        ask: what the engine is asked; the prompt is in it.
        tools: that may be called.
        forced: whether a grammar allows calls alone.
        template: source of the model's template, where that was told of the tools.
        thinks: whether the model may think first; `thinking` whether the prompt begins with that.
    """

    ask: Ask
    tools: ToolChoice = field(default_factory=ToolChoice)
    forced: bool = False
    template: str | None = None
    thinks: bool = False
    thinking: bool = False

    def reader(self) -> Reader:
        """What reads one answer."""
        reader = reader_for(self.tools, self.template, forced=self.forced)
        return Thinking(reader, open=self.thinking) if self.thinks else reader


async def turn_of(
    engine: Engine,
    messages: Sequence[Mapping[str, Any]],
    ask: Ask,
    tools: ToolChoice,
    *,
    more: Mapping[str, Any] | None = None,
    begins: bool | None = None,
    goes_on: bool | None = None,
) -> Turn:
    """The turn that messages lead to.

    Args:
        ask: all but the prompt.
        more: other variables for the template.
        begins, goes_on: see `prompt_text`.

    Raises:
        ApiError, UsageError: there is no template, or it refuses the messages.
    """
    messages, images = marked(messages)
    knows = engine.prompts.knows_tools
    model = engine.model
    source = (model.tool_template if tools.tools else model.chat_template) or ""
    forced = bool(tools.tools) and tools.must
    if tools.tools and not knows:
        messages = with_system(messages, explained(tools))
    described = [tool.as_openai() for tool in tools.tools] if knows else None

    def tokens() -> tuple[str, Tokens]:
        text = prompt_text(
            engine, messages, tools=described, more=more, begins=begins, goes_on=goes_on
        )
        return text, engine.prompts.rendered(text, images)

    text, prompt = await asyncio.to_thread(tokens)
    ask = replace(ask, prompt=prompt, messages=messages)
    constrained = not ask.grammar is ask.json_schema is ask.regex is None
    if tools.tools and (forced or not knows) and not constrained:
        schema = await asyncio.to_thread(schema_of_calls, tools)
        ask, constrained = replace(ask, json_schema=json.dumps(schema)), True
    thinking = ends_thinking(text, messages[-1])
    thinks = OPENS in source and (thinking or not constrained)
    return Turn(
        replace(ask, thinks=thinking if thinks else None),
        tools,
        forced=forced,
        template=source if knows else None,
        thinks=thinks,
        thinking=thinking,
    )


def with_system(messages: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """The messages with a text at the end of the system message."""
    if messages and messages[0]["role"] == "system":
        first = messages[0]
        return [{**first, "content": f"{first['content']}\n\n{text}"}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


@dataclass(frozen=True, slots=True)
class AnswerSaid:
    """Some of one answer.

    Attributes:
        number: of the answer, among several.
        pieces: of it.
        told: log-probabilities of the tokens, where they are asked for.
        complete: whether this is all of it.
        reading: how far its prompt is read, where that is told.
        chunk: that it comes from; None where none of the engine's does.
    """

    number: int
    pieces: Sequence[Piece]
    told: Sequence[TokenLogprob]
    complete: bool
    reading: Reading | None = None
    chunk: Chunk | None = None


async def said(answers: Answers, readers: Sequence[Reader]) -> AsyncGenerator[AnswerSaid, None]:
    """What the answers say, in pieces, as they come."""
    async for number, chunk in answers.chunks():
        reader = readers[number]
        if chunk is None:
            yield AnswerSaid(number, reader.finish(), (), complete=True)
            continue
        if isinstance(chunk, Reading):
            yield AnswerSaid(number, (), (), complete=False, reading=chunk)
            continue
        told = chunk.step.logprobs if chunk.step is not None else ()
        pieces = joined(reader.push(chunk.text))
        yield AnswerSaid(number, pieces, told, complete=False, chunk=chunk)


def joined(pieces: Sequence[Piece]) -> list[Piece]:
    """The same with neighbours of a kind in one: arguments come character by character."""
    found: list[Piece] = []
    for piece in pieces:
        last = found[-1] if found else None
        if isinstance(piece, CallArguments) and isinstance(last, CallArguments):
            found[-1] = CallArguments(last.text + piece.text)
        elif isinstance(piece, Text) and isinstance(last, Text):
            found[-1] = Text(last.text + piece.text)
        else:
            found.append(piece)
    return found


@dataclass(slots=True)
class Call:
    """A call of a tool."""

    name: str
    arguments: str = ""
    id: str = field(default_factory=lambda: f"call_{secrets.token_hex(12)}")

    def as_openai(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": self.arguments or "{}"}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(slots=True)
class AnswerMessage:
    """An answer so far.

    Attributes:
        text, thought: of it.
        calls: of tools.
        told: log-probabilities.
    """

    text: str = ""
    thought: str = ""
    calls: list[Call] = field(default_factory=list)
    told: list[TokenLogprob] = field(default_factory=list)

    def add(self, piece: Piece) -> None:
        """One more piece."""
        if isinstance(piece, Text):
            self.text += piece.text
        elif isinstance(piece, Thought):
            self.thought += piece.text
        elif isinstance(piece, CallBegins):
            self.calls.append(Call(piece.name))
        elif isinstance(piece, CallArguments) and self.calls:
            self.calls[-1].arguments += piece.text


class Talk:
    """One answer in a conversation, begun: for the protocols that give one to a request."""

    def __init__(self, answers: Answers, turn: Turn) -> None:
        self.answers = answers
        self.stream = answers.streams[0]
        self.message = AnswerMessage()
        self._said = said(answers, [turn.reader()])

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """What it says; `message` has all of it so far."""
        async for part in self._said:
            for piece in part.pieces:
                self.message.add(piece)
                yield piece

    async def whole(self) -> AnswerMessage:
        """All that it says."""
        async for _ in self.pieces():
            pass
        return self.message

    @property
    def reason(self) -> str:
        """Why it ended: "length", "calls", "word" for a stop string, or "stop"."""
        if self.stream.finish_reason == "length":
            return "length"
        if self.message.calls:
            return "calls"
        return "stop" if self.stream.stopped is None else "word"

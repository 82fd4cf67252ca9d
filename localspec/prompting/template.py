"""Chat templates: jinja2 source from a GGUF, rendered in a sandbox with limits."""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property, partial
from itertools import groupby
from typing import Any

import jinja2
from jinja2 import meta

from localspec.errors import UsageError
from localspec.grammars.schema_parts import map_schemas
from localspec.prompting.detokenizer import OPENS
from localspec.prompting.marked_text import mark_all, mark_text, unmark_all, unmarked
from localspec.prompting.reasoning import thought_marks
from localspec.prompting.roles import ANSWERS, ROLES, SYSTEM, RoleAdapter
from localspec.prompting.sandbox import Generation, LimitError, Sandbox, limited, render
from localspec.typed import convert

Message = Mapping[str, Any]
"""`{"role": "user", "content": "…"}`, and other fields that a template uses."""
_LONGEST_SOURCE = 1 << 20
_ANSWERED = ("content", "reasoning_content", "thinking")
_HIDDEN, _QUOTED = "\ufdd0", re.compile("(?<=`)<(?=/?think>`)")
"""Replaces the beginning of marks that an answer quotes as code: templates would take them for
marks of thoughts."""
_NOTHING = {"type": "object", "properties": {}, "required": []}
_TOOL = {"type": "function", "function": {"name": "f", "description": "", "parameters": _NOTHING}}
_HINT = "On the command line, --raw does without the template."


class ChatTemplate:
    """Turns messages into the text that a model was trained on. Raises UsageError if `source` is
    not valid jinja2."""

    def __init__(self, source: str, *, bos: str, eos: str, name: str = "the model") -> None:
        # Settings and helpers as in Hugging Face's transformers, for which templates are written.
        environment = Sandbox(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[Generation, "jinja2.ext.loopcontrols", "jinja2.ext.do"],
        )
        environment.filters["tojson"] = limited("tojson", _tojson)
        environment.filters["fromjson"] = limited("fromjson", json.loads)  # llama.cpp's
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(unmarked(form))
        self.source = source
        self._name = name
        self._special = {"bos_token": bos, "eos_token": eos}
        try:
            if len(source) > _LONGEST_SOURCE:
                raise ValueError(f"it has {len(source):,} characters")
            self._template = environment.from_string(source)
            names = meta.find_undeclared_variables(environment.parse(source))
        except Exception as error:  # jinja2's errors, and those of Python's compiler
            raise UsageError(
                f"The chat template of {name} is broken: {_reason(error)}. Choose another file of "
                "the model, or give raw text.",
                hint=_HINT,
            ) from None
        self._knows_begin = "add_generation_prompt" in names

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> str:
        """Render the prompt up to the beginning of the answer, with marks on text that is not the
        template's (see `localspec.prompting.marked_text`). `RoleAdapter` converts messages that the
        template does not support. `tools`: functions in OpenAI's format; `more`: other variables,
        such as enable_thinking. Raises UsageError if the template refuses the messages, or exceeds
        a limit of the sandbox."""
        try:
            asked = messages = _order_results(messages)
            if all(one["role"] in SYSTEM for one in messages):
                asked = [*messages[:-1], {**messages[-1], "role": "user"}]
                messages = messages if self._answers_system else asked
            adapter = self._adapters[bool(tools)]
            fitted = adapter.fit(messages)
            try:
                text = self._render(fitted, tools, more)
            except (jinja2.TemplateError, TypeError, RecursionError) as error:
                if not tools or isinstance(error, LimitError):
                    raise
                fitted = adapter.fit(asked)
                text = self._render(fitted, map_schemas(tools, _simplify), more)
            for one in messages:
                if one["role"] not in ROLES and str(one.get("content")) not in unmarked(text):
                    _refuse(f"The role '{one['role'][:40]}' is not known")
            text = text.replace(_HIDDEN, mark_text("<")) if _HIDDEN in text else text
            begins = (more or {}).get("add_generation_prompt", True)
            return text + self._adapters[0].begin if begins and not self._knows_begin else text
        except Exception as error:  # a template may raise any exception
            verb = "refuses these messages" if isinstance(error, jinja2.TemplateError) else "fails"
            raise UsageError(
                f"The chat template of {self._name} {verb}: {_reason(error)}. Send other "
                "messages, or raw text.",
                hint=_HINT,
            ) from None

    @cached_property
    def knows_tools(self) -> bool:
        """Whether it renders descriptions of tools; some only mention them."""
        asked: list[list[Message]] = [
            [{"role": role, "content": content} for role in roles]
            for content in ("Q", [{"type": "text", "text": "Q"}])
            for roles in (["user"], ["system", "user"])
        ]
        try:
            shown = [(self._sample([_TOOL], one), self._sample(None, one)) for one in asked]
        except LimitError:
            return False  # rendering reports it
        return any(text not in ("", without) for text, without in shown)

    @cached_property
    def _answers_system(self) -> bool:
        """Whether an answer begins after a system message alone, as after a user's."""

        def end(role: str, *, begins: bool = True) -> str:
            messages = self._adapters[0].fit([{"role": role, "content": "Q"}])
            more = {"add_generation_prompt": begins}
            return str(unmarked(self._render(messages, None, more))).rpartition("Q")[2]

        begin = end("user").removeprefix(end("user", begins=False)) or end("user")
        return end("system").endswith(begin)

    @cached_property
    def _adapters(self) -> list[RoleAdapter]:
        """Adapters without and with tools, which templates put into the first question."""
        foreign, knows = thought_marks(self.source)[0] != OPENS, self.knows_tools
        samples = [partial(self._sample, tools) for tools in (None, [_TOOL])]
        return [RoleAdapter(one, foreign=foreign, knows_tools=knows) for one in samples]

    def _sample(
        self, tools: Sequence[Mapping[str, Any]] | None, messages: Sequence[Message]
    ) -> str:
        """Render messages without a generation prompt, as "" if the template refuses them."""
        try:
            found = self._render(messages, tools, {"add_generation_prompt": False})
        except LimitError:
            raise
        except Exception:
            return ""
        return str(unmarked(found))

    def _render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        more: Mapping[str, Any] | None,
    ) -> str:
        today = datetime.now()
        variables = {
            "add_generation_prompt": True,
            "tools": mark_all(list(tools)) if tools else None,
            "documents": None,
            "date_string": today.strftime("%d %b %Y"),
            "datetime": today.strftime("%b %d %Y"),
            "functions": "",  # FireFunction's wants tools as text
            **{str(name): mark_all(value) for name, value in (more or {}).items()},
            **self._special,
            "messages": [_mark_message(message) for message in messages],
        }
        try:
            return render(self._template, variables)
        except TypeError:  # templates made only for calls iterate over tools unconditionally
            if variables["tools"] is not None:
                raise
            return render(self._template, variables | {"tools": []})


def check_messages(messages: Sequence[Message]) -> None:
    """Raise a UsageError if there are no messages, or one has no role or content, or other calls
    than OpenAI's."""
    if not messages:
        raise UsageError("There are no messages. Give at least one with role 'user'.")
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise UsageError(f"Message {i} has no role. Write [{{'role': 'user', 'content': …}}].")
        content = message.get("content")
        if not isinstance(content, str | Sequence):  # arrays have no truth value
            convert(f"content of message {i}", content, str | list | None)
        try:
            called = message.get("tool_calls"), message.get("tool_call_id")
            calls, _ = json.loads(json.dumps(called))
            for call in calls or ():
                (call.get("function") or {}).get("name")
        except (AttributeError, TypeError, ValueError, RecursionError):
            raise UsageError(
                f"The tool calls of message {i} are malformed. Write 'tool_calls': "
                "[{'id': …, 'function': {'name': …, 'arguments': …}}], 'tool_call_id': …"
            ) from None
        if not (content or isinstance(content, str) or calls):
            raise UsageError(f"Message {i} has no content. Write {{'role': …, 'content': '…'}}.")


def _order_results(messages: Sequence[Message]) -> list[Message]:
    """Sort results into the order of their calls: most templates show no ids. Without ids, as in
    ollama's protocol, names tell."""
    found, calls = list[Message](), list[Any]()
    for results, run in groupby(messages, lambda one: one["role"] == "tool"):
        some = [*run]
        of = [one.get("tool_call_id") or one.get("name") for one in some]
        if results and all(one in calls for one in of):
            some = [some[i] for i in sorted(range(len(of)), key=lambda i: calls.index(of[i]))]
        given = some[-1].get("tool_calls") or ()
        calls = [one.get("id") or (one.get("function") or {}).get("name") for one in given]
        found += some
    return found


def _mark_message(message: Message) -> dict[str, Any]:
    role, content = str.__str__(message["role"]), message.get("content")
    if role in ANSWERS and type(content) is str:
        message = {**message, "content": _QUOTED.sub(_HIDDEN, content)}
    found: dict[str, Any] = {
        name: mark_all(value, answer=role in ANSWERS and name in _ANSWERED)
        for name, value in message.items()
    }
    # A template may write a role as a special token, so only known roles stay unmarked.
    return {**found, "role": role if role in ROLES else mark_text(role)}


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it calls itself too often"
    if isinstance(error, OverflowError) and "range" in str(error).lower():
        return "it counts further than 100,000"
    message = str(unmark_all(str(error))).strip().rstrip(".") or type(error).__name__
    return message if len(message) <= 300 else f"{message[:300]}…"


def _simplify(part: dict[str, Any]) -> dict[str, Any]:
    """Simplify a part of a tool's schema for limited templates: a description, and one type."""
    kinds = part.get("type") or ["string"]
    kind = next((one for one in kinds if one != "null"), "null") if [*kinds] == kinds else kinds
    more = {"additionalProperties": {"type": "string"}} if kind == "object" else {}
    return {"description": "", **more, **part, "type": kind}


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(str(unmarked(message)))


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any
) -> str:
    if ensure_ascii:
        value = unmark_all(value)
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)
    return mark_text(text) if ensure_ascii else text

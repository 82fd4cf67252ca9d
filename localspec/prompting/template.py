"""Chat templates: jinja2 source from a GGUF, rendered in jinja2's sandbox, with limits."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import meta

from localspec.errors import UsageError
from localspec.prompting.sandbox import Sandbox, rendered

Message = Mapping[str, Any]
"""`{"role": "user", "content": "…"}`, and whatever else a template knows."""


class ChatTemplate:
    """Turns messages into the text that a model was trained on.

    Args:
        source: jinja2, as in the GGUF key tokenizer.chat_template.
        bos, eos: the model's special tokens as text.

    Attributes:
        knows_tools: whether the template has a place for descriptions of tools.

    Raises:
        UsageError: the source is not valid jinja2.
    """

    def __init__(self, source: str, *, bos: str, eos: str) -> None:
        # Settings and helpers are those of Hugging Face, which the templates are written for.
        environment = Sandbox(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        self._special = {"bos_token": bos, "eos_token": eos}
        try:
            self._template = environment.from_string(source)
            self.knows_tools = "tools" in meta.find_undeclared_variables(environment.parse(source))
        except jinja2.TemplateError as error:
            raise UsageError(
                f"The model's chat template is broken: {error}. Pass --raw to do without it."
            ) from None

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt up to where the assistant's answer begins.

        Args:
            tools: descriptions of functions, as OpenAI writes them.
            more: other variables that the template knows, such as enable_thinking.

        Raises:
            UsageError: the template refuses the messages (a role it does not know, say), or does
                something that the sandbox forbids, for too long or too much of it included.
        """
        try:
            return rendered(
                self._template,
                {
                    "add_generation_prompt": True,
                    "tools": list(tools) if tools else None,
                    **(more or {}),
                    **self._special,
                    "messages": [dict(message) for message in messages],
                },
            )
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise UsageError(
                f"The model's chat template refuses these messages: {error}. "
                "Change the roles, or pass --raw to do without the template."
            ) from None


def check_messages(messages: Sequence[Message]) -> None:
    """Refuse what no template could render.

    Raises:
        UsageError: no messages, or one without a role or content.
    """
    if not messages:
        raise UsageError("There are no messages. Give at least one with role 'user'.")
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise UsageError(f"Message {i} has no role. Write {{'role': 'user', 'content': …}}.")
        if message.get("content") is None and not message.get("tool_calls"):
            raise UsageError(f"Message {i} has no content. Write {{'role': …, 'content': '…'}}.")


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(value: Any, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)

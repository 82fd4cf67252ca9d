"""The prompt for messages, also where an answer that was begun is continued."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from localspec import Engine
from localspec.prompting.content import marked
from localspec.prompting.template import check_messages
from localspec.server.failures import ApiError
from localspec.server.pieces import CLOSES, OPENS


def prompt_text(
    engine: Engine,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    more: Mapping[str, Any] | None = None,
    begins: bool | None = None,
    goes_on: bool | None = None,
) -> str:
    """The prompt for messages as marked text, see `ChatTemplate.render`.

    A last message of the assistant is the beginning of its answer, as for llama.cpp and Anthropic.

    Args:
        begins: whether the prompt ends where an answer begins; None leaves it to the template.
        goes_on: whether it ends with the last message; None: with one of the assistant.

    Raises:
        ApiError: both are wanted, or the last message cannot be continued.
        UsageError: there is no template, or it refuses the messages.
    """
    check_messages(messages)
    last = messages[-1]
    if goes_on is None:
        goes_on = begins is None and last["role"] == "assistant" and not last.get("tool_calls")
        if goes_on and len(messages) > 1 and messages[-2]["role"] == "assistant":
            raise ApiError(400, "The last two messages are the assistant's. Make them one.")
    if not goes_on:
        given = {} if begins is None else {"add_generation_prompt": begins}
        return engine.prompts.text(messages, tools=tools, more={**(more or {}), **given})
    if begins:
        raise ApiError(400, "add_generation_prompt and continue_final_message exclude each other.")
    if last["role"] != "assistant" or last.get("tool_calls"):
        raise ApiError(400, "Only a text of the assistant can be continued.")
    if len(messages) == 1:
        raise ApiError(400, "There is nothing before the assistant's message. Ask something.")
    text = engine.prompts.text(messages[:-1], tools=tools, more=more)
    return text + _begun(text, last)


def ends_thinking(text: str, last: Mapping[str, Any]) -> bool:
    """Whether a prompt whose last message is this one ends within a thought."""
    said = str(last.get("content") or last.get("reasoning_content") or "")
    begun = text[-len(said) - len(OPENS) - 2 :] if last["role"] == "assistant" else ""
    return begun.rfind(OPENS) > begun.rfind(CLOSES) or text.rstrip().endswith(OPENS)


def _begun(text: str, last: Mapping[str, Any]) -> str:
    """The beginning of an answer after its prompt: its thoughts, then its text."""
    thought = marked(str(last.get("reasoning_content") or ""), answer=True)
    said = marked(str(last.get("content") or ""), answer=True)
    opened = text.rstrip().endswith(OPENS)
    if not thought and said.lstrip().startswith(OPENS):  # it brings its thoughts along
        return said.lstrip().removeprefix(OPENS).lstrip("\n") if opened else said
    if thought:
        thought = thought if opened else f"{OPENS}\n" + thought
        return thought + f"\n{CLOSES}\n\n" + said if said else thought
    return f"\n{CLOSES}\n\n" + said if opened and said else said

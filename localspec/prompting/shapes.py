"""Shapes of conversations, which decide how they are adapted to a template."""

from collections.abc import Mapping
from typing import Any

from localspec.prompting.call_format import Messages, is_result

_LONGEST_REPEAT = 64  # messages


def shape_of(message: Mapping[str, Any]) -> Any:
    content = message.get("content")
    calls = len(message.get("tool_calls") or ())
    return message["role"], calls, type(content).__name__ if content else None


def without_repeats(messages: Messages) -> Messages:
    """The messages without repeated sequences, such as those of an agent's calls and results."""
    kept: Messages = []
    states: list[Any] = []
    spoken = ""
    for message in messages:
        spoken = spoken if is_result(message) or message.get("tool_calls") else message["role"]
        kept.append(message)
        states.append((spoken, *map(shape_of, kept[-3:])))
        recent = states[-_LONGEST_REPEAT - 1 : -1]
        if states[-1] in recent:
            length = recent[::-1].index(states[-1]) + 1
            if set(states[-length:]) <= set(states[-2 * _LONGEST_REPEAT : -length]):
                del kept[-length:], states[-length:]
    return kept

"""The format in which a chat template accepts calls of functions, and their results."""

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

Messages = list[dict[str, Any]]
CallForm = tuple[bool, str | None, str]
"""A template's format of calls: whether arguments are an object rather than JSON, the content of a
message without one, and the ids it accepts: `ANY`, `NINE` or `NAMED`."""
ANY, NINE, NAMED = "any", "nine letters and digits, as Mistral's", "functions.NAME:0, as Kimi's"


def convert_calls(messages: Messages, form: CallForm) -> Messages:
    """Calls and their results in this format; a result without an id belongs to a call of its name,
    else to the oldest one."""
    whole, content, ids = form
    found: Messages = []
    count, waiting = 0, list[tuple[Any, Any, str]]()  # the given ids, names and ids of calls
    for message in messages:
        if message.get("tool_calls"):
            calls = []
            for call in message["tool_calls"]:
                function = dict(call.get("function") or {})
                function["arguments"] = converted_arguments(function.get("arguments"), whole=whole)
                given, name = call.get("id"), function.get("name")
                waiting.append((given, name, _id_of(given, name, count, ids)))
                named = {"type": "function", **call, "id": waiting[-1][2]}
                calls.append({**named, "function": function})
                count += 1
            message = {**message, "content": message.get("content") or content, "tool_calls": calls}
        elif is_result(message):
            given, name = message.get("tool_call_id"), message.get("name")
            meant = [one for one in waiting if (given == one[0] if given else name == one[1])]
            of_it = (meant or ([] if given else waiting))[:1]
            _, known, new = (*of_it, (given, None, _id_of(given, name, count, ids)))[0]
            waiting = [one for one in waiting if one not in of_it]
            more = {"name": name or known} if name or known else {}
            message = {**message, **more, "role": "tool", "tool_call_id": new}
        found.append(message)
    return found


def one_call_each(messages: Messages) -> Messages:
    """Several calls in a message as one after another, each before its result."""
    found: Messages = []
    waiting: Messages = []
    for message in messages:
        if is_result(message):
            name = message.get("tool_call_id")
            of_it = [one for one in waiting if one["tool_calls"][0].get("id") == name] or waiting
            if of_it:
                waiting.remove(of_it[0])
            found += [*of_it[:1], message]
            continue
        found += waiting
        waiting = []
        if not message.get("tool_calls"):
            found.append(message)
            continue
        first, *later = message["tool_calls"]
        waiting = [{**message, "tool_calls": [first]}]
        waiting += [{"role": message["role"], "content": "", "tool_calls": [one]} for one in later]
    return found + waiting


def _id_of(given: Any, name: Any, number: int, ids: str) -> str:
    """The id of a call: the given one, if the template accepts it."""
    if ids == NAMED and name:
        return f"functions.{name}:{number}"
    said = str(given or f"call_{number}")
    fits = ids != NINE or (len(said) == 9 and said.isalnum())
    return said if fits else hashlib.sha256(said.encode()).hexdigest()[:9]


def is_result(message: Mapping[str, Any]) -> bool:
    return message["role"] in ("tool", "function")


def converted_arguments(arguments: Any, *, whole: bool) -> Any:
    """Arguments of a call, as an object if `whole`, else as JSON."""
    if not whole:
        return (
            arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        )
    found = arguments
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):
            found = json.loads(arguments)
    # Clients resend invalid arguments in later turns, and templates iterate over them.
    return found if isinstance(found, Mapping) else {"arguments": found} if found else {}

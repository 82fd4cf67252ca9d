"""Adapts messages to the roles and forms that a chat template accepts.

Templates refuse roles, require alternating ones, take one call at a time, or silently leave out
what they do not know. A conversation of the same shape, with one word for each content, shows what
a template does; the changes are the first ones that lose no word.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

from localspec.prompting.content import Content, all_marked, kept, marked
from localspec.prompting.detokenizer import CHANNEL, FINAL
from localspec.prompting.reasoning import told_apart

Messages = list[dict[str, Any]]
CallForm = tuple[bool, str | None, bool]
"""How a template wants calls: arguments as an object rather than JSON, the content of a message
that has none, and ids of nine letters."""
Change = Callable[[Messages], Messages]
ANSWERS = frozenset({"assistant", "model"})
ROLES = ANSWERS | {"system", "developer", "user", "tool", "function", "ipython", "environment"}
RESULT = "Result of the call: "
_SECONDS = 2.0
_MOST_SHAPES = 256
_WORD, _OTHER, _THIRD = "Qvsx", "Zkjw", "Rxqk"
_USER = {"role": "user", "content": _OTHER}
_BETWEEN = "\n\n"
_MARKER = re.compile(r"<\|(end|return)\|>\Z")


class RoleAdapter:
    """Adapts messages to one template. `shown` renders messages without the beginning of an answer;
    its text is empty where the template refuses them. `foreign`: its thoughts are not in <think>,
    so those of earlier answers are left out."""

    def __init__(
        self, shown: Callable[[Sequence[Mapping[str, Any]]], str], *, foreign: bool
    ) -> None:
        self._shown, self._foreign = shown, foreign
        self._changes: dict[Any, tuple[Change, ...]] = {}

    def fit(self, messages: Sequence[Mapping[str, Any]]) -> Messages:
        found = [dict(message) for message in messages]
        if not self._works:
            return found  # and let it say why
        for message in found:
            content = message.get("content")
            if message["role"] == "developer":
                message["role"] = "system"
            elif message["role"] == "assistant" and isinstance(content, str):
                message["content"] = self._answer(content)
        shape = tuple(map(_shape_of, found))
        if shape not in self._changes:
            if len(self._changes) >= _MOST_SHAPES:
                self._changes.clear()
            self._changes[shape] = self._choice(found)
        return self._changed(found, self._changes[shape])

    @cached_property
    def begin(self) -> str:
        """What stands between a question and its answer, where the template writes it no sooner."""
        before = self._shown([_USER])
        text = self._shown([_USER, {"role": "assistant", "content": _WORD}])
        if not before or not text.startswith(before) or _WORD not in text[len(before) :]:
            return ""
        found = text[len(before) :].partition(_WORD)[0].rstrip(" ")  # which the answer brings
        return found if found.strip() else ""

    def _choice(self, messages: Messages) -> tuple[Change, ...]:
        words: list[str] = []
        alike = [_in_words(message, words) for message in messages]
        best: tuple[Change, ...] = ()
        most, until = -1, time.monotonic() + _SECONDS
        for changes in _CHOICES:
            text = self._shown(self._changed(alike, changes))
            count = sum(word in text for word in words)
            if count > most:
                best, most = changes, count
            if most == len(words) or time.monotonic() > until:
                break
        return best

    def _changed(self, messages: Messages, changes: Sequence[Change]) -> Messages:
        for change in changes:
            messages = change(messages)
        return self._in_parts(self._formed(messages))

    def _shows(self, *messages: Mapping[str, Any], words: Sequence[str]) -> bool:
        text = self._shown([*messages])
        return all(word in text for word in words)

    @cached_property
    def _works(self) -> bool:
        parts = {"role": "user", "content": [{"type": "text", "text": _OTHER}]}
        return self._shows(_USER, words=[_OTHER]) or self._shows(parts, words=[_OTHER])

    @cached_property
    def _wants_parts(self) -> bool:
        return not self._shows(_USER, words=[_OTHER])

    def _in_parts(self, messages: Messages) -> Messages:
        if not self._wants_parts:
            return messages
        return [
            {**message, "content": [{"type": "text", "text": message["content"]}]}
            if isinstance(message.get("content"), str)
            else message
            for message in messages
        ]

    # Answers of gpt-oss, whose template wants what it wrote into one channel, without its markers.

    @cached_property
    def _takes_channels(self) -> bool:
        answer = {"role": "assistant", "content": FINAL + _WORD}
        asked = self._in_parts([{"role": "user", "content": "?"}, answer, _USER])
        return self._shows(*asked, words=[_WORD, _OTHER])

    def _answer(self, content: str) -> str:
        if self._foreign:
            return told_apart(content)[1]
        if CHANNEL not in content or self._takes_channels:
            return content
        _, final, said = content.rpartition(FINAL)
        return _MARKER.sub("", said) if final else told_apart(content)[1]

    # Calls of functions, and what they came to.

    @cached_property
    def _call_form(self) -> CallForm | None:
        """None where the template knows no calls or no results."""
        forms = itertools.product((False, True), (True, False), ("", None))
        tried = [(whole, content, short) for short, whole, content in forms]
        for words in ([_WORD, _OTHER, _THIRD], [_WORD, _THIRD]):  # arguments may have their names
            for form in tried:
                if self._shows(*self._in_parts(_call_in(form)), words=words):
                    return form
        return None

    @cached_property
    def _wants_thinking(self) -> bool:
        """Whether thoughts before calls are `thinking`, without a content beside, as of gpt-oss."""
        assert self._call_form is not None
        asked, call, result = _call_in(self._call_form)

        def shown(name: str) -> bool:
            return self._shows(
                *self._in_parts([asked, {**call, name: "Hmm"}, result]), words=["Hmm"]
            )

        return shown("thinking") and not shown("reasoning_content")

    def _with_thought(self, message: dict[str, Any]) -> dict[str, Any]:
        thought, content = message.get("reasoning_content"), message.get("content")
        if not thought or not self._wants_thinking:
            return message
        thinking = joined(thought, content) if content else thought
        return {**message, "thinking": thinking, "content": ""}

    def _formed(self, messages: Messages) -> Messages:
        """With calls and results in the form that the template takes."""
        names: dict[Any, Any] = {}
        found: Messages = []
        for message in messages:
            if message.get("tool_calls"):
                calls = message["tool_calls"]
                names |= {call.get("id"): call.get("function", {}).get("name") for call in calls}
                if self._call_form:
                    message = _called(self._with_thought(message), self._call_form)
            elif _is_result(message) and self._call_form:
                name = message.get("name") or names.get(message.get("tool_call_id"))
                more = {} if name is None else {"name": name}
                told = {**message, **more, "role": "tool"}
                message = _with_id(told, short=self._call_form[2])
            found.append(message)
        return found


def _shape_of(message: Mapping[str, Any]) -> Any:
    content = message.get("content")
    calls = len(message.get("tool_calls") or ())
    return message["role"], calls, type(content).__name__ if content else None


def _in_words(message: Mapping[str, Any], words: list[str]) -> dict[str, Any]:
    def word() -> str:
        words.append(f"{_WORD}{len(words)}{_OTHER}")
        return words[-1]

    alike = dict(message)
    content = message.get("content")
    if content:
        text = word()
        part = {"type": "text", "text": text}
        alike["content"] = text if isinstance(content, str) else [part]
    if message.get("tool_calls"):
        alike["tool_calls"] = [
            {**call, "function": {"name": word(), "arguments": "{}"}}
            for call in message["tool_calls"]
        ]
    alike.pop("reasoning_content", None)
    return alike


# The changes.


def _calls_as_text(messages: Messages) -> Messages:
    found = [_as_text(message) if message.get("tool_calls") else message for message in messages]
    return [
        {"role": "user", "content": joined(RESULT, message.get("content") or "", between="")}
        if _is_result(message)
        else message
        for message in found
    ]


def _one_call_each(messages: Messages) -> Messages:
    found: Messages = []
    waiting: Messages = []
    for message in messages:
        if _is_result(message):
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
        if message.get("content"):
            found.append({"role": message["role"], "content": message["content"]})
        waiting = [{**message, "content": "", "tool_calls": [one]} for one in message["tool_calls"]]
    return found + waiting


def _one_system(messages: Messages) -> Messages:
    begin = list(itertools.takewhile(lambda message: message["role"] == "system", messages))
    return [
        *_merged(begin),
        *(
            {**message, "role": "user"} if message["role"] == "system" else message
            for message in messages[len(begin) :]
        ),
    ]


def _system_in_question(messages: Messages) -> Messages:
    begin, *later = _one_system(messages)
    if begin["role"] != "system":
        return [begin, *later]
    told = {**begin, "role": "user"}
    if later and later[0]["role"] == "user":
        return [*_merged([told, later[0]]), *later[1:]]
    return [told, *later]


def _in_turns(messages: Messages) -> Messages:
    found: Messages = []
    for message in _merged(messages):
        last = found[-1] if found else {"role": "system"}
        if message["role"] == "assistant" and last["role"] == "system":
            found.append({"role": "user", "content": ""})
        elif message["role"] == "user" and (_is_result(last) or last.get("tool_calls")):
            found.append({"role": "assistant", "content": ""})
        found.append(message)
    return found


_COSTS: dict[Change, int] = {
    _calls_as_text: 8,
    _one_call_each: 2,
    _one_system: 1,
    _system_in_question: 4,
    _in_turns: 3,
}
"""What each takes from a conversation, in the order in which they are done."""
_CHOICES = sorted(
    (some for count in range(len(_COSTS) + 1) for some in itertools.combinations(_COSTS, count)),
    key=lambda changes: sum(map(_COSTS.__getitem__, changes)),
)


def _is_result(message: Mapping[str, Any]) -> bool:
    return message["role"] in ("tool", "function")


def _merged(messages: Messages) -> Messages:
    found: Messages = []
    for message in messages:
        last = found[-1] if found else None
        if (
            last is not None
            and last["role"] == message["role"]
            and not _is_result(message)
            and not last.get("tool_calls")
        ):
            content = joined(last.get("content") or "", message.get("content") or "")
            found[-1] = {**last, **message, "content": content}
        else:
            found.append(message)
    return found


def _call_in(form: CallForm) -> Messages:
    call = {"name": _WORD, "arguments": {_OTHER: _OTHER}}
    calls = [{"id": "call_0123456789", "type": "function", "function": call}]
    told = {"role": "tool", "name": "f", "tool_call_id": "call_0123456789", "content": _THIRD}
    return [
        {"role": "user", "content": "?"},
        _called({"role": "assistant", "tool_calls": calls}, form),
        _with_id(told, short=form[2]),
    ]


def _called(message: dict[str, Any], form: CallForm) -> dict[str, Any]:
    whole, content, short = form
    calls = []
    for call in message["tool_calls"]:
        function = dict(call.get("function") or {})
        function["arguments"] = _arguments(function.get("arguments"), whole=whole)
        calls.append(_with_id({**call, "function": function}, short=short))
    return {**message, "content": message.get("content") or content, "tool_calls": calls}


def joined(one: Any, other: Any, between: str = _BETWEEN) -> Any:
    """Two contents, of texts or parts, as one."""
    if isinstance(one, Content) or isinstance(other, Content):
        one, other = all_marked(one), all_marked(other)
    if isinstance(one, str) and isinstance(other, str):
        return kept(between.join(filter(None, [one, other])))
    parts = [
        [{"type": "text", "text": side}] if isinstance(side, str) else list(side)
        for side in (one, other)
        if side
    ]
    return [part for side in parts for part in side]


def _as_text(message: Mapping[str, Any]) -> dict[str, Any]:
    said = []
    for call in message["tool_calls"]:
        function = dict(call.get("function") or {})
        told = {**function, "arguments": _arguments(function.get("arguments"), whole=True)}
        said.append(json.dumps(told, ensure_ascii=False))
    others = {name: value for name, value in message.items() if name != "tool_calls"}
    # What the model said may have its own <think>, what it called with is text.
    content = all_marked(message.get("content") or "", answer=message["role"] in ANSWERS)
    return {**others, "content": joined(content, marked("\n".join(said)), "\n")}


def _arguments(arguments: Any, *, whole: bool) -> Any:
    if not whole:
        return (
            arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        )
    found = arguments
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):
            found = json.loads(arguments)
    # Broken ones come back in each later turn, and templates ask for items.
    return found if isinstance(found, Mapping) else {"arguments": found} if found else {}


def _with_id(message: dict[str, Any], *, short: bool) -> dict[str, Any]:
    """With ids of nine letters and digits, which Mistral's templates insist on."""
    if not short:
        return message
    name = "tool_call_id" if "role" in message else "id"
    said = str(message.get(name) or "")
    if len(said) == 9 and said.isalnum():
        return message
    return {**message, name: hashlib.sha256(said.encode()).hexdigest()[:9]}

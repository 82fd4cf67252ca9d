"""What a chat template does not know, told in what it knows.

Templates refuse roles (`raise_exception('System role not supported')`), want them in turns, or
leave out silently what they have no place for. What one does is found out by rendering small
conversations and looking for a word in them, once for each template.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from localspec.prompting.content import Content, all_marked, kept, marked

Messages = list[dict[str, Any]]
CallForm = tuple[bool, str | None, bool]
"""How a template wants calls: arguments as an object rather than JSON, the content of a message
that has none, and ids of nine letters."""
ANSWERS = frozenset({"assistant", "model"})
ROLES = ANSWERS | {"system", "developer", "user", "tool", "function", "ipython", "environment"}
"""What models know; templates make special tokens of some."""
RESULT = "Result of the call: "
_WORD, _OTHER, _THIRD = "Qvsx", "Zkjw", "Rxqk"
_USER = {"role": "user", "content": _OTHER}
_BETWEEN = "\n\n"
_FINAL = "<|channel|>final<|message|>"
_MARKER = re.compile(r"<\|(end|return)\|>\Z")


class Fitting:
    """Tells messages as one template wants them.

    Args:
        shown: what the template makes of messages, without the beginning of an answer; empty where
            it refuses them.
    """

    def __init__(self, shown: Callable[[Sequence[Mapping[str, Any]]], str]) -> None:
        self._shown = shown

    def fit(self, messages: Sequence[Mapping[str, Any]]) -> Messages:
        """The messages, changed where the template would refuse them or leave some out."""
        found = [dict(message) for message in messages]
        if not self._works:
            return found  # and let it say why
        for step in (self._answers, self._calls, self._systems, self._turns, self._parts):
            found = step(found)
        return found

    @cached_property
    def begin(self) -> str:
        """What stands between a question and its answer, where the template writes it no sooner."""
        before = self._shown([_USER])
        text = self._shown([_USER, {"role": "assistant", "content": _WORD}])
        if not before or not text.startswith(before) or _WORD not in text[len(before) :]:
            return ""
        found = text[len(before) :].partition(_WORD)[0].rstrip(" ")  # which the answer brings
        return found if found.strip() else ""

    def _shows(self, *messages: Mapping[str, Any], words: Sequence[str] = (_WORD, _OTHER)) -> bool:
        text = self._shown([*messages])
        return all(word in text for word in words)

    @cached_property
    def _works(self) -> bool:
        parts = {"role": "user", "content": [{"type": "text", "text": _OTHER}]}
        return self._shows(_USER, words=[_OTHER]) or self._shows(parts, words=[_OTHER])

    @cached_property
    def _wants_parts(self) -> bool:
        return not self._shows(_USER, words=[_OTHER])

    def _parts(self, messages: Messages) -> Messages:
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
        answer = {"role": "assistant", "content": _FINAL + _WORD}
        return self._known({"role": "user", "content": "?"}, answer, _USER)

    def _answers(self, messages: Messages) -> Messages:
        for number, message in enumerate(messages):
            content = message.get("content")
            if message["role"] != "assistant" or not isinstance(content, str):
                continue
            if _FINAL in content and not self._takes_channels:
                final = content.rpartition(_FINAL)[2]
                messages[number] = {**message, "content": _MARKER.sub("", final)}
        return messages

    # Calls of functions, and what they came to.

    @cached_property
    def _call_form(self) -> CallForm | None:
        """None where the template knows no calls or no results."""
        forms = itertools.product((False, True), (True, False), ("", None))
        tried = [(whole, content, short) for short, whole, content in forms]
        for words in ([_WORD, _OTHER, _THIRD], [_WORD, _THIRD]):  # arguments may have their names
            for form in tried:
                if self._shows(*self._parts(self._call_in(form)), words=words):
                    return form
        return None

    def _call_in(self, form: CallForm) -> Messages:
        """A conversation with a call."""
        call = {"name": _WORD, "arguments": {_OTHER: _OTHER}}
        calls = [{"id": "call_0123456789", "type": "function", "function": call}]
        told = {"role": "tool", "name": "f", "tool_call_id": "call_0123456789", "content": _THIRD}
        return [
            {"role": "user", "content": "?"},
            self._called({"role": "assistant", "tool_calls": calls}, form),
            _with_id(told, short=form[2]),
        ]

    def _called(self, message: dict[str, Any], form: CallForm) -> dict[str, Any]:
        whole, content, short = form
        calls = []
        for call in message["tool_calls"]:
            function = dict(call.get("function") or {})
            function["arguments"] = _arguments(function.get("arguments"), whole=whole)
            calls.append(_with_id({**call, "function": function}, short=short))
        return {**message, "content": message.get("content") or content, "tool_calls": calls}

    def _calls(self, messages: Messages) -> Messages:
        form = None
        if any(message.get("tool_calls") or _is_result(message) for message in messages):
            form = self._call_form
        found: Messages = []
        names: dict[Any, Any] = {}
        for message in messages:
            if message.get("tool_calls"):
                calls = message["tool_calls"]
                names |= {call.get("id"): call.get("function", {}).get("name") for call in calls}
                message = self._called(message, form) if form else _as_text(message)
            elif _is_result(message) and form:
                name = message.get("name") or names.get(message.get("tool_call_id"))
                more = {} if name is None else {"name": name}
                message = _with_id({**message, **more, "role": "tool"}, short=form[2])
            elif _is_result(message):
                said = _joined(RESULT, message.get("content") or "", between="")
                message = {"role": "user", "content": said}
            found.append(message)
        return found

    # System prompts.

    @cached_property
    def _knows_system(self) -> bool:
        return self._known({"role": "system", "content": _WORD}, _USER)

    @cached_property
    def _knows_developer(self) -> bool:
        """Rather than what a template makes of any role."""
        some = self._shown(self._parts([{"role": "nobody", "content": _WORD}, _USER]))
        text = self._shown(self._parts([{"role": "developer", "content": _WORD}, _USER]))
        return _WORD in text and some.replace("nobody", "developer") != text

    @cached_property
    def _knows_late_system(self) -> bool:
        late = {"role": "system", "content": _WORD}
        return self._known(_USER, {"role": "assistant", "content": "!"}, late, _USER)

    @cached_property
    def _knows_two_systems(self) -> bool:
        two = [{"role": "system", "content": word} for word in (_WORD, _THIRD)]
        return self._known(*two, _USER, words=(_WORD, _THIRD, _OTHER))

    def _known(self, *messages: dict[str, Any], words: Sequence[str] = (_WORD, _OTHER)) -> bool:
        return self._shows(*self._parts([*messages]), words=words)

    def _systems(self, messages: Messages) -> Messages:
        for number, message in enumerate(messages):
            if message["role"] == "developer" and not self._knows_developer:
                messages[number] = {**message, "role": "system"}
        if all(message["role"] != "system" for message in messages):
            return messages
        first = 0
        while first < len(messages) and messages[first]["role"] == "system":
            first += 1
        begin, later = messages[:first], messages[first:]
        if len(begin) > 1 and not self._knows_two_systems:
            begin = _merged(begin)
        if any(message["role"] == "system" for message in later) and not self._knows_late_system:
            later = [
                {**message, "role": "user"} if message["role"] == "system" else message
                for message in later
            ]
        if begin and not self._knows_system:
            told = {**_merged(begin)[0], "role": "user"}
            if later and later[0]["role"] == "user":
                return [*_merged([told, later[0]]), *later[1:]]
            return [told, *later]
        return [*begin, *later]

    # Who speaks after whom.

    @cached_property
    def _takes_repeats(self) -> bool:
        answers = [{"role": "assistant", "content": word} for word in (_WORD, _THIRD)]
        users = [{"role": "user", "content": _WORD}, _USER]
        words = (_WORD, _THIRD, _OTHER)
        return self._known(*users) and self._known(_USER, *answers, _USER, words=words)

    @cached_property
    def _takes_answer_first(self) -> bool:
        return self._known({"role": "assistant", "content": _WORD}, _USER)

    @cached_property
    def _takes_system_alone(self) -> bool:
        return self._known({"role": "system", "content": _WORD}, words=[_WORD])

    def _turns(self, messages: Messages) -> Messages:
        roles = [message["role"] for message in messages]
        repeats = any(one == other != "tool" for one, other in itertools.pairwise(roles))
        if repeats and not self._takes_repeats:
            messages = _merged(messages)
        first = next((n for n, one in enumerate(messages) if one["role"] != "system"), None)
        if first is not None and messages[first]["role"] == "assistant":
            if not self._takes_answer_first:
                nothing = {"role": "user", "content": ""}
                messages = [*messages[:first], nothing, *messages[first:]]
        elif first is None and not self._takes_system_alone:
            messages = [{**message, "role": "user"} for message in messages]
        return messages


def _is_result(message: Mapping[str, Any]) -> bool:
    return message["role"] in ("tool", "function")


def _merged(messages: Messages) -> Messages:
    """Neighbours of one role as one message, unless they are calls or results."""
    found: Messages = []
    for message in messages:
        last = found[-1] if found else None
        if (
            last is not None
            and last["role"] == message["role"]
            and not _is_result(message)
            and not last.get("tool_calls")
        ):
            content = _joined(last.get("content") or "", message.get("content") or "")
            found[-1] = {**last, **message, "content": content}
        else:
            found.append(message)
    return found


def _joined(one: Any, other: Any, between: str = _BETWEEN) -> Any:
    """Two contents as one: texts, or lists of parts."""
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
    """A message with its calls as lines of its text."""
    said = []
    for call in message["tool_calls"]:
        function = dict(call.get("function") or {})
        told = {**function, "arguments": _arguments(function.get("arguments"), whole=True)}
        said.append(json.dumps(told, ensure_ascii=False))
    others = {name: value for name, value in message.items() if name != "tool_calls"}
    # What the model said may have its own <think>, what it called with is text.
    content = all_marked(message.get("content") or "", answer=message["role"] in ANSWERS)
    return {**others, "content": _joined(content, marked("\n".join(said)), "\n")}


def _arguments(arguments: Any, *, whole: bool) -> Any:
    """As an object if they are one, or else as JSON."""
    if not whole:
        return (
            arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        )
    if isinstance(arguments, str):
        try:
            parsed = json.loads(arguments)
        except (ValueError, RecursionError):
            return arguments
        return parsed if isinstance(parsed, dict) else arguments
    return arguments


def _with_id(message: dict[str, Any], *, short: bool) -> dict[str, Any]:
    """With ids of nine letters and digits, which Mistral's templates insist on."""
    if not short:
        return message
    name = "tool_call_id" if "tool_call_id" in message else "id"
    said = str(message.get(name) or "")
    if len(said) == 9 and said.isalnum():
        return message
    return {**message, name: hashlib.sha256(said.encode()).hexdigest()[:9]}

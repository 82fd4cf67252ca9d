"""Adapts messages to the roles and forms that a chat template accepts.

Templates refuse roles, require alternating ones, accept one call at a time, or silently drop
unsupported fields. To find out, a conversation of the same shape is rendered with a test word for
each content. The cheapest changes that lose no word are applied.
"""

import itertools
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from localspec.prompting.call_format import (
    ANY,
    NAMED,
    NINE,
    CallForm,
    Messages,
    convert_calls,
    converted_arguments,
    is_result,
    one_call_each,
)
from localspec.prompting.detokenizer import CHANNEL, FINAL
from localspec.prompting.marked_text import MarkedText, keep_marks, mark_all, mark_text
from localspec.prompting.reasoning import split_thoughts
from localspec.prompting.shapes import shape_of, without_repeats

Change = Callable[[Messages], Messages]
ANSWERS = frozenset({"assistant", "model"})
SYSTEM = frozenset({"system", "developer"})
ROLES = ANSWERS | SYSTEM | {"user", "tool", "function", "ipython", "environment"}
_RESULT = "Result of the call: "
_SECONDS = 2.0
_MOST_SHAPES = 256
_WORD, _OTHER, _THIRD = "Qvsx", "Zkjw", "Rxqk"
_TEST_WORD = re.compile(rf"{_WORD}\d+{_OTHER}")
_USER = {"role": "user", "content": _OTHER}
_BETWEEN = "\n\n"
_MARKER = re.compile(r"<\|(end|return)\|>\Z")


class RoleAdapter:
    """Adapts messages to one template. `render` renders messages without a generation prompt, and
    returns "" if the template refuses them. `foreign`: its thoughts are not in <think>, so those
    of earlier answers are left out. `knows_tools`: it renders descriptions of tools."""

    def __init__(
        self,
        render: Callable[[Sequence[Mapping[str, Any]]], str],
        *,
        foreign: bool,
        knows_tools: bool,
    ) -> None:
        self._render, self._foreign, self._knows_tools = render, foreign, knows_tools
        self._changes: dict[Any, tuple[Change, ...]] = {}

    def fit(self, messages: Sequence[Mapping[str, Any]]) -> Messages:
        found = [dict(message) for message in messages]
        for message in found:
            if not message.get("tool_calls"):  # templates take an empty list for a call
                message.pop("tool_calls", None)
            content = message.get("content")
            if message["role"] == "developer":
                message["role"] = "system"
            elif message["role"] == "assistant" and isinstance(content, str):
                message["content"] = self._answer(content)
        shape = tuple(map(shape_of, found))
        if shape not in self._changes:
            if len(self._changes) >= _MOST_SHAPES:
                self._changes.clear()
            self._changes[shape] = self._choose_changes(found)
        return self._apply_changes(found, self._changes[shape])

    @cached_property
    def begin(self) -> str:
        """The text between question and answer, if the template writes it only with the answer."""
        answer = {"role": "assistant", "content": _WORD}
        before, text = self._render([_USER]), self._render([_USER, answer])
        if not before or not text.startswith(before) or _WORD not in text[len(before) :]:
            return ""
        if not self._render([_USER, answer, _USER]).startswith(text):
            return ""  # the beginning of an answer is always there, as in Command R7B's
        found = text[len(before) :].partition(_WORD)[0].rstrip(" ")  # the answer has them
        return found if found.strip() else ""

    def _choose_changes(self, messages: Messages) -> tuple[Change, ...]:
        short = without_repeats(messages)
        best, rating = self._search(short, _CHOICES)
        if len(short) < len(messages) and not self._search(messages, [best])[1] == rating == 1.0:
            return self._search(messages, _CHOICES)[0]
        return best

    def _search(
        self, messages: Messages, choices: Sequence[tuple[Change, ...]]
    ) -> tuple[tuple[Change, ...], float]:
        """The first of the best choices, and its rating; 1.0 if it loses nothing."""
        words: list[str] = []
        sample = [_with_test_words(message, words) for message in messages]
        # In this order; a later system message that is moved ahead would change every prompt.
        later = itertools.dropwhile(lambda one: one["role"] == "system", sample)
        said = [one["content"] for one in later if one.get("content")]
        best, most, until = choices[0], -1.0, time.monotonic() + _SECONDS
        for changes in choices:
            fitted = self._apply_changes(sample, changes)
            text = self._render(fitted)
            at = {one[0]: one.start() for one in reversed([*_TEST_WORD.finditer(text)])}
            places = [at.get(content, -1) for content in said]
            whole = places == sorted(places) and self._tells_answer(fitted, text)
            found = (sum(word in at for word in words) + whole / 2) / (len(words) + 0.5)
            if found > most:
                best, most = changes, found
            if most == 1.0 or time.monotonic() > until:
                break
        return best, most

    def _tells_answer(self, messages: Messages, text: str) -> bool:
        """Whether a leading answer is rendered unlike a question; with tools, Llama's is not."""
        first = next((one for one in messages if one["role"] != "system"), {"role": "user"})
        asked = [{**one, "role": "user"} if one is first else one for one in messages]
        return first["role"] != "assistant" or self._render(asked) != text

    def _apply_changes(self, messages: Messages, changes: Sequence[Change]) -> Messages:
        if _calls_as_text in changes:
            messages = [self._apart(one) if is_result(one) else one for one in messages]
        for change in changes:
            messages = change(messages)
        found = self._convert_calls(messages)
        parts = self._has_thinking_parts
        return self._in_parts([_with_thinking_part(one) if parts else one for one in found])

    def _shows(self, *messages: Mapping[str, Any], words: Sequence[str]) -> bool:
        text = self._render([*messages])
        return all(word in text for word in words)

    @cached_property
    def _wants_parts(self) -> bool:
        """Whether contents must be lists of parts."""
        parts = {"role": "user", "content": [{"type": "text", "text": _OTHER}]}
        return not self._shows(_USER, words=[_OTHER]) and self._shows(parts, words=[_OTHER])

    def _in_parts(self, messages: Messages) -> Messages:
        if not self._wants_parts:
            return messages
        return [
            {**message, "content": [{"type": "text", "text": message["content"]}]}
            if isinstance(message.get("content"), str)
            else message
            for message in messages
        ]

    # Answers of gpt-oss: its template wants the text of one channel, without markers.

    @cached_property
    def _takes_channels(self) -> bool:
        answer = {"role": "assistant", "content": FINAL + _WORD}
        asked = self._in_parts([{"role": "user", "content": "?"}, answer, _USER])
        plain = self._in_parts([_USER, {"role": "assistant", "content": _WORD}])
        return CHANNEL in self._render(plain) and self._shows(*asked, words=[_WORD, _OTHER])

    def _answer(self, content: str) -> str:
        if self._foreign:
            return split_thoughts(content)[1]
        if CHANNEL not in content or self._takes_channels:
            return content
        _, final, said = content.rpartition(FINAL)
        return _MARKER.sub("", said) if final else split_thoughts(content)[1]

    # Calls of functions, and their results.

    @cached_property
    def _call_form(self) -> CallForm | None:
        """The format of calls; None if the template supports no calls or no results."""
        forms = itertools.product((ANY, NINE, NAMED), (True, False), ("", None))
        tried = [(whole, content, ids) for ids, whole, content in forms]
        for words in ([_WORD, _OTHER, _THIRD], [_WORD, _THIRD]):  # or without names of arguments
            for form in tried:
                text = self._render(self._in_parts(_sample_call(form)))
                printed = f"{{'{_OTHER}'" in text  # Python's form of an object
                if all(word in text for word in words) and not printed:
                    return (*form[:2], NAMED) if f".{_WORD}:0" in text else form
        return None

    def _apart(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """A result whose call is text."""
        if self._shows_results:
            return {**result, "role": "tool"}
        return {"role": "user", "content": joined(_RESULT, result.get("content") or "", "")}

    @cached_property
    def _shows_results(self) -> bool:
        """Whether the template knows tools and shows their results, but no calls (LFM2)."""
        said = [{"role": "assistant", "content": _WORD}, {"role": "tool", "content": _THIRD}]
        sample = self._in_parts([_USER, *said])
        known = self._knows_tools and self._call_form is None
        return known and self._shows(*sample, words=[_WORD, _THIRD])

    @cached_property
    def _thinking(self) -> tuple[bool, bool]:
        """Whether thoughts before calls are in `thinking`, and whether together with a content."""
        assert self._call_form is not None
        asked, call, result = _sample_call(self._call_form)

        def shows(*words: str, **more: str) -> bool:
            return self._shows(*self._in_parts([asked, {**call, **more}, result]), words=words)

        wanted = shows("Hmm", thinking="Hmm") and not shows("Hmm", reasoning_content="Hmm")
        return wanted, wanted and shows("Hmm", "Oh", thinking="Hmm", content="Oh")

    @cached_property
    def _has_thinking_parts(self) -> bool:
        """Whether thoughts are parts of a content, as for Mistral."""
        answer = {"role": "assistant", "content": "", "reasoning_content": _WORD}
        text = self._render([_USER, _with_thinking_part(answer)])
        return _WORD in text and not re.search("thinking['\"]:", text)  # not a printed list

    def _with_thought(self, message: dict[str, Any]) -> dict[str, Any]:
        thought, content = message.get("reasoning_content"), message.get("content")
        wanted, beside = self._thinking
        if not thought or not wanted:
            return message
        if beside:
            return {**message, "thinking": thought}
        thinking = joined(thought, content) if content else thought  # as for gpt-oss
        return {**message, "thinking": thinking, "content": ""}

    def _convert_calls(self, messages: Messages) -> Messages:
        called = any(one.get("tool_calls") or is_result(one) for one in messages)
        if not called or self._call_form is None:
            return messages
        found = [self._with_thought(one) if one.get("tool_calls") else one for one in messages]
        return convert_calls(found, self._call_form)


def _with_thinking_part(message: dict[str, Any]) -> dict[str, Any]:
    thought, content = message.get("reasoning_content"), message.get("content") or ""
    if not thought:
        return message
    others = {name: value for name, value in message.items() if name != "reasoning_content"}
    return {**others, "content": [{"type": "thinking", "thinking": thought}, *joined(content, [])]}


def _with_test_words(message: Mapping[str, Any], words: list[str]) -> dict[str, Any]:
    def word() -> str:
        words.append(f"{_WORD}{len(words)}{_OTHER}")
        return words[-1]

    sample = dict(message)
    content = message.get("content")
    if content:
        sample["content"] = word()
    if message.get("tool_calls"):
        sample["tool_calls"] = [
            {**call, "function": {"name": word(), "arguments": "{}"}}
            for call in message["tool_calls"]
        ]
    sample.pop("reasoning_content", None)
    return sample


# The changes.


def _calls_as_text(messages: Messages) -> Messages:
    return [_as_text(message) if message.get("tool_calls") else message for message in messages]


def _text_before_calls(messages: Messages) -> Messages:
    found: Messages = []
    for message in messages:
        if message.get("tool_calls") and message.get("content"):
            found.append({"role": message["role"], "content": message["content"]})
            message = {**message, "content": ""}
        found.append(message)
    return found


def _one_system(messages: Messages) -> Messages:
    begin = list(itertools.takewhile(lambda message: message["role"] == "system", messages))
    later = messages[len(begin) :]
    later = [{**one, "role": "user"} if one["role"] == "system" else one for one in later]
    return [*_merge(begin), *later]


def _system_in_question(messages: Messages) -> Messages:
    begin, *later = _one_system(messages)
    if begin["role"] != "system":
        return [begin, *later]
    return [*_merge([{**begin, "role": "user"}, *later[:1]]), *later[1:]]


def _alternate_roles(messages: Messages) -> Messages:
    found: Messages = []
    # Some templates refuse an empty answer, which a stopped one leaves.
    said = [
        m for m in messages if m["role"] != "assistant" or m.get("content") or "tool_calls" in m
    ]
    answered = False  # Mistral's counts neither calls nor results
    for message in _merge(said):
        last = found[-1] if found else {"role": "system"}
        plain = not (is_result(message) or message.get("tool_calls"))
        if message["role"] == "assistant" and (last["role"] == "system" or (answered and plain)):
            found.append({"role": "user", "content": ""})
        elif message["role"] == "user" and (is_result(last) or last.get("tool_calls")):
            found.append({"role": "assistant", "content": ""})
        found.append(message)
        answered = message["role"] == "assistant" if plain else answered
    return found


_COSTS: dict[Change, int] = {
    _calls_as_text: 8,
    _text_before_calls: 1,
    one_call_each: 2,
    _one_system: 1,
    _system_in_question: 4,
    _alternate_roles: 3,
}
"""How much each change distorts a conversation, in the order in which they are applied."""
_CHOICES = sorted(
    (some for count in range(len(_COSTS) + 1) for some in itertools.combinations(_COSTS, count)),
    key=lambda changes: sum(map(_COSTS.__getitem__, changes)),
)


def _merge(messages: Messages) -> Messages:
    found: Messages = []
    for message in messages:
        last = found[-1] if found else {"role": None}
        apart = is_result(message) or last.get("tool_calls") or message.get("tool_calls")
        if last["role"] == message["role"] and not apart:
            content = joined(last.get("content") or "", message.get("content") or "")
            found[-1] = {**last, **message, "content": content}
        else:
            found.append(message)
    return found


def _sample_call(form: CallForm) -> Messages:
    call = {"name": _WORD, "arguments": {_OTHER: _OTHER}}
    calls = [{"id": "call_0123456789", "type": "function", "function": call}]
    result = {"role": "tool", "name": "f", "tool_call_id": "call_0123456789", "content": _THIRD}
    asked, answer = {"role": "user", "content": "?"}, {"role": "assistant", "tool_calls": calls}
    return convert_calls([asked, answer, result], form)


def joined(one: Any, other: Any, between: str = _BETWEEN) -> Any:
    """Join two contents, which are texts or lists of parts."""
    if isinstance(one, MarkedText) or isinstance(other, MarkedText):
        one, other = mark_all(one), mark_all(other)
    if isinstance(one, str) and isinstance(other, str):
        return keep_marks(between.join(filter(None, [one, other])))
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
        function["arguments"] = converted_arguments(function.get("arguments"), whole=True)
        said.append(json.dumps(function, ensure_ascii=False))
    others = {name: value for name, value in message.items() if name != "tool_calls"}
    # The model's content may have <think>; the arguments of its calls are text.
    content = mark_all(message.get("content") or "", answer=message["role"] in ANSWERS)
    return {**others, "content": joined(content, mark_text("\n".join(said)), "\n")}

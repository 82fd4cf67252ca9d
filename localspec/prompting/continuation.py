"""Prompts for the rest of an answer whose beginning is the last message."""

import re
from collections.abc import Sequence

from localspec.prompting.detokenizer import CHANNEL
from localspec.prompting.marked_text import keep_marks, mark_text
from localspec.prompting.roles import joined
from localspec.prompting.template import Message


def merge_answers(messages: Sequence[Message]) -> tuple[list[Message], bool]:
    """Join the assistant's texts at the end, as agents send several in a row. Also returns whether
    the last message is such a text, which can be continued."""
    *before, last = messages
    while before and last["role"] == before[-1]["role"] == "assistant" and is_answer_text(last):
        first = before.pop()
        content = joined(first.get("content") or "", last["content"])
        last = {**first, **last, "content": content}
    return [*before, last], is_answer_text(last)


def is_answer_text(message: Message) -> bool:
    """Whether a message is a text of the assistant, which can be continued."""
    return message["role"] == "assistant" and not message.get("tool_calls")


def begun_text(
    text: str,
    last: Message,
    thought_marks: tuple[str, str],
    begun_marks: tuple[str, str, str],
    *,
    closed: bool = False,
) -> str:
    """`text`, the prompt without the last message, with its thoughts and then its text. The marks
    are those of `PromptBuilder`. `closed`: the thoughts are complete, as they always are before a
    text."""
    opens, closes = thought_marks
    if last.get("reasoning_content") or str(last.get("content")).lstrip().startswith(opens):
        # It replaces the empty thought with which some templates begin an answer.
        empty = rf"({re.escape(opens)}\s*)?{re.escape(closes)}\s*\Z"
        text = keep_marks(re.sub(empty, "", text))
    opens, between, final = begun_marks
    thought = mark_text(str(last.get("reasoning_content") or ""), answer=True)
    said = mark_text(str(last.get("content") or ""), answer=True)
    mark = opens.rstrip()
    opened = text.rstrip().endswith(mark)
    if not thought and said.lstrip().startswith((mark, CHANNEL)):  # it includes its thoughts
        return text + (said.lstrip().removeprefix(mark).lstrip("\n") if opened else said)
    closed = closed or bool(said)
    final_text = final + said if closed else ""
    if thought:
        text += ("" if opened else opens) + thought
    begun = bool(thought) or opened
    return text + (between if begun and closed else "") + final_text

"""Export of conversations to files."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec import GenerationStats
from localspec.chat.conversation import ASSISTANT, STATES, STOPPED, USER, Attachment, Conversation
from localspec.chat.figures import Meter
from localspec.errors import LocalspecError
from localspec.history.export import to_json, to_markdown, write_export
from tests.history.histories import conversation_of
from tests.support.patches import files_of_at_most


def example_conversation() -> Conversation:
    """A conversation with all that an export may show, in two branches."""
    conversation = Conversation(created=1_700_000_000.0, system="Be brief.", model="a.gguf")
    conversation.add(USER, "What is *this*?", attachments=[Attachment("a.py", "```\nx = 1\n```")])
    said: Any = {"model": "tale-13m", "draft": "tale-3m"}
    answer = conversation.add(ASSISTANT, "<think>Hm.</think>An example.", **said)
    stats = GenerationStats(generated_tokens=139, decode_seconds=0.17)  # as the chat keeps it
    engine = Mock(context_length=9, **{"profile.stock": None})
    answer.stats = Meter(stats, engine).figures().as_dict()
    question = conversation.add(USER, "Go on.")
    conversation.add(ASSISTANT, "Not shown.")
    conversation.add(ASSISTANT, "```py\nprint(", parent=question.id, state=STOPPED, **said)
    return conversation


def test_markdown() -> None:
    lines = to_markdown(example_conversation()).splitlines()
    assert lines[0] == "# What is this?"
    assert lines[2].startswith("*2023-11-1")
    assert lines[2].endswith(" · model a.gguf*")
    assert "\n".join(lines[3:]) == (
        "\n## System prompt\n\nBe brief.\n\n## You\n\nAttached: **a.py**\n\n"
        "````\n```\nx = 1\n```\n````\n\nWhat is *this*?\n\n"
        "## tale-13m\n\n> Hm.\n\nAn example.\n\n"
        "*139 tokens · 812 tok/s · draft tale-3m*"
        "\n\n## You\n\nGo on.\n\n## tale-13m\n\n"
        "```py\nprint(\n```\n\n*stopped*"  # its code block is closed
    )


texts = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=30)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(texts, st.sampled_from(STATES), st.integers(0, 5)), max_size=8), texts)
def test_any_conversation_can_be_exported(turns: list[tuple[str, str, int]], system: str) -> None:
    conversation = Conversation(system=system, sampling={"temperature": 0.5, "seed": 1})
    ids: list[str | None] = [None]
    for text, state, back in turns:
        parent = ids[max(0, len(ids) - 1 - back)]
        file = Attachment("a.py", text)
        added = conversation.add(USER, text, parent=parent, state=state, attachments=[file])
        ids.append(added.id)
    found = json.loads(to_json(conversation))
    assert (found["format"], found["version"]) == ("localspec-conversation", 1)
    assert (found["system"], found["tip"]) == (system, conversation.tip)
    assert [each["id"] for each in found["messages"]] == ids[1:]
    files = [[{"name": "a.py", "text": text}] for text, _, _ in turns]
    assert [each["attachments"] for each in found["messages"]] == files
    said = [(each["content"], each["state"]) for each in found["messages"]]
    assert said == [(text, state) for text, state, _ in turns]
    to_markdown(conversation)


def test_full_disk(tmp_path: Path) -> None:
    too_large = pytest.raises(LocalspecError, match="cannot be written: File too large")
    with files_of_at_most(1000), too_large:
        write_export(conversation_of("word " * 1000), tmp_path)
    assert list(tmp_path.iterdir()) == []

"""The tree of messages, and the messages sent to the model."""

import pytest

from localspec.chat.conversation import (
    ASSISTANT,
    BY_USER,
    FAILED,
    STOPPED,
    STREAMING,
    USER,
    Attachment,
    Conversation,
    Message,
)


def branched() -> tuple[Conversation, dict[str, str]]:
    """q1 → a1 → q2 → a2, a1 regenerated as b1, q1 edited as r1 → s1; shown is the last."""
    conversation = Conversation()
    names: dict[str, str] = {}
    for edge in ("q1", "a1 q1", "q2 a1", "a2 q2", "b1 q1", "r1", "s1 r1"):
        name, *above = edge.split()
        role, parent = ASSISTANT if name[0] in "abs" else USER, names[above[0]] if above else None
        names[name] = conversation.add(role, name, parent=parent).id
    return conversation, names


def contents(conversation: Conversation) -> list[str]:
    return [message.content for message in conversation.path()]


def test_branches_can_be_selected() -> None:
    conversation, names = branched()
    assert contents(conversation) == ["r1", "s1"]
    # Of several below the selected one, the newest is shown.
    for name, shown in (("q1", "q1 b1"), ("a1", "q1 a1 q2 a2"), ("r1", "r1 s1")):
        conversation.select(names[name])
        assert contents(conversation) == shown.split()


def test_damaged_tree_is_shown() -> None:
    above = {"a": "c", "b": "a", "c": "b", "d": "lost", "e": "e", "f": "d"}  # a → c → b → a
    messages = {
        id: Message(id, parent, USER, id, float(number))
        for number, (id, parent) in enumerate(above.items())
    }
    conversation = Conversation(tip="gone", messages=messages)
    assert contents(conversation) == ["d", "f"]
    roots, leaves = {message.id for message in conversation.children(None)}, set[str | None]()
    assert roots >= {"d", "e"}
    for root in roots:
        conversation.select(root)
        leaves.add(conversation.tip)
    assert len(leaves) == 3
    conversation.select("a")
    assert sorted(contents(conversation)) == ["a", "b", "c"]


def test_first_message_sets_the_title() -> None:
    conversation = Conversation()
    conversation.add(USER, "# What is *this*?\nMore.")
    conversation.add(USER, "Another")
    assert conversation.title == "What is this?"
    named = Conversation(title="Mine", titled_by=BY_USER)
    named.add(USER, "Something")
    assert named.title == "Mine"
    attached = Conversation()
    attached.add(USER, "", attachments=[Attachment("report.txt", "…")])
    assert attached.title == "report.txt"


def test_messages_for_the_model_follow_the_branch() -> None:
    conversation, names = branched()
    conversation.system = "Be brief."
    assert conversation.for_model() == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "r1"},
        {"role": "assistant", "content": "s1"},
    ]
    conversation.system = "  \n"
    told = conversation.for_model(upto=names["q2"])
    assert [message["content"] for message in told] == ["q1", "a1", "q2"]
    assert contents(conversation) == ["r1", "s1"]


@pytest.mark.parametrize(
    ("state", "content", "stays"),
    [
        *((FAILED, "half", False), (STOPPED, "half", True)),
        *((STOPPED, "", False), (STREAMING, "", False)),
    ],
)
def test_unfinished_answers(state: str, content: str, stays: bool) -> None:
    conversation = Conversation()
    conversation.add(USER, "one")
    conversation.add(ASSISTANT, content, state=state)
    conversation.add(USER, "two")
    told = [message["content"] for message in conversation.for_model()]
    # Without an answer between them they are one turn: many templates insist on that.
    assert told == (["one", content, "two"] if stays else ["one\n\ntwo"])


def test_attachments_come_before_the_text() -> None:
    conversation = Conversation()
    attached = [Attachment("a.md", "```py\nx\n```"), Attachment("b\n# c\x1b.txt", "end\n")]
    conversation.add(USER, "Explain.", attachments=attached)
    (told,) = conversation.for_model()
    assert told["content"] == (
        "## a.md\n\n````\n```py\nx\n```\n````\n\n## b # c .txt\n\n```\nend\n```\n\nExplain."
    )

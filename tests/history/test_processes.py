"""Several processes, and processes that die: nothing that was acknowledged is lost."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from localspec.chat.conversation import INTERRUPTED, STREAMING
from localspec.history.history import History
from tests.cli.process import line, running
from tests.history.histories import rows

pytestmark = pytest.mark.nightly

BEGIN = """
import sys
from pathlib import Path
from localspec.chat.conversation import ASSISTANT, STREAMING, USER, Conversation
from localspec.history.history import History
from localspec.history.writer import HistoryWriter
from tests.history.histories import save

def say(*words):
    print(*words, flush=True)
"""

TALK = """
# Messages of its own and in a conversation that all share, as fast as it can.
name, path, shared, count = sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
history = History(path)
own = Conversation(title=name)
common = Conversation(id=shared, title="shared")
for number in range(count):
    for conversation in (own, common):
        message = conversation.add(USER, f"{name} says {number}")
        assert save(history, conversation), history.trouble
        assert history.put(conversation.id, messages=[message]), history.trouble
    answer = own.add(ASSISTANT, "", state=STREAMING)
    for word in range(3):
        answer.content += f"word{word} "
        assert history.put(own.id, messages=[answer]), history.trouble
    answer.state = "complete"
    assert history.put(own.id, messages=[answer]), history.trouble
assert history.take_notices() == []
history.close()
say("done")
"""

CHAT = """
# A chat that answers without end, and says what it was told is safe.
history = History(Path(sys.argv[1]))
writer = HistoryWriter(lambda: history, on_trouble=lambda text: say("trouble", text))
conversation = Conversation()
turn = 0
while True:
    turn += 1
    message = conversation.add(USER, f"question {turn} " + "x" * 3000)
    assert writer.put(conversation, message).result()
    say("sent", message.id)
    answer = conversation.add(ASSISTANT, "", state=STREAMING, model="model")
    for step in range(12):
        answer.content += f"word {step} " * 50
        writer.streaming(conversation.id, answer)
        if step % 4 == 3:
            assert writer.flush()
            say("flushed", answer.id, len(answer.content))
    answer.state = "complete"
    assert writer.put(conversation, answer).result()
    say("done", answer.id)
"""


def process(program: str, *arguments: object) -> AbstractContextManager[subprocess.Popen[str]]:
    return running(*map(str, arguments), command=(sys.executable, "-c", BEGIN + program))


def test_processes_write_at_once_and_nothing_is_lost(tmp_path: Path) -> None:
    """They also make the file at the same moment."""
    path, shared, count = tmp_path / "history.db", "f" * 32, 25
    with (
        process(TALK, "ann", path, shared, count) as first,
        process(TALK, "bob", path, shared, count) as second,
        process(TALK, "cid", path, shared, count) as third,
    ):
        talkers = [first, second, third]
        assert [line(each.stdout) for each in talkers] == ["done\n"] * 3
    history = History(path)
    summaries = {each.title: each for each in history.list()}
    assert {title: each.messages for title, each in summaries.items()} == {
        "ann": 2 * count,
        "bob": 2 * count,
        "cid": 2 * count,
        "shared": 3 * count,
    }
    said = {message.content for message in history.load(shared).messages.values()}
    assert said == {f"{who} says {n}" for who in ("ann", "bob", "cid") for n in range(count)}
    for who in ("ann", "bob", "cid"):
        own = history.load(summaries[who].id)
        assert [message.content for message in own.path()] == [
            text for n in range(count) for text in (f"{who} says {n}", "word0 word1 word2 ")
        ]
        assert len(history.search(f'"{who} says"')) == 10  # five of each conversation
    assert history.take_notices() == []
    history.close()
    assert rows(path, "PRAGMA integrity_check") == [("ok",)]
    assert rows(path, "SELECT count(*) FROM words") == [(9 * count,)]


@pytest.mark.parametrize("seed", range(10))
def test_killed_at_any_moment(tmp_path: Path, seed: int) -> None:
    """Killed after so many words of it, and a moment that the seed chooses."""
    path = tmp_path / "history.db"
    dice = random.Random(seed)
    sent: list[str] = []
    done: list[str] = []
    flushed: dict[str, int] = {}
    with process(CHAT, path) as chat:
        for _ in range(dice.randrange(1, 40)):
            word, *rest = line(chat.stdout).split()
            if word == "sent":
                sent.append(rest[0])
            elif word == "done":
                done.append(rest[0])
            elif word == "flushed":
                flushed[rest[0]] = int(rest[1])
            else:
                raise AssertionError((word, rest))
        threading.Event().wait(dice.uniform(0.0, 0.02))
        chat.send_signal(signal.SIGKILL)
        chat.wait()
    history = History(path)
    assert history.take_notices() == []
    (summary,) = history.list()
    found = history.load(summary.id)
    assert set(sent) <= set(found.messages)
    for id in done:
        assert found.messages[id].state == "complete"
    for id, length in flushed.items():
        text = found.messages[id].content
        assert len(text) >= length
        assert text == "".join(f"word {step} " * 50 for step in range(12))[: len(text)]
    assert not any(message.state == STREAMING for message in found.messages.values())
    # One conversation without gaps: what was acknowledged is on the way to the tip.
    path_ids = [message.id for message in found.path()]
    assert path_ids == list(found.messages)
    unfinished = [m for m in found.messages.values() if m.state == INTERRUPTED]
    assert len(unfinished) <= 1
    for message in unfinished:
        if message.content:
            hits = history.search(f'"{message.content[:6]}"')
            assert message.id in {hit.message for hit in hits}
    history.close()
    assert rows(path, "PRAGMA integrity_check") == [("ok",)]

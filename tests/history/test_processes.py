"""Several processes write at once. One that is killed: `tests/tui/test_killing.py`."""

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from localspec.history.history import History
from localspec.history.statements import is_alive
from tests.cli.process import line, running
from tests.history.histories import rows

pytestmark = pytest.mark.nightly

PROGRAM = """
import sys
from pathlib import Path
from localspec.chat.conversation import ASSISTANT, STREAMING, USER, Conversation
from localspec.history.history import History


# Messages of its own and in a conversation that all share, as fast as it can.
name, path, shared, count = sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
history = History(path)
own = Conversation(title=name)
common = Conversation(id=shared, title="shared")
for number in range(count):
    for conversation in (own, common):
        message = conversation.add(USER, f"{name} says {number}")
        assert history.put(conversation), history.trouble
        assert history.put(conversation, [message]), history.trouble
    answer = own.add(ASSISTANT, "", state=STREAMING)
    for word in range(3):
        answer.content += f"word{word} "
        assert history.put(own, [answer]), history.trouble
    answer.state = "complete"
    assert history.put(own, [answer]), history.trouble
assert history.take_notices() == []
history.close()
print("done")
"""


def test_concurrent_processes(tmp_path: Path) -> None:
    path, shared, count = tmp_path / "history.db", "f" * 32, 25
    names = ("ann", "bob", "cid")
    with ExitStack() as stack:
        command, more = (sys.executable, "-c", PROGRAM), (str(path), shared, str(count))
        started = [running(name, *more, command=command) for name in names]
        writers = [stack.enter_context(each) for each in started]
        assert [line(each.stdout) for each in writers] == ["done\n"] * 3
    history = History(path)
    summaries = {each.title: each for each in history.list()}
    expected = dict.fromkeys(names, 2 * count) | {"shared": 3 * count}
    assert {title: each.messages for title, each in summaries.items()} == expected
    said = {message.content for message in history.load(shared).messages.values()}
    assert said == {f"{who} says {n}" for who in names for n in range(count)}
    for who in names:
        own = history.load(summaries[who].id)
        assert [message.content for message in own.path()] == [
            text for n in range(count) for text in (f"{who} says {n}", "word0 word1 word2 ")
        ]
        assert len(history.search(f'"{who} says"')) == 10  # five of each conversation
    assert history.take_notices() == []
    history.close()
    assert rows(path, "PRAGMA integrity_check") == [("ok",)]
    assert rows(path, "SELECT count(*) FROM words") == [(9 * count,)]


def test_killed_writer_that_its_parent_does_not_wait_for_is_dead() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        its = f"{child.pid}@{psutil.Process(child.pid).create_time():.2f}"
        assert is_alive(its)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not is_alive(its)

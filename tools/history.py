"""How long the history takes with 10,000 conversations, one of them with 5,000 messages.

    python -m tools.history [--quick]

Builds such a store in a temporary folder and prints medians: opening, the first page of the list,
searches, loading, a message sent, and an answer that grows to half a million characters.
"""

from __future__ import annotations

import argparse
import platform
import random
import sqlite3
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter

from localspec.chat.conversation import ASSISTANT, STREAMING, USER, Conversation
from localspec.history.history import History
from localspec.history.rows import ConversationHeader
from localspec.history.statements import Statements

CONVERSATIONS, MESSAGES, LONG = 10_000, 8, 5_000
GROWN, STEP = 500_000, 100
"""Characters: of the long answer, and of what comes between two writes."""
LIMIT = 100.0
"""Milliseconds that what a screen asks for may take."""

COMMON = "the of and to in is that for it as with on be at by this had not are but from or have"
WORDS = [
    *COMMON.split(),
    *(
        f"{a}{b}{c}"
        for a in ("lo", "spec", "ta", "dra")
        for b in ("cal", "men", "ri")
        for c in ("s", "t")
    ),
    *(f"word{number}" for number in range(4000)),
]
# The first of them as often as in any language.
WEIGHTS = [1.0 / rank for rank in range(1, len(WORDS) + 1)]
STATS = {
    "generated_tokens": 120,
    "tokens_per_second": 41.5,
    "by_drafter": {name: {"drafted": 9, "tested": 8, "accepted": 7} for name in ("ngram", "model")},
    "accepted_per_position": [30, 20, 10, 5],
    "tested_per_position": [40, 30, 20, 10],
    "reasons": {"it rests": 3},
}


def main() -> None:
    """Build the store, and time what is asked of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the store")
    share = 10 if parser.parse_args().quick else 1
    print(f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "history.db"
        started = perf_counter()
        long = build(path, CONVERSATIONS // share, LONG // share)
        size = path.stat().st_size / 1e6
        print(f"built in {perf_counter() - started:.0f} s: {size:.0f} MB")
        timed("open, close", lambda: History(path).close(), 20)
        history = History(path)
        timed("first page of the list (50)", lambda: history.list(limit=50), 50)
        timed("its last page", lambda: history.list(limit=50, offset=history.count() - 50), 20)
        for query in ("t", "th", "the", "the of", "word39", "word3999", '"of the" loca', "zebra"):
            hits = len(history.search(query))
            timed(f"search {query!r}: {hits} hits", partial(history.search, query), 20)
        timed(f"load {LONG // share:,} messages", lambda: history.load(long), 20)
        conversation = history.load(long)
        timed("its path", conversation.path, 20)
        other = history.list(limit=1, offset=100)[0].id
        timed(f"load {MESSAGES} messages", lambda: history.load(other), 50)
        timed("send a message (to disk)", lambda: send(history, conversation), 50)
        grow(history, conversation, share)
        history.close()


def build(path: Path, conversations: int, long: int) -> str:
    """Fill a store; returns the id of the long conversation."""
    dice = random.Random(1)
    History(path).close()
    connection = sqlite3.connect(path, isolation_level=None)
    # All but the transactions is as in earnest; one each would take a disk's time, not ours.
    statements = Statements(connection)
    connection.execute("PRAGMA synchronous = OFF")
    id = ""
    for number in range(conversations):
        last = number == conversations // 2
        conversation = Conversation(created=1e9 + number, updated=1e9 + number)
        for turn in range(long if last else MESSAGES):
            answer = turn % 2 == 1
            text = " ".join(dice.choices(WORDS, WEIGHTS, k=100 if answer else 20))
            message = conversation.add(ASSISTANT if answer else USER, text)
            message.created = 1e9 + number
            if answer:
                message.stats = STATS
                message.spans = [(7, dice.choice(("target", "ngram"))) for _ in range(60)]
        conversation.updated = 1e9 + number
        statements.put(
            conversation.id,
            header=ConversationHeader.of(conversation),
            messages=list(conversation.messages.values()),
        )
        if last:
            id = conversation.id
    connection.close()
    return id


def send(history: History, conversation: Conversation) -> None:
    """What happens when the user presses Enter."""
    message = conversation.add(USER, "And what of the fox?")
    assert history.put(
        conversation.id, header=ConversationHeader.of(conversation), messages=[message]
    )


def grow(history: History, conversation: Conversation, share: int) -> None:
    """An answer written in steps, against what writing it whole each time would write."""
    answer = conversation.add(ASSISTANT, "", state=STREAMING)
    times: list[float] = []
    for _ in range(GROWN // STEP // share):
        answer.content += "x" * (STEP - 1) + " "
        started = perf_counter()
        history.write(answer, conversation.id)
        times.append(1e3 * (perf_counter() - started))
    report(f"write {STEP} characters of an answer that grows", times)
    report("  the last tenth of them", times[-len(times) // 10 :])
    answer.state = "complete"
    timed(
        f"finish {len(answer.content):,} characters",
        lambda: history.write(answer, conversation.id),
        5,
    )


def timed(what: str, action: Callable[[], object], times: int) -> None:
    """Call it so many times, and print the median."""
    action()
    taken = []
    for _ in range(times):
        started = perf_counter()
        action()
        taken.append(1e3 * (perf_counter() - started))
    report(what, taken)


def report(what: str, values: list[float]) -> None:
    """Median and worst."""
    middle = statistics.median(values)
    mark = "  over 100 ms!" if middle > LIMIT else ""
    print(f"{what:58}{middle:9.2f} ms  (at most {max(values):.2f}){mark}", flush=True)


if __name__ == "__main__":
    main()

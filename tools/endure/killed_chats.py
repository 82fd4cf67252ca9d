"""Kill chats at random moments; everything displayed must be in an intact history."""

import random
import sqlite3
from contextlib import closing
from pathlib import Path

from tests.tui.kills import kills, slow_chat
from tools.endure.outcome import Outcome


def killed_chats(home: Path, count: int, seed: int) -> Outcome:
    outcome = Outcome("kills of the chat at random moments", unit="kills")
    interrupted = before = shown = 0
    rounds = kills(home, slow_chat(home), count, random.Random(seed))
    while outcome.count < count:
        try:
            kill = next(rounds)
        except Exception as error:  # a chat that does not open, a conversation that is gone
            outcome.failures.append(f"kill {outcome.count}: {error!r}")
            break
        outcome.count += 1
        interrupted += kill.interrupted
        before += not kill.sent
        shown += kill.shown
        if kill.lost is not None:
            outcome.failures.append(f"kill {outcome.count}: lost: {kill.lost}")
    with closing(sqlite3.connect(home / "data" / "history.db")) as file:
        (sound,) = file.execute("PRAGMA integrity_check").fetchone()
    if sound != "ok":
        outcome.failures.append(f"the history's file: {sound}")
    outcome.seen = (
        f"{interrupted} within an answer, {before} before the question was shown as sent; "
        f"{shown:,} characters of answers were shown"
    )
    return outcome

"""Two processes at once on one history, one prompt cache, one profile and one datastore: in the end
all is there that either wrote. Run by `tools.endure`."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import localspec
from localspec.history.history import History
from localspec.retrieval.datastore import Datastore
from localspec.retrieval.learning import learn
from tests.history.histories import rows, talk
from tools.endure.faults import tell
from tools.endure.outcome import Outcome
from tools.endure.stores import LearnedTexts, ProfileFile, PromptCacheFiles

NAMES = ("ann", "bob")
MOST = 400
"""Rounds that have texts of their own."""


def two_processes(home: Path, count: int) -> Outcome:
    """So many rounds of each."""
    outcome = Outcome("two processes on one folder", unit="rounds")
    with ThreadPoolExecutor(len(NAMES)) as pool:
        ended = pool.map(
            lambda who: subprocess.run(
                [sys.executable, "-m", __spec__.name, str(home), str(count), "0", who],
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            ),
            NAMES,
        )
        for who, done in zip(NAMES, ended, strict=True):
            outcome.count += count
            if done.returncode:
                outcome.failures.append(
                    f"{who} ended with {done.returncode}: {done.stderr[-2000:]}"
                )
    try:
        _look(home, min(count, MOST))
    except Exception as error:
        outcome.failures.append(f"afterwards: {error!r}")
    outcome.seen = "each a conversation, a profile, a kept prompt and a learned text"
    return outcome


def _rounds(home: Path, count: int, who: str) -> None:
    profile = ProfileFile()
    for number in range(count):
        with closing(History(home / "data" / "history.db")) as history:
            assert talk(history, f"{who} {number}", f"an answer to {who}")[1]
        learn(LearnedTexts.facts, {f"{who} {number % MOST}": [_tokens(who, number % MOST)]})
        (profile.prepare if number % 2 else profile.change)()
    # Apart, as opening a model takes so long that the others would seldom meet.
    for _ in range(count):
        engine = localspec.load(draft=None, context=2048, threads=1, prompt_cache=1 << 28)
        cache = PromptCacheFiles(engine)
        (cache.prepare if NAMES.index(who) else cache.change)()


def _tokens(who: str, number: int) -> list[int]:
    return [1 + NAMES.index(who), 100 + number, 500 + number]


def _look(home: Path, count: int) -> None:
    path = home / "data" / "history.db"
    with closing(History(path, repair=False)) as history:
        assert history.trouble is None, history.trouble
        said = {history.load(each.id).path()[0].content for each in history.list(limit=1_000_000)}
    assert said >= {f"{who} {number}" for who in NAMES for number in range(count)}, "conversations"
    assert rows(path, "PRAGMA integrity_check") == [("ok",)]
    ProfileFile().look()
    facts = LearnedTexts.facts
    datastore = Datastore(lambda: facts.fingerprint, facts.size)
    assert datastore.refresh() == []
    for tokens in (_tokens(who, number) for who in NAMES for number in range(count)):
        assert [run.length for run in datastore.now.longest(tokens)][:1] == [3], tokens
    with localspec.load(draft=None, context=2048, threads=1, prompt_cache=1 << 28) as engine:
        PromptCacheFiles(engine).look(both=True)


if __name__ == "__main__":
    place, many = Path(sys.argv[1]), int(sys.argv[2])
    if len(sys.argv) > 4:
        _rounds(place, many, sys.argv[4])
    else:
        tell(two_processes(place, many))

"""What localspec keeps on disk, and what has to be true of each after an accident."""

from __future__ import annotations

import mmap
from abc import ABC, abstractmethod
from contextlib import closing
from pathlib import Path

import localspec
from localspec.history.history import History
from localspec.policy.profile import PairProfile
from localspec.policy.store import ProfileStore
from localspec.retrieval.datastore import Datastore
from localspec.retrieval.learning import LearnedVocabulary, learn
from tests.history.histories import rows, talk

GREEDY = localspec.SamplingParams(temperature=0)
PLAIN = localspec.Drafting(drafter="none")
PROMPTS = ("Once upon a time there was a fox. " * 40, "The bear went to the river. " * 45)

_ID = 32
"""Characters of a conversation's id."""


class Store(ABC):
    """Something on disk below LOCALSPEC_HOME.

    Each method is called in a process of its own, forked from the one that made the object.
    """

    name: str

    @abstractmethod
    def prepare(self) -> None:
        """Put something there."""

    @abstractmethod
    def change(self) -> None:
        """Put something else there; a `LocalspecError` says that it cannot."""

    @abstractmethod
    def look(self) -> None:
        """It holds what was there before, or that and the change. Raises AssertionError else."""


class HistoryStore(Store):
    """Conversations."""

    name = "history"
    before = ("first", "an answer to the first"), ("second", "an answer to the second")

    def __init__(self, home: Path) -> None:
        self._path = home / "data" / "history.db"
        self._kept = mmap.mmap(-1, _ID)  # of all processes that are forked from here

    def prepare(self) -> None:
        with closing(History(self._path, patience=0.05, retry=0.0)) as history:
            for texts in self.before:
                assert talk(history, *texts)[1]

    def change(self) -> None:
        self._kept[:] = bytes(_ID)
        with closing(History(self._path, patience=0.05, retry=0.0)) as history:
            conversation, kept = talk(history, "third " + "x" * 9000, "an answer to the third")
            assert history.load(conversation.id) == conversation, "what waits is shown"
            assert kept or history.trouble is not None
        if kept:
            self._kept[:] = conversation.id.encode()

    def look(self) -> None:
        with closing(History(self._path, repair=False)) as history:
            assert history.trouble is None, history.trouble
            found = {
                tuple(message.content for message in history.load(each.id).path())
                for each in history.list(limit=10_000)
            }
            assert found >= set(self.before), "what was there before is gone"
            if self._kept[0]:
                kept = history.load(self._kept[:].decode())
                assert len(kept.path()) == 2, "what was said to be kept is not"
            assert talk(history, "and on", "it goes")[1]
        assert rows(self._path, "PRAGMA integrity_check") == [("ok",)]


class ProfileFile(Store):
    """What was measured of a pair."""

    name = "profile"

    def __init__(self) -> None:
        self._store = ProfileStore({"machine": "endure"})

    def prepare(self) -> None:
        self._save(0.02)

    def change(self) -> None:
        self._save(0.03)

    def _save(self, seconds: float) -> None:
        profile = PairProfile()
        profile.target.learn({1: seconds, 4: 2 * seconds}, 0)
        self._store.save(profile)

    def look(self) -> None:
        again = PairProfile()
        assert self._store.load(again), "it is gone"
        found = again.target.seconds(1, 0)
        assert any(abs(found - seconds) < 1e-9 for seconds in (0.02, 0.03)), found


class SessionFiles(Store):
    """A conversation's caches, in a file with a name."""

    name = "session"

    def __init__(self, home: Path, engine: localspec.Engine) -> None:
        self._path, self._engine = home / "named.session", engine

    def prepare(self) -> None:
        self._save(0)

    def change(self) -> None:
        self._save(1)

    def _save(self, number: int) -> None:
        _answer(self._engine, number)
        self._engine.save_session(self._path, number)

    def look(self) -> None:
        opened = self._engine.open_session(self._path)
        assert opened.notices == (), opened.notices
        assert opened.conversation in (0, 1), "it is gone"
        _answer(self._engine, opened.conversation, cached=True)


class PromptCacheFiles(Store):
    """Conversations' caches, kept by themselves when an engine is closed."""

    name = "prompt cache"

    def __init__(self, engine: localspec.Engine) -> None:
        self._engine = engine

    def prepare(self) -> None:
        _answer(self._engine, 0)
        self._engine.close()

    def change(self) -> None:
        _answer(self._engine, 1)
        self._engine.close()

    def look(self) -> None:
        _answer(self._engine, 0, cached=True)
        _answer(self._engine, 1)


class LearnedTexts(Store):
    """A datastore that drafts come from."""

    name = "datastore"
    facts = LearnedVocabulary("e" * 24, 1000, "endure")

    def prepare(self) -> None:
        learn(self.facts, {"a": [[1, 2, 3]]})

    def change(self) -> None:
        learn(self.facts, {"b": [[4, 5, 6, 7]]})

    def look(self) -> None:
        datastore = Datastore(lambda: self.facts.fingerprint, self.facts.size)
        assert datastore.refresh() == []
        found = list(datastore.now.longest([1, 2, 3]))
        assert [run.length for run in found[:1]] == [3], "what was there before is gone"
        learn(self.facts, {"c": [[8, 9]]})


def _answer(engine: localspec.Engine, number: int, *, cached: bool = False) -> None:
    done = engine.generate(PROMPTS[number], max_tokens=2, sampling=GREEDY, drafting=PLAIN)
    assert done.stats.notices == [], done.stats.notices
    if cached:
        assert done.stats.cached_tokens > len(PROMPTS[number]) // 8, "it was decoded again"


def stores(home: Path) -> list[Store]:
    """All of them; below LOCALSPEC_HOME, which is `home`."""
    engine = localspec.load(draft=None, context=2048, threads=1, prompt_cache=1 << 28)
    named = localspec.load(draft=None, context=2048, threads=1)
    return [
        HistoryStore(home),
        ProfileFile(),
        SessionFiles(home, named),
        PromptCacheFiles(engine),
        LearnedTexts(),
    ]

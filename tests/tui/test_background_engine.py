"""The thread that opens models and answers, with a scripted engine in it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import numpy as np
import pytest

from localspec import Engine, ModelOptions, SamplingParams, load
from localspec.distill import folders
from localspec.distill.recording import likeliest
from localspec.distill.trace import Trace
from localspec.retrieval import manifest
from localspec.tui.session import events
from localspec.tui.session.background_engine import BackgroundEngine, Loader
from tests.tui.scripted import Hold, Says, Scripted

pytestmark = pytest.mark.nightly

PATIENCE = 60.0
"""Seconds until a test gives up."""
E = TypeVar("E", bound=events.Event)


class Desk:
    """An engine thread and its events."""

    def __init__(self, loader: Loader | None, options: ModelOptions | None = None) -> None:
        self.told: list[events.Event] = []
        self._events: SimpleQueue[events.Event] = SimpleQueue()
        self.engine = BackgroundEngine(self._events.put, loader=loader, options=options)

    def until(self, kind: type[E], holds: Callable[[E], object] = lambda _: True) -> E:
        while True:
            try:
                event = self._events.get(timeout=PATIENCE)
            except Empty:
                raise AssertionError(f"no {kind.__name__} after {self.told}") from None
            self.told.append(event)
            if isinstance(event, kind) and holds(event):
                return event

    def ask(self, text: str = "hello", **changed: object) -> None:
        values: dict[str, object] = {
            "message": text,
            "messages": [{"role": "user", "content": text}],
            "sampling": SamplingParams(),
            "max_tokens": None,
            "overflow": "error",
            "keep": lambda _: None,
        }
        self.engine.ask(events.Question(**(values | changed)))  # type: ignore[arg-type]


@contextmanager
def at_a_desk(loader: Loader | None, options: ModelOptions | None = None) -> Iterator[Desk]:
    desk = Desk(loader, options)
    try:
        yield desk
    finally:
        desk.engine.close(PATIENCE)
        assert not [t for t in threading.enumerate() if t.name == "localspec-engine"]


REAL = ModelOptions(context=256, threads=1)


def test_adapters_stay_with_the_pair_they_came_with() -> None:
    given: list[ModelOptions] = []
    script = Scripted()

    def load(*pair: str | None, options: ModelOptions, **more: Any) -> Engine:
        given.append(options)
        return script.load(*pair, options=options, **more)

    pairs = [
        events.PairReference("big.gguf", "small.gguf"),
        events.PairReference("big.gguf", "other.gguf"),
        events.PairReference("third.gguf", "small.gguf"),
        events.PairReference("big.gguf", "small.gguf"),
    ]
    notices = []
    with at_a_desk(
        load, ModelOptions(lora="style.gguf:0.5", lora_draft="small-style.gguf")
    ) as desk:
        for pair in pairs:
            desk.engine.open(pair)
            notices.append(" ".join(desk.until(events.Opened).notices))
    kept = [(len(one.adapters), len(one.draft_adapters)) for one in given]
    assert kept == [(1, 1), (1, 0), (0, 1), (1, 1)]
    assert ["style.gguf" in notice for notice in notices] == [False, True, True, False]
    assert ["small-style.gguf" in notice for notice in notices] == [False, True, False, False]


def test_stopping_what_waits_stops_all_of_it() -> None:
    script = Scripted()
    loading = script.loading["big"] = Hold()
    with at_a_desk(script.load) as desk:
        desk.engine.open(events.PairReference("big"))
        desk.ask("first")
        desk.ask("second")
        wait_for(lambda: loading.reached)
        desk.engine.stop()
        assert desk.until(events.NotOpened).cancelled
        assert [desk.until(events.AnswerEnded).finish_reason for _ in range(2)] == ["cancelled"] * 2
        assert script.asked == []
        desk.engine.open(events.PairReference("other"))
        assert desk.until(events.Opened).model == "other"


@pytest.mark.parametrize("error", [RuntimeError("odd"), KeyboardInterrupt(), SystemExit(3)])
def test_the_thread_survives_whatever_is_raised(error: BaseException) -> None:
    script = Scripted(Says("one two", error=error), Says("", error=error, at_once=True), "fine")
    script.troubles["bad"] = error
    with at_a_desk(script.load) as desk:
        desk.engine.open(events.PairReference("bad"))
        assert "Internal error" in desk.until(events.NotOpened).error
        desk.engine.open(events.PairReference("good"))
        desk.ask("first")
        failed = desk.until(events.AnswerFailed)
        assert (failed.message, failed.text) == ("first", "one two")
        desk.ask("second")
        assert desk.until(events.AnswerFailed).text == ""
        desk.ask("third")
        assert desk.until(events.AnswerEnded).text == "fine"


def test_measuring_is_told() -> None:
    with at_a_desk(Scripted(Says("one two", unmeasured=True)).load) as desk:
        desk.engine.open(events.PairReference(None))
        desk.ask()
        assert (
            desk.until(events.Progress, lambda e: e.text.startswith("measuring")).message == "hello"
        )
        desk.until(events.AnswerEnded)


def wait_for(holds: Callable[[], object]) -> None:
    pause = threading.Event()
    for _ in range(round(PATIENCE / 0.01)):
        if holds():
            return
        pause.wait(0.01)
    raise AssertionError("the engine never got there")


def learned() -> set[str]:
    manifests = [manifest.read(folder) for folder in manifest.folders()]
    return {name for each in manifests if each is not None for name in each.learned}


def test_conversations_are_learned_until_they_are_deleted() -> None:
    with at_a_desk(None, REAL) as desk:
        desk.engine.open(events.PairReference(None, "none"))
        desk.engine.forget("deleted")
        desk.engine.learn("kept", ["The quick brown fox."])
        desk.engine.learn("deleted", ["Nobody may know this."])
        desk.engine.open(events.PairReference(None, "none"))
        for _ in range(2):  # the second one comes after what was to be learned
            desk.until(events.Opened)
    assert learned() == {"conversation kept"}


def test_what_cannot_be_learned_is_told(home: Path) -> None:
    home.mkdir()
    (home / "data").write_text("in the way")
    with at_a_desk(None, REAL) as desk:
        desk.engine.open(events.PairReference(None, "none"))
        desk.engine.learn("kept", ["The quick brown fox."])
        error = desk.until(events.NotKept).error
    assert "was not learned: What was learned cannot be written" in error


def test_answers_are_recorded_until_their_conversation_is_deleted() -> None:
    """What is kept is the target's own distribution, whoever drafted the tokens."""
    greedy = SamplingParams(temperature=0)
    with at_a_desk(None, REAL) as desk:
        desk.engine.open(events.PairReference(None, "auto"))
        desk.engine.forget("deleted")
        for name in (None, "kept", "deleted"):
            desk.ask("Tell me of a fox.", sampling=greedy, max_tokens=24, record_of=name)
            desk.until(events.AnswerEnded)
    (shown,) = folders.recorded()
    assert (shown.answers, shown.chats) == (1, 1)
    with Trace(shown.folder / folders.TRACE) as trace:
        record = trace.record(0)
    assert len(record.answer) == 24
    assert (record.ids[:, 0] == record.answer).all()
    with load(None, draft=None, options=REAL) as alone:
        for at in (0, 11, 23):
            rows = alone.logits([*record.prompt.tolist(), *record.answer[:at].tolist()])
            ids, log_p, rest = likeliest(rows[None], 32)
            assert ids[0, 0] == record.ids[at, 0]
            assert np.exp(record.log_p[at]) == pytest.approx(np.exp(log_p[0]), abs=0.03)
            assert record.rest[at] == pytest.approx(rest[0], abs=0.03)

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
from localspec.errors import ContextOverflow, ModelInvalid, ModelNotFound
from localspec.retrieval import manifest
from localspec.tui.session import background_engine
from localspec.tui.session.background_engine import BackgroundEngine
from localspec.tui.session.events import (
    AnswerBegan,
    AnswerEnded,
    AnswerFailed,
    Event,
    NotKept,
    NotOpened,
    Opened,
    Overflowed,
    PairReference,
    Progress,
    Question,
)
from tests.tui.scripted import Hold, Says, Scripted

pytestmark = pytest.mark.nightly

PATIENCE = 60.0
"""Seconds until a test gives up."""
E = TypeVar("E", bound=Event)


class Desk:
    """An engine thread and its events."""

    def __init__(self, script: Scripted) -> None:
        self.script = script
        self.told: list[Event] = []
        self._events: SimpleQueue[Event] = SimpleQueue()
        self.engine = BackgroundEngine(self._events.put, loader=script.load)
        self.kept: list[str] = []

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
            "keep": self.kept.append,
        }
        self.engine.ask(Question(**(values | changed)))  # type: ignore[arg-type]


@contextmanager
def at_a_desk(*answers: Says | str) -> Iterator[Desk]:
    desk = Desk(Scripted(*answers))
    try:
        yield desk
    finally:
        desk.engine.close(PATIENCE)
        assert not [t for t in threading.enumerate() if t.name == "localspec-engine"]


def test_a_pair_is_opened() -> None:
    with at_a_desk() as desk:
        desk.engine.open(PairReference("big.gguf", "small.gguf"))
        opened = desk.until(Opened)
        assert (opened.model, opened.draft) == ("big", "small")
        assert opened.context_length == 512
        texts = [e.text for e in desk.told if isinstance(e, Progress)]
        assert texts[-1] == "loading the model: 100%"
    assert desk.script.closed == 1


def test_adapters_stay_with_the_pair_they_came_with() -> None:
    told: SimpleQueue[Event] = SimpleQueue()
    given: list[ModelOptions] = []
    script = Scripted()

    def load(*pair: str | None, options: ModelOptions, **more: Any) -> Engine:
        given.append(options)
        return script.load(*pair, options=options, **more)

    options = ModelOptions(lora="style.gguf:0.5", lora_draft="small-style.gguf")
    engine = BackgroundEngine(told.put, options=options, loader=load)
    pairs = [
        PairReference("big.gguf", "small.gguf"),
        PairReference("big.gguf", "other.gguf"),
        PairReference("third.gguf", "small.gguf"),
        PairReference("big.gguf", "small.gguf"),
    ]
    notices = []
    for pair in pairs:
        engine.open(pair)
        while not isinstance(event := told.get(timeout=PATIENCE), Opened):
            assert not isinstance(event, NotOpened), event
        notices.append(" ".join(event.notices))
    engine.close(PATIENCE)
    kept = [(len(one.adapters), len(one.draft_adapters)) for one in given]
    assert kept == [(1, 1), (1, 0), (0, 1), (1, 1)]
    assert ["style.gguf" in notice for notice in notices] == [False, True, True, False]
    assert ["small-style.gguf" in notice for notice in notices] == [False, True, False, False]


def test_an_answer() -> None:
    with at_a_desk("Once upon a time there was a fox.") as desk:
        desk.engine.open(PairReference(None))
        desk.ask("a story", max_tokens=50, overflow="drop_oldest")
        answer = desk.until(AnswerBegan).answer
        ended = desk.until(AnswerEnded)
        assert ended == AnswerEnded("a story", "Once upon a time there was a fox.", "stop")
        answer.take()
        assert answer.text == ended.text
        assert sum(count for count, _ in answer.spans()) == len(ended.text)
        (asked,) = desk.script.asked
        assert (asked.last, asked.max_tokens, asked.overflow) == ("a story", 50, "drop_oldest")


def test_questions_wait_for_the_model_and_for_each_other() -> None:
    loading = Hold()
    with at_a_desk("one", "two") as desk:
        desk.script.loading["big"] = loading
        desk.engine.open(PairReference("big"))
        desk.ask("first")
        desk.ask("second")
        loading.release()
        assert desk.until(AnswerEnded) == AnswerEnded("first", "one", "stop")
        assert desk.until(AnswerEnded) == AnswerEnded("second", "two", "stop")


def test_nothing_is_open() -> None:
    with at_a_desk() as desk:
        desk.ask()
        failed = desk.until(AnswerFailed)
        assert failed.error == "No model is open. Choose one with Ctrl+O or /model."


def test_stopping_an_answer_keeps_what_came() -> None:
    hold = Hold()
    with at_a_desk(Says("one two three four five six", holds={2: hold}), "next") as desk:
        desk.engine.open(PairReference(None))
        desk.ask()
        answer = desk.until(AnswerBegan).answer
        wait_for(lambda: hold.reached)
        desk.engine.stop()
        ended = desk.until(AnswerEnded)
        assert ended.finish_reason == "cancelled"
        assert ended.text
        assert "one two three four five six".startswith(ended.text)
        answer.take()
        assert answer.text == ended.text
        # What was stopped is over: the next one is not.
        desk.ask("again")
        assert desk.until(AnswerEnded) == AnswerEnded("again", "next", "stop")


def test_stopping_while_the_prompt_is_read() -> None:
    hold = Hold()
    with at_a_desk(Says("never", holds={0: hold})) as desk:
        desk.engine.open(PairReference(None))
        desk.ask()
        assert desk.until(Progress, lambda e: e.message).text == "reading the prompt: 25%"
        desk.engine.stop()
        assert desk.until(AnswerEnded) == AnswerEnded("hello", "", "cancelled")


def test_stopping_what_waits_stops_all_of_it() -> None:
    loading = Hold()
    with at_a_desk() as desk:
        desk.script.loading["big"] = loading
        desk.engine.open(PairReference("big"))
        desk.ask("first")
        desk.ask("second")
        wait_for(lambda: loading.reached)
        desk.engine.stop()
        assert desk.until(NotOpened).cancelled
        assert [desk.until(AnswerEnded).finish_reason for _ in range(2)] == ["cancelled"] * 2
        assert desk.script.asked == []
        desk.engine.open(PairReference("other"))
        assert desk.until(Opened).model == "other"


def test_stopping_nothing_stops_nothing_to_come() -> None:
    with at_a_desk("one") as desk:
        desk.engine.stop()
        desk.engine.open(PairReference(None))
        desk.ask()
        desk.until(Opened)
        assert desk.until(AnswerEnded).finish_reason == "stop"


def test_a_model_that_does_not_load_leaves_the_old_one_open() -> None:
    with at_a_desk("still here") as desk:
        desk.engine.open(PairReference("old"))
        desk.until(Opened)
        desk.script.troubles["new"] = ModelInvalid("new is not a model. Choose another one.")
        desk.engine.open(PairReference("new"))
        missed = desk.until(NotOpened)
        assert missed.error == "new is not a model. Choose another one."
        assert not missed.cancelled
        assert missed.still is not None
        assert missed.still.model == "old"
        desk.ask()
        assert desk.until(AnswerEnded).text == "still here"
        assert desk.script.loaded == [
            PairReference("old"),
            PairReference("new"),
            PairReference("old"),
        ]
    assert desk.script.closed == 2


def test_neither_loads_any_more() -> None:
    with at_a_desk() as desk:
        desk.engine.open(PairReference("old"))
        desk.until(Opened)
        desk.script.troubles |= {"new": ModelInvalid("No."), "old": ModelNotFound("Gone.")}
        desk.engine.open(PairReference("new"))
        missed = desk.until(NotOpened)
        assert (missed.error, missed.still) == ("No.", None)
        desk.ask()
        assert desk.until(AnswerFailed).error.startswith("No model is open.")
    assert desk.script.closed == 1


@pytest.mark.parametrize("error", [RuntimeError("odd"), KeyboardInterrupt(), SystemExit(3)])
def test_the_thread_survives_whatever_is_raised(error: BaseException) -> None:
    with at_a_desk(
        Says("one two", error=error), Says("", error=error, at_once=True), "fine"
    ) as desk:
        desk.script.troubles["bad"] = error
        desk.engine.open(PairReference("bad"))
        assert "Internal error" in desk.until(NotOpened).error
        desk.engine.open(PairReference("good"))
        desk.ask("first")
        failed = desk.until(AnswerFailed)
        assert (failed.message, failed.text) == ("first", "one two")
        desk.ask("second")
        assert desk.until(AnswerFailed).text == ""
        desk.ask("third")
        assert desk.until(AnswerEnded).text == "fine"


def test_out_of_memory_is_told_in_words() -> None:
    with at_a_desk() as desk:
        desk.script.troubles["huge"] = MemoryError()
        desk.engine.open(PairReference("huge"))
        assert desk.until(NotOpened).error.startswith("There is not enough memory.")


def test_an_overflow_is_an_event_of_its_own() -> None:
    error = ContextOverflow("Too long.", needed=600, available=512)
    with at_a_desk(Says("", error=error, at_once=True)) as desk:
        desk.engine.open(PairReference(None))
        desk.ask()
        assert desk.until(Overflowed) == Overflowed("hello", "Too long.")


def test_measuring_is_told() -> None:
    with at_a_desk(Says("one two", unmeasured=True)) as desk:
        desk.engine.open(PairReference(None))
        desk.ask()
        assert desk.until(Progress, lambda e: e.text.startswith("measuring")).message == "hello"
        desk.until(AnswerEnded)


def test_a_growing_answer_is_handed_on_to_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_engine, "KEEP_EVERY", 0.0)
    with at_a_desk("one two three four five six seven") as desk:
        desk.engine.open(PairReference(None))
        desk.ask()
        text = desk.until(AnswerEnded).text
    assert len(desk.kept) > 2
    assert all(text.startswith(kept) for kept in desk.kept)
    assert desk.kept == sorted(desk.kept, key=len)


def test_closing_stops_what_runs() -> None:
    hold = Hold()
    with at_a_desk(Says("one two three", holds={1: hold})) as desk:
        desk.engine.open(PairReference(None))
        desk.ask()
        wait_for(lambda: hold.reached)
    assert desk.script.closed == 1


def test_the_last_word_comes_before_the_models_are_freed() -> None:
    hold, closed = Hold(), []
    with at_a_desk(Says("one two three", holds={2: hold})) as desk:
        desk.engine.open(PairReference(None))
        desk.ask()
        answer = desk.until(AnswerBegan).answer
        wait_for(lambda: hold.reached)

        def last() -> None:
            answer.take()
            closed.append(desk.script.closed)

        desk.engine.close(PATIENCE, last=last)
        assert closed == [0]
        assert desk.script.closed == 1
        assert "one two three".startswith(answer.text)
        assert answer.text


def wait_for(holds: Callable[[], object]) -> None:
    pause = threading.Event()
    for _ in range(round(PATIENCE / 0.01)):
        if holds():
            return
        pause.wait(0.01)
    raise AssertionError("the engine never got there")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    return tmp_path


@contextmanager
def with_the_embedded_model() -> Iterator[BackgroundEngine]:
    engine = BackgroundEngine(lambda _: None, options=ModelOptions(context=256, threads=1))
    engine.open(PairReference(None, "none"))
    yield engine
    engine.close(PATIENCE)


def learned() -> set[str]:
    manifests = [manifest.read(folder) for folder in manifest.folders()]
    return {name for each in manifests if each is not None for name in each.learned}


@pytest.mark.usefixtures("home")
def test_conversations_are_learned_until_they_are_deleted() -> None:
    done = threading.Event()
    with with_the_embedded_model() as engine:
        engine.forget("deleted")
        engine.learn("kept", ["The quick brown fox."])
        engine.learn("deleted", ["Nobody may know this."])
        engine._thread.submit(done.set, failed=lambda _: None)
        assert done.wait(PATIENCE)
    assert learned() == {"conversation kept"}


@pytest.mark.usefixtures("home")
def test_one_that_is_deleted_while_it_is_learned_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done, learn = threading.Event(), Engine.learn
    with with_the_embedded_model() as engine:

        def deleted_meanwhile(self: Engine, *arguments: Any, **options: Any) -> None:
            learn(self, *arguments, **options)
            assert learned() == {"conversation gone"}
            engine.forget("gone")

        monkeypatch.setattr(Engine, "learn", deleted_meanwhile)
        engine.learn("gone", ["Nobody may know this."])
        engine._thread.submit(done.set, failed=lambda _: None)
        assert done.wait(PATIENCE)
    assert learned() == set()


@pytest.mark.usefixtures("home")
def test_what_cannot_be_learned_is_told(home: Path) -> None:
    (home / "data").write_text("in the way")
    told: SimpleQueue[Event] = SimpleQueue()
    engine = BackgroundEngine(told.put, options=ModelOptions(context=256, threads=1))
    engine.open(PairReference(None, "none"))
    engine.learn("kept", ["The quick brown fox."])
    while not isinstance(event := told.get(timeout=PATIENCE), NotKept):
        pass
    engine.close(PATIENCE)
    assert "was not learned: What was learned cannot be written" in event.error


@pytest.mark.usefixtures("home")
def test_answers_are_recorded_until_their_conversation_is_deleted(home: Path) -> None:
    """What is kept is the target's own distribution, whoever drafted the tokens."""
    told: SimpleQueue[Event] = SimpleQueue()
    engine = BackgroundEngine(told.put, options=ModelOptions(context=256, threads=1))
    engine.open(PairReference(None, "auto"))
    engine.forget("deleted")
    for name in (None, "kept", "deleted"):
        question = Question(
            message=str(name),
            messages=[{"role": "user", "content": "Tell me a story about a fox."}],
            sampling=SamplingParams(temperature=0),
            max_tokens=24,
            overflow="error",
            keep=lambda _: None,
            record_of=name,
        )
        engine.ask(question)
        while not isinstance(told.get(timeout=PATIENCE), AnswerEnded):
            pass
    engine.close(PATIENCE)
    (shown,) = folders.recorded()
    assert (shown.answers, shown.chats) == (1, 1)
    with Trace(shown.folder / folders.TRACE) as trace:
        record = trace.record(0)
    assert len(record.answer) == 24
    assert (record.ids[:, 0] == record.answer).all()
    with load(None, draft=None, options=ModelOptions(context=256, threads=1)) as alone:
        for at in (0, 11, 23):
            rows = alone.logits([*record.prompt.tolist(), *record.answer[:at].tolist()])
            ids, log_p, rest = likeliest(rows[None], 32)
            assert ids[0, 0] == record.ids[at, 0]
            assert np.exp(record.log_p[at]) == pytest.approx(np.exp(log_p[0]), abs=0.03)
            assert record.rest[at] == pytest.approx(rest[0], abs=0.03)


@pytest.mark.usefixtures("home")
def test_what_cannot_be_recorded_is_told_and_the_answer_stands(home: Path) -> None:
    told: SimpleQueue[Event] = SimpleQueue()
    engine = BackgroundEngine(told.put, options=ModelOptions(context=256, threads=1))
    engine.open(PairReference(None, "none"))
    while not isinstance(told.get(timeout=PATIENCE), Opened):
        pass
    (home / "data").write_text("in the way")
    question = Question(
        "m", [{"role": "user", "content": "A fox"}], SamplingParams(), 4, "error", print, "kept"
    )
    engine.ask(question)
    seen: list[Event] = []
    while not seen or not isinstance(seen[-1], NotKept):
        seen.append(told.get(timeout=PATIENCE))
    engine.close(PATIENCE)
    assert any(isinstance(event, AnswerEnded) for event in seen)
    assert isinstance(seen[-1], NotKept)
    assert "This answer was not recorded: Nothing can be kept in" in seen[-1].error

"""Data that outlives a chat, with real models: /learn, /record and `--session FILE`."""

from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec import Drafting, Engine, ModelOptions, load
from localspec.chat.conversation import ASSISTANT, USER, Conversation
from localspec.cli.main import main
from localspec.distill import folders
from localspec.distill.trace import Trace
from localspec.history.history import History
from localspec.paths import history_file
from localspec.retrieval import manifest
from localspec.tui.app import ChatApp
from localspec.tui.session.background_engine import BackgroundEngine, PairReference
from localspec.tui.session.session_conversation import read
from tests.distill.traces import top_tokens
from tests.history.histories import PATIENCE, locked
from tests.support.patches import files_of_at_most
from tests.tui.pilots import chat
from tests.tui.scripted import Script

pytestmark = pytest.mark.nightly

REAL = ModelOptions(context=512, threads=1)

LONG = "Tell me a story about a fox, a bear and a bird. " * 12


def the_app(draft: str) -> ChatApp:
    """With real models."""
    engine = partial(BackgroundEngine, options=REAL)
    pair = PairReference(None, draft)
    return ChatApp(pair, engine=engine, sampling={"temperature": 0.0}, max_tokens=24)


def with_session(path: Path) -> ChatApp:
    options, plain = ModelOptions(context=1024, threads=1), Drafting(drafter="none")
    engine = partial(BackgroundEngine, options=options, drafting=plain, session=path)
    return ChatApp(engine=engine, sampling={"temperature": 0.0}, max_tokens=12, session=read(path))


def learned() -> set[str]:
    manifests = [manifest.read(folder) for folder in manifest.folders()]
    return {name for each in manifests if each is not None for name in each.learned}


async def test_conversations_are_learned_until_they_are_deleted() -> None:
    async with chat(app=the_app("none")) as shown:
        await shown.send("Nobody may know this.")
        await shown.command("/learn on")
        await shown.send("The quick brown fox.")
        name = f"conversation {shown.app.chat_session.conversation.id}"
        await shown.until(lambda: learned() == {name}, "learned")
        await shown.command("/delete")
        await shown.choose("Delete it")
        await shown.until(lambda: not shown.texts)
        assert learned() == set()


async def test_what_cannot_be_learned_is_told() -> None:
    manifest.root().parent.mkdir(parents=True)
    manifest.root().write_text("in the way")
    async with chat(app=the_app("none")) as shown:
        await shown.command("/learn on")
        await shown.send("The quick brown fox.")
        await shown.until_notice("This conversation was not learned: Learned texts cannot be")
        await shown.command("/delete")
        await shown.choose("Delete it")
        await shown.until(lambda: not shown.texts)


async def test_answers_are_recorded_until_their_conversation_is_deleted() -> None:
    """What is kept is the target's own distribution, whoever drafted the tokens."""
    async with chat(app=the_app("auto")) as shown:
        await shown.send("Tell me of a fox.")
        await shown.command("/record on")
        await shown.press("ctrl+n")
        await shown.send("Tell me of a bear.")
        await shown.until(lambda: [one.chats for one in folders.recorded_targets()] == [1])
        (kept,) = folders.recorded_targets()
        with Trace(kept.folder / folders.TRACE) as trace:
            record = trace.record(0)
        await shown.command("/delete")
        await shown.choose("Delete it")
        await shown.until(lambda: [one.chats for one in folders.recorded_targets()] == [0])
    assert len(record.answer) == 24
    assert (record.ids[:, 0] == record.answer).all()
    with load(None, draft=None, options=REAL) as alone:
        for at in (0, 11, 23):
            rows = alone.logits([*record.prompt.tolist(), *record.answer[:at].tolist()])
            ids, log_p, rest = top_tokens(rows[None], 32)
            assert ids[0, 0] == record.ids[at, 0]
            assert np.exp(record.log_p[at]) == pytest.approx(np.exp(log_p[0]), abs=0.03)
            assert record.rest[at] == pytest.approx(rest[0], abs=0.03)


async def test_adapters_stay_with_the_pair_they_came_with() -> None:
    given: list[ModelOptions] = []
    script = Script()

    def load(*pair: str | None, options: ModelOptions, **more: Any) -> Engine:
        given.append(options)
        return script.load(*pair, options=options, **more)

    options = ModelOptions(lora="style.gguf:0.5", lora_draft="small-style.gguf")
    engine = partial(BackgroundEngine, options=options, loader=load)
    app = ChatApp(PairReference("big.gguf", "small.gguf"), engine=engine)
    async with chat(script, app=app) as shown:
        for number, line in enumerate(
            ("/draft other.gguf", "/model third.gguf", "/draft small.gguf", "/model big.gguf"), 2
        ):
            await shown.command(line)
            await shown.until(lambda n=number: len(script.loaded) == n, line)  # type: ignore[misc]
            await shown.until(lambda: shown.app.conversation_display.doing is None)
        notices = [told.text for told in shown.notices if told.text.startswith("Left out: ")]
    kept = [(len(one.adapters), len(one.draft_adapters)) for one in given]
    assert kept == [(1, 1), (1, 0), (0, 0), (0, 1), (1, 0)]
    lost = ("small-style.gguf", "style.gguf and small-style.gguf", "style.gguf", "small-style.gguf")
    assert notices == [f"Left out: {names}, for the previous model only." for names in lost]


async def test_leave_and_come_back(tmp_path: Path) -> None:
    path = tmp_path / "fox.session"
    async with chat(app=with_session(path)) as shown:
        await shown.send(LONG)
        said = shown.texts
        id = shown.app.chat_session.conversation.id
    assert shown.app.trouble is None
    async with chat(app=with_session(path)) as shown:
        assert shown.texts == said
        await shown.send("And then?")
        assert shown.answer.stats is not None
        assert shown.answer.stats["cached_tokens"] > 150
        said = shown.texts
    with closing(History()) as history:
        assert [m.role for m in history.load(id).path()] == [USER, ASSISTANT] * 2
        assert history.count() == 1, "it is the same one, not a copy"
        history.delete([id])
        history.put(Conversation(id))  # what the history lacks is kept beside this
    async with chat(app=with_session(path)) as shown:
        await shown.until(lambda: len(shown.listed()) == 2, "both are in the history")
        assert shown.texts == said


async def test_one_that_run_made_is_taken_into_the_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    path = tmp_path / "fox.session"
    arguments = ["-q", "-n", "4", "--drafter", "none", "--session", str(path)]
    assert main(["run", *arguments, "Who is there?"]) == 0
    async with chat(app=with_session(path)) as shown:
        assert shown.texts[0] == "Who is there?"
        await shown.until(lambda: len(shown.listed()) == 1)
        await shown.until(lambda: "Who is there" in shown.listed()[0])
        kept = shown.app.store.history.load(shown.app.chat_session.conversation.id)
        assert len(kept.messages) == 2
    assert main(["run", *arguments, "And now?"]) == 0
    conversation = read(path)
    assert conversation is not None
    assert [m.role for m in conversation.path()] == [USER, ASSISTANT] * 2


async def test_a_full_disk_is_told_at_the_end(tmp_path: Path) -> None:
    async with chat(app=with_session(tmp_path / "fox.session")) as shown:
        await shown.send(LONG)
        with files_of_at_most(20_000):
            shown.app.engine.end(5.0)
            trouble = shown.app.engine.close()
    assert trouble is not None
    assert trouble.startswith("The session cannot be saved in")


async def test_a_session_and_a_history_that_cannot_be_kept_are_both_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient = partial(History, patience=PATIENCE)
    monkeypatch.setattr("localspec.history.history.History", impatient)
    path = tmp_path / "fox.session"
    with ExitStack() as stack:
        async with chat(app=with_session(path)) as shown:
            stack.enter_context(locked(history_file()))
            await shown.send("Once")
            path.mkdir()
    told = str(shown.app.trouble)
    assert told.startswith(f"Another program has changed the session in {path}.")
    assert "Messages of this chat are in" in told


async def test_messages_that_the_history_lacks_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "fox.session"
    async with chat(app=with_session(path)) as shown:
        await shown.send(LONG)
        said, id = shown.texts, shown.app.chat_session.conversation.id
    with closing(History()) as history:
        history.delete([id])
        history.put(Conversation(id))
    async with chat(app=with_session(path)) as shown:
        await shown.until(lambda: len(shown.listed()) == 2, "both are in the history")
        assert shown.texts == said

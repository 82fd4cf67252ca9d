"""Choosing another model: the picker, loading, and what happens when that fails."""

from collections.abc import Callable
from functools import partial
from threading import Event

import pytest
from textual.widgets import OptionList, Static

from localspec.errors import LocalspecError
from localspec.hub import catalog, download, local
from localspec.hub.catalog import Catalog
from localspec.hub.download import PullProgress
from localspec.pairing.rules import FAIL, WARN, Check
from localspec.tui.screens.dialogs import DownloadScreen
from localspec.tui.screens.model_picker import ModelPicker
from localspec.tui.session.background_engine import PairReference
from tests.support.patches import fail_with
from tests.tui.models import a_model, judge_drafts, lynx
from tests.tui.pilots import Chat, chat, option_texts
from tests.tui.scripted import Hold, Script

pytestmark = pytest.mark.nightly

OWL, WREN, CRAB = a_model("owl", 8 << 30), a_model("wren", 1 << 30), a_model("crab", 512 << 20)
RUIN = a_model("ruin", 2 << 30, problem="The file is truncated. Download it again.")


class Room:
    """The models on this machine. `pulled`: what was downloaded; `pulling`: where that waits."""

    def __init__(self) -> None:
        self.models = [OWL, WREN, CRAB, RUIN]
        self.pulled: list[str] = []
        self.pulling = Hold()

    def pull(self, reference: str, progress: Callable[[PullProgress], None], **_: object) -> None:
        for done in (5_000_000, 10_000_000):
            told = PullProgress(f"{reference}.gguf", 1, 1, done, 10_000_000, "download")
            progress(told)
            self.pulling.wait(partial(progress, told))
        self.pulled.append(reference)


def judge(draft: str) -> Check:
    """Wrens draft for owls, with a warning; crabs for nobody."""
    if draft == CRAB.name:
        return Check("vocabulary", FAIL, "The vocabularies differ at token 7")
    return Check("size", WARN, "The draft is large for its target")


@pytest.fixture(autouse=True)
def room(monkeypatch: pytest.MonkeyPatch) -> Room:
    """What the picker finds, and how it judges."""
    made = Room()
    judge_drafts(monkeypatch, judge)
    monkeypatch.setattr(local, "local_models", lambda _folders=(): made.models)
    monkeypatch.setattr(catalog, "load", lambda: Catalog([lynx("den/lynx-1b-gguf:Q4_K_M")]))
    monkeypatch.setattr(download, "pull", made.pull)
    return made


def lists(shown: Chat) -> tuple[OptionList, OptionList]:
    screen = shown.app.screen
    return screen.query_one("#targets", OptionList), screen.query_one("#drafts", OptionList)


def about(shown: Chat) -> str:
    return str(shown.app.screen.query_one("#about", Static).content)


async def pick(shown: Chat) -> None:
    await shown.open(ModelPicker, "ctrl+o")
    await shown.until(lambda: lists(shown)[0].option_count, "models")


async def test_the_picker_lists_models_and_which_draft_fits() -> None:
    async with chat(pair=PairReference(OWL.reference)) as shown:
        await pick(shown)
        targets, drafts = lists(shown)
        named = [text.split()[0] for text in option_texts(targets)]
        assert named == ["▌owl", "wren", "crab", "ruin", "↓"]
        await shown.until(lambda: drafts.option_count > 2)
        offered = option_texts(drafts)
        for text, begins in zip(offered, ("auto", "none", "✓ wren", "✗ crab"), strict=True):
            assert text.startswith(begins)
        assert "The vocabularies differ at token 7" in offered[3]
        assert drafts.get_option_at_index(3).disabled


async def test_choosing_a_pair_opens_it_and_the_conversation_stays() -> None:
    script = Script("From the owl.", "From the wren.")
    async with chat(script, pair=PairReference(OWL.reference)) as shown:
        await shown.send("who are you")
        await pick(shown)
        lists(shown)[0].focus()
        await shown.press("down")
        await shown.until(lambda: "wren" in about(shown))
        await shown.press("enter")
        assert lists(shown)[1].has_focus
        await shown.press("down", "enter")
        await shown.until(lambda: shown.app.chat_session.opened.model == "wren")  # type: ignore[union-attr]
        assert (script.loaded[-1], script.closed) == (PairReference(WREN.reference, "none"), 1)
        assert "wren, no draft model" in shown.text
        await shown.send("and now")
        said = ["who are you", "From the owl.", "and now"]
        assert [m["content"] for m in script.asked[1].messages] == said
        assert [m.model for m in shown.path if m.model] == ["owl", "wren"]


async def test_the_draft_command_chooses_the_draft_only() -> None:
    async with chat(pair=PairReference(OWL.reference)) as shown:
        await shown.command("/draft")
        await shown.until(lambda: isinstance(shown.app.screen, ModelPicker))
        await shown.until(lambda: lists(shown)[1].has_focus, "the drafts' focus")
        await shown.until(lambda: lists(shown)[1].option_count > 2)
        await shown.press("down", "down")
        await shown.until(lambda: about(shown) == "The draft is large for its target")
        await shown.press("enter")
        await shown.until(lambda: len(shown.script.loaded) == 2)
        assert shown.script.loaded[-1] == PairReference(OWL.reference, WREN.reference)


async def test_a_row_that_is_chosen_while_drafts_are_judged_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judging = Event()

    def judge_then(draft: str) -> Check:
        assert judging.wait(30)
        return judge(draft)

    judge_drafts(monkeypatch, judge_then)
    async with chat(pair=PairReference(OWL.reference)) as shown:
        await shown.command("/draft")
        await shown.until(lambda: isinstance(shown.app.screen, ModelPicker))
        await shown.until(lambda: lists(shown)[1].has_focus, "the drafts' focus")
        await shown.press("down")
        judging.set()
        await shown.until(lambda: lists(shown)[1].option_count > 2)
        assert lists(shown)[1].highlighted == 1


async def test_the_filter_and_a_path_that_is_typed(room: Room) -> None:
    room.pulling.release()
    async with chat() as shown:
        await pick(shown)
        shown.burst("wr")
        await shown.until(lambda: lists(shown)[0].option_count == 1)
        await shown.press("ctrl+u")
        await shown.until(lambda: lists(shown)[0].option_count == 5)
        shown.burst("user/else:Q4_K_M")
        await shown.until(lambda: "Enter opens it as a path or reference" in about(shown))
        await shown.press("enter")
        await shown.until(lambda: len(shown.script.loaded) == 2)
        assert shown.script.loaded[-1] == PairReference("user/else:Q4_K_M", "auto")


async def test_a_model_of_the_catalogue_is_downloaded_with_its_draft(room: Room) -> None:
    async with chat() as shown:
        await pick(shown)
        shown.burst("lynx")
        await shown.until(lambda: option_texts(lists(shown)[0]) == ["↓ lynx-7b  4.7 GB"])
        await shown.until(lambda: "to download from den/lynx-7b-gguf" in about(shown))
        await shown.press("enter", "enter", "enter")
        await shown.until(lambda: "5.0 MB of 10.0 MB" in shown.text)
        room.pulling.release()
        wanted = PairReference("lynx-7b", "den/lynx-1b-gguf:Q4_K_M")
        await shown.until(
            lambda: shown.app.chat_session.opened and shown.app.chat_session.opened.pair == wanted
        )
        assert room.pulled == ["lynx-7b", "den/lynx-1b-gguf:Q4_K_M"]
        assert shown.script.loaded[-1] == wanted


@pytest.mark.parametrize("key", ["escape", "ctrl+c"])
async def test_a_download_can_be_stopped(room: Room, key: str) -> None:
    async with chat() as shown:
        await shown.command("/model lynx-7b")
        await shown.until(lambda: "5.0 MB of 10.0 MB" in shown.text)
        await shown.press(key)
        await shown.until(lambda: not isinstance(shown.app.screen, DownloadScreen))
        room.pulling.release()
        await shown.settle()
        assert room.pulled == []
        assert len(shown.script.loaded) == 1


async def test_a_download_that_fails_says_why(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    fails = fail_with(LocalspecError("There is no network. Try again later."))
    monkeypatch.setattr(download, "pull", fails)
    async with chat() as shown:
        await shown.command("/model den/owls:Q8_0")
        await shown.until(lambda: "There is no network." in shown.text)
        await shown.press("escape")
        assert not isinstance(shown.app.screen, DownloadScreen)


async def test_a_broken_file_is_listed_with_its_problem_and_does_not_open() -> None:
    async with chat() as shown:
        await pick(shown)
        lists(shown)[0].focus()
        await shown.press("end", "up")
        await shown.until(lambda: about(shown) == "The file is truncated. Download it again.")
        await shown.press("enter", "right", "enter")  # there, and in the list of its drafts
        assert isinstance(shown.app.screen, ModelPicker)
        await shown.press("escape")
        assert len(shown.script.loaded) == 1


async def test_loading_shows_its_progress_and_can_be_cancelled() -> None:
    script = Script("From the owl.", "Still the owl.")
    loading = script.loading[WREN.reference] = Hold()
    async with chat(script, pair=PairReference(OWL.reference, "none")) as shown:
        await shown.send("hello")
        await shown.command(f"/model {WREN.reference}")
        await shown.until(lambda: loading.reached)
        await shown.until(lambda: "loading the model: " in shown.text, "progress")
        assert "Esc cancels" in shown.text
        await shown.press("escape")
        await shown.until(lambda: shown.app.conversation_display.doing is None, "the end of it")
        assert not shown.errors()
        assert script.loaded[-1] == PairReference(OWL.reference, "none")  # opened again
        assert "owl, no draft model" in shown.text
        await shown.send("are you there")
        assert shown.texts == ["hello", "From the owl.", "are you there", "Still the owl."]


async def test_the_model_chosen_is_open_next_time() -> None:
    async with chat() as shown:
        await shown.command(f"/model {OWL.reference}")
        await shown.until(lambda: len(shown.script.loaded) == 2)
        await shown.command("/draft none")
        await shown.until(lambda: len(shown.script.loaded) == 3)
        await shown.until(lambda: shown.app.conversation_display.doing is None)
    again = Script()
    async with chat(again):
        assert again.loaded == [PairReference(OWL.reference, "none")]

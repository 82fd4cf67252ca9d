"""Pictures of the chat.

After a wanted change: `pytest tests/tui -k snapshots --snapshot-update`, and look at them.
"""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from localspec.hub import catalog, local
from localspec.hub.catalog import Catalog
from localspec.pairing import rules
from localspec.pairing.rules import FAIL, OK, Check, PairVerdict
from localspec.tui.app import ChatApp
from localspec.tui.rendering import message_lines
from localspec.tui.screens.dialogs import ReadingScreen
from localspec.tui.screens.model_picker import ModelPicker
from localspec.tui.session.background_engine import PairReference
from localspec.tui.widgets import sidebar
from tests.tui.models import a_model, lynx
from tests.tui.pilots import Chat
from tests.tui.scripted import Script

pytestmark = pytest.mark.nightly

Compare = Callable[..., bool]
Story = Callable[[Chat], Awaitable[None]]

ANSWER = """\
The fox runs by **night**. Three things help it:

1. ears that hear a mouse under snow,
2. eyes that need little light,
3. a map of its own paths.

```python
def hunt(fox, field):
    for mouse in field:
        if fox.hears(mouse):
            return fox.jump(mouse)
```

> It is never in a hurry.
"""


@pytest.fixture(autouse=True)
def _the_same_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """No clock, and no memory of this process."""
    monkeypatch.setattr(message_lines, "_when", lambda _seconds: "12:34")
    monkeypatch.setattr(sidebar, "ago", lambda _seconds: "12:34")


@pytest.fixture(params=[(80, 24), (120, 40)])
def size(request: pytest.FixtureRequest) -> tuple[int, int]:
    found: tuple[int, int] = request.param
    return found


def looks_as_ever(
    compare: Compare, size: tuple[int, int], story: Story, answers: Sequence[str] = ()
) -> bool:
    pair = PairReference("/models/owl-8b.gguf", "/models/wren-1b.gguf")
    app = ChatApp(pair, engine=Script(*answers).engine)
    app.conversation_display.resident = lambda: 1234 << 20
    return compare(app, terminal_size=size, run_before=played(app, story))


def played(app: ChatApp, story: Story) -> Callable[[Pilot[None]], Awaitable[None]]:
    """What to do before the picture is taken."""

    async def play(pilot: Pilot[None]) -> None:
        shown = Chat(app, pilot)
        await shown.until_opened()
        await story(shown)
        app.prompt.cursor_blink = False
        for field in app.screen.query(Input):
            field.cursor_blink = False
        await shown.settle()

    return play


async def talk(shown: Chat) -> None:
    await shown.send("How does a fox hunt?")
    # Everything about conversations from before comes from the disk, a little later.
    await shown.until(lambda: len(shown.listed()) == 1)


def test_an_answer_and_its_figures(size: tuple[int, int], snap_compare: Compare) -> None:
    assert looks_as_ever(snap_compare, size, talk, [ANSWER])


def test_token_colours(size: tuple[int, int], snap_compare: Compare) -> None:
    async def story(shown: Chat) -> None:
        await talk(shown)
        await shown.command("/tokens rejected")

    assert looks_as_ever(snap_compare, size, story, [ANSWER])


def test_model_picker(
    size: tuple[int, int], snap_compare: Compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = [
        a_model(name, parameters * 5 // 8, parameters=parameters, quantization=quantization)
        for name, parameters, quantization in (
            ("owl-8b", 8_000_000_000, "Q4_K_M"),
            ("wren-1b", 1_000_000_000, "Q8_0"),
            ("crab-500m", 500_000_000, "Q8_0"),
        )
    ]
    monkeypatch.setattr(local, "local_models", lambda _folders: models)
    monkeypatch.setattr(rules, "judge", _judge)
    monkeypatch.setattr(catalog, "load", lambda: Catalog([lynx()]))

    async def story(shown: Chat) -> None:
        await shown.open(ModelPicker, "ctrl+o")
        await shown.until(lambda: "wren-1b fits owl-8b." in shown.text)

    assert looks_as_ever(snap_compare, size, story)


def test_keys(size: tuple[int, int], snap_compare: Compare) -> None:
    async def story(shown: Chat) -> None:
        await shown.open(ReadingScreen, "f1")

    assert looks_as_ever(snap_compare, size, story)


def test_a_light_theme(snap_compare: Compare, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLORFGBG", "0;15")

    async def story(shown: Chat) -> None:
        await talk(shown)
        await shown.command("/tokens on")

    assert looks_as_ever(snap_compare, (120, 40), story, [ANSWER])


def _judge(target: Path, draft: Path) -> PairVerdict:
    if draft.stem.startswith("crab"):
        return PairVerdict((Check("vocabulary", FAIL, "The vocabularies differ at token 7"),))
    return PairVerdict((Check("vocabulary", OK, "The vocabularies are the same"),))

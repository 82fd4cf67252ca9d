"""Pictures of the chat.

After a wanted change: `pytest tests/tui -k snapshots --snapshot-update`, and look at them.
"""

from collections.abc import Awaitable, Callable
from itertools import product

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from localspec.hub import catalog, local
from localspec.hub.catalog import Catalog
from localspec.pairing.rules import FAIL, OK, Check
from localspec.tui.app import ChatApp
from localspec.tui.rendering import message_lines
from localspec.tui.screens.dialogs import ReadingScreen
from localspec.tui.screens.model_picker import ModelPicker
from localspec.tui.session.background_engine import PairReference
from localspec.tui.widgets import sidebar
from tests.tui.models import a_model, judge_drafts, lynx
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
    """No clock, no memory of this process, and the same models."""
    monkeypatch.setattr(message_lines, "_when", lambda _seconds: "12:34")
    monkeypatch.setattr(sidebar, "ago", lambda _seconds: "12:34")
    models = [
        a_model("owl-8b", 5_000_000_000, parameters=8_000_000_000, quantization="Q4_K_M"),
        a_model("wren-1b", 625_000_000, parameters=1_000_000_000),
        a_model("crab-500m", 312_500_000, parameters=500_000_000),
    ]
    monkeypatch.setattr(local, "local_models", lambda _folders: models)
    judge_drafts(monkeypatch, _judge)
    monkeypatch.setattr(catalog, "load", lambda: Catalog([lynx()]))


def _judge(draft: str) -> Check:
    if draft.startswith("crab"):
        return Check("vocabulary", FAIL, "The vocabularies differ at token 7")
    return Check("vocabulary", OK, "The vocabularies are the same")


async def answer(shown: Chat) -> None:
    await shown.send("How does a fox hunt?")
    # Everything about conversations from before comes from the disk, a little later.
    await shown.until(lambda: len(shown.listed()) == 1)


async def rejected(shown: Chat) -> None:
    await answer(shown)
    await shown.command("/tokens rejected")


async def light(shown: Chat) -> None:
    await answer(shown)
    await shown.command("/tokens on")


async def picker(shown: Chat) -> None:
    await shown.open(ModelPicker, "ctrl+o")
    await shown.until(lambda: "wren-1b fits owl-8b." in shown.text)


async def keys(shown: Chat) -> None:
    await shown.open(ReadingScreen, "f1")


SMALL, LARGE = (80, 24), (120, 40)


@pytest.mark.parametrize(
    ("story", "size"),
    [*product((answer, rejected, picker, keys), (SMALL, LARGE)), (light, LARGE)],
    ids=lambda value: getattr(value, "__name__", None) or "{}x{}".format(*value),
)
def test_pictures(
    story: Story, size: tuple[int, int], snap_compare: Compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    if story is light:
        monkeypatch.setenv("COLORFGBG", "0;15")
    pair = PairReference("/models/owl-8b.gguf", "/models/wren-1b.gguf")
    app = ChatApp(pair, engine=Script(ANSWER).engine)
    app.conversation_display.resident = lambda: 1234 << 20

    async def play(pilot: Pilot[None]) -> None:
        """What to do before the picture is taken."""
        shown = Chat(app, pilot)
        await shown.until_opened()
        await story(shown)
        app.prompt.cursor_blink = False
        for field in app.screen.query(Input):
            field.cursor_blink = False
        await shown.settle()

    assert snap_compare(app, terminal_size=size, run_before=play)

"""The chat on a headless screen, and helpers to operate it."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

from textual import events
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import OptionList

from localspec.chat.conversation import ASSISTANT, Message
from localspec.tui.app import ChatApp
from localspec.tui.screens.dialogs import QuestionScreen
from localspec.tui.session.background_engine import PairReference
from tests.tui.scripted import Hold, Reply, Script

PATIENCE = 6_000
"""Polls of a condition, each of at least 10 ms, before a test gives up."""

KEYS = {" ": "space", "\n": "ctrl+j", "/": "slash", "?": "question_mark", ".": "full_stop"}


class Notice(NamedTuple):
    """A sentence that was shown over the chat."""

    text: str
    error: bool


@dataclass
class Chat:
    """A running chat. `notices`: all sentences shown so far; `copied`: all that went to the
    clipboard; `script`: what the engine does, unless it is a real one."""

    app: ChatApp
    pilot: Pilot[None]
    notices: list[Notice] = field(default_factory=list)
    copied: list[str] = field(default_factory=list)
    script: Script = field(default_factory=Script)

    async def until(self, condition: Callable[[], object], what: str = "") -> None:
        """Wait for a condition; on timeout, fail with the screen's text."""
        for _ in range(PATIENCE):
            if condition():
                return
            await self.pilot.pause(0.01)
        raise AssertionError(f"in vain: {what or condition}\n{self.notices}\n{self.text}")

    async def settle(self) -> None:
        """Process everything that is due."""
        await self.pilot.pause()
        await self.pilot.pause()
        await self.until(self.at_rest, "all laid out")

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.until(self.at_rest, "all that keys changed laid out")

    async def open(self, screen: type[Screen[Any]], *keys: str) -> None:
        """Press keys; wait for the screen that they open."""
        await self.press(*keys)
        await self.until(lambda: isinstance(self.app.screen, screen), screen.__name__)
        await self.settle()

    async def resize(self, width: int, height: int) -> None:
        await self.pilot.resize_terminal(width, height)
        screen = self.app.screen
        await self.until(lambda: screen.size == (width, height) and self.at_rest(), "resized")

    def at_rest(self) -> bool:
        """Whether no message is queued, and nothing needs drawing. The pilot takes an app that gets
        no processor time for an idle one."""
        if self.app._exit:
            return True
        screen = self.app.screen
        pumps = (self.app, *self.app.screen_stack, *screen.walk_children(with_self=False))
        waiting = any(not pump._message_queue.empty() or pump._next_callbacks for pump in pumps)
        return not (waiting or screen._layout_required or screen._dirty_widgets)

    def burst(self, text: str) -> None:
        """Type faster than anything is drawn."""
        for character in text:
            key = KEYS.get(character, character)
            self.app.post_message(events.Key(key, None if key == "ctrl+j" else character))

    async def type(self, text: str) -> None:
        before = self.app.prompt.text
        self.burst(text)
        await self.until(lambda: self.app.prompt.text == before + text, f"typed {text!r}")
        await self.settle()

    async def command(self, *lines: str, says: str = "", error: bool = True) -> None:
        """Run commands; wait for the notice that begins with `says`."""
        for line in lines:
            await self.type(line)
            # The list of completions would take Enter for itself.
            if self.app.prompt.completing:
                await self.press("escape")
            await self.press("enter")
        if says:
            await self.until_notice(says, error=error)

    async def send(self, *texts: str, answered: bool = True) -> None:
        for text in texts:
            await self.type(text)
            await self.press("enter")
            await self.until(partial(self.has, text), f"sent {text!r}")
            if answered:
                await self.until_answered()

    async def press_for(self, text: str, *keys: str) -> None:
        """Press keys, if any; wait for the resulting message, and for the answer's end."""
        await self.press(*keys)
        await self.until(lambda: self.has(text), f"said {text!r}")
        await self.until_answered()

    async def until_answered(self, hold: Hold | None = None) -> None:
        """Wait for the answer's end; an engine that waits at `hold` is let go on."""
        if hold is not None:
            hold.release()
        await self.until(lambda: self.app.chat_session.running is None, "the answer's end")
        await self.settle()

    async def until_notice(self, text: str, *, error: bool = True) -> None:
        """Wait for a sentence with this prefix."""
        await self.until(
            lambda: any(t.text.startswith(text) and t.error is error for t in self.notices), text
        )

    async def until_opened(self) -> None:
        """Wait for a model, and for the history."""
        await self.until(lambda: self.app.chat_session.opened, "a model")
        await self.until(lambda: self.listed() != [], "the history")

    async def choose(self, answer: str) -> None:
        """Answer the current or next question; the answer is chosen by its prefix."""
        await self.until(lambda: isinstance(self.app.screen, QuestionScreen), "a question")
        options = option_texts(self.app.screen.query_one(OptionList))
        number = next(n for n, text in enumerate(options) if text.startswith(answer))
        await self.press(*["down"] * number, "enter")
        await self.until(lambda: not isinstance(self.app.screen, QuestionScreen))

    @property
    def path(self) -> list[Message]:
        return self.app.chat_session.conversation.path()

    @property
    def texts(self) -> list[str]:
        return [message.content for message in self.path]

    @property
    def answer(self) -> Message:
        return next(m for m in reversed(self.path) if m.role == ASSISTANT)

    @property
    def selected(self) -> str:
        """The content of the selected message."""
        message = self.app.transcript.selected
        return "" if message is None else message.content

    def has(self, text: str) -> bool:
        """Whether a message of the shown branch has that text."""
        return text in self.texts

    def listed(self) -> list[str]:
        return option_texts(self.app.sidebar.query_one(OptionList))

    @property
    def text(self) -> str:
        """The screen's text, including dialogs and notices."""
        rows = self.app.screen._compositor.render_strips()
        return "\n".join(row.text.rstrip() for row in rows)

    def errors(self) -> list[str]:
        return [notice.text for notice in self.notices if notice.error]


def option_texts(options: OptionList) -> list[str]:
    prompts = (options.get_option_at_index(n).prompt for n in range(options.option_count))
    return [str(getattr(prompt, "plain", prompt)) for prompt in prompts]


@asynccontextmanager
async def chat(
    script: Script | None = None,
    *,
    size: tuple[int, int] = (120, 40),
    pair: PairReference | None = None,
    ready: bool = True,
    app: ChatApp | None = None,
    toasts: bool = False,
) -> AsyncIterator[Chat]:
    """Start the chat. `script`: what the engine does; see `Script`; `size`: cells of the screen;
    `pair`: what to open; None goes by the preferences; `ready`: wait until a model is open; `app`:
    instead of one with the scripted engine; `toasts`: show notices over the screen."""
    script = script or Script()
    app = app or ChatApp(pair, engine=script.engine)
    notices: list[Notice] = []
    copied: list[str] = []
    notify, copy = app.notify, app.copy_to_clipboard

    def watch_notice(message: str, **rest: Any) -> None:
        notices.append(Notice(message, rest.get("severity") == "error"))
        notify(message, **rest)

    def watch_copy(text: str) -> None:
        copied.append(text)
        copy(text)

    with (
        patch.object(app, "notify", watch_notice),
        patch.object(app, "copy_to_clipboard", watch_copy),
    ):
        async with app.run_test(size=size, notifications=toasts) as pilot:
            shown = Chat(app, pilot, notices, copied, script)
            if ready:
                await shown.until_opened()
            yield shown


@asynccontextmanager
async def answering(
    text: str, at: int, *, size: tuple[int, int] = (120, 40)
) -> AsyncIterator[tuple[Chat, Hold]]:
    """A chat whose first answer waits before its word `at`."""
    hold = Hold()
    async with chat(Script(Reply(text, {at: hold})), size=size) as shown:
        await shown.send("count", answered=False)
        await shown.until(lambda: hold.reached)
        yield shown, hold

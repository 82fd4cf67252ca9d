"""The app as its control sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from textual.app import App
from textual.widget import Widget
from textual.widgets import Static

from localspec.chat.conversation import Attachment, Conversation
from localspec.errors import LocalspecError
from localspec.history.writer import HistoryWriter
from localspec.text import harmless
from localspec.tui import preferences
from localspec.tui.preferences import Preferences
from localspec.tui.session.background_engine import BackgroundEngine
from localspec.tui.session.conversing import Conversing
from localspec.tui.session.events import PairReference
from localspec.tui.widgets.composer import Composer
from localspec.tui.widgets.figures_panel import FiguresPanel
from localspec.tui.widgets.prompt_input import PromptInput
from localspec.tui.widgets.sidebar import Sidebar
from localspec.tui.widgets.transcript import Transcript

if TYPE_CHECKING:
    from textual.notifications import SeverityLevel

W = TypeVar("W", bound=Widget)
Panel = Sidebar | FiguresPanel
_PANELS: dict[type[Panel], str] = {Sidebar: "sidebar", FiguresPanel: "figures"}
"""Their names in the preferences."""

WIDTHS = [(0, "-narrow"), (96, "-middling"), (132, "-wide"), (170, "-huge")]
HEIGHTS = [(0, "-tiny"), (9, "-low"), (16, "-high")]
"""Columns and rows from which the screen has a class, for `styles.tcss`."""


class Host(App[None]):
    """What all parts use; `localspec.tui.app.ChatApp` completes it. `given`: sampling, longest
    answer and system prompt of the command line; `chosen`: the pair that the user chose last."""

    preferences: Preferences
    store: HistoryWriter
    engine: BackgroundEngine
    conversing: Conversing
    offline: bool | None
    given: tuple[dict[str, float | int], int | None, str | None]
    chosen: PairReference | None = None

    # The parts of the chat's screen, also while a dialog is open over it

    @property
    def transcript(self) -> Transcript:
        return self.part(Transcript)

    @property
    def composer(self) -> Composer:
        return self.part(Composer)

    @property
    def prompt(self) -> PromptInput:
        return self.part(PromptInput)

    @property
    def sidebar(self) -> Sidebar:
        return self.part(Sidebar)

    @property
    def narrow(self) -> bool:
        """Whether there is no room for a panel beside the conversation."""
        return self.screen_stack[0].has_class("-narrow")

    def part(self, kind: type[W]) -> W:
        return self.screen_stack[0].query_one(kind)

    def line(self, selector: str) -> Static:
        return self.screen_stack[0].query_one(selector, Static)

    def tell(self, text: str, *, error: bool = False) -> None:
        severity: SeverityLevel = "error" if error else "information"
        self.notify(harmless(text), severity=severity, markup=False, timeout=8)

    def attempt(self, action: Callable[[], object]) -> None:
        try:
            action()
        except LocalspecError as error:
            self.tell(str(error), error=True)

    def ask(
        self, text: str, answers: Sequence[tuple[str, str]], then: Callable[[str], object]
    ) -> None:
        """Ask a question; `then` gets the id of the chosen answer, and nothing for Escape."""
        from localspec.tui.screens.dialogs import QuestionScreen

        def answered(answer: str | None) -> None:
            if answer is not None:
                self.attempt(partial(then, answer))

        self.push_screen(QuestionScreen(text, answers), answered)

    def copy(self, text: str) -> None:
        self.copy_to_clipboard(text)
        self.tell(f"Copied {len(text):,} characters.")

    def save_preferences(self) -> None:
        trouble = preferences.save(self.preferences)
        if trouble is not None:
            self.tell(trouble, error=True)

    # Panels: beside the conversation, or over it on a narrow screen

    def restore_panels(self) -> None:
        for kind, name in _PANELS.items():
            self._fold(kind, getattr(self.preferences, name))

    def toggle(self, kind: type[Panel]) -> None:
        panel = self.part(kind)
        show = not panel.display
        if self.narrow:
            panel.set_class(show, "over")
            self.fit_panels()
        else:
            self._fold(kind, show)
            setattr(self.preferences, _PANELS[kind], show)
            self.save_preferences()
        if not show and not self.prompt.has_focus:
            self.prompt.focus()

    def fit_panels(self) -> None:
        """Panels over the conversation end where it does: the input stays in view."""
        for kind in _PANELS:
            panel = self.part(kind)
            over = panel.has_class("over")
            panel.styles.height = self.transcript.outer_size.height if over else None

    def uncover(self) -> None:
        """Close what lies over the conversation, and focus the input."""
        for kind in _PANELS:
            self.part(kind).remove_class("over")
        # At once: `focus` waits its turn, and would take what has been gone to meanwhile.
        self.prompt.screen.set_focus(self.prompt)

    def _fold(self, kind: type[Panel], show: bool | None) -> None:
        """Beside the conversation; None goes by the width."""
        panel = self.part(kind)
        panel.set_class(show is True, "open")
        panel.set_class(show is False, "shut")

    # What is shown, and by which models

    def show(
        self, conversation: Conversation, message: str | None = None, *, uncover: bool = True
    ) -> None:
        """Show this conversation and message; `uncover` to write in it at once."""
        hidden = message is not None and message not in {m.id for m in conversation.path()}
        if message is not None and hidden and message in conversation.messages:
            conversation.select(message)
        self.composer.leave_edit()
        self.conversing.begin(conversation)
        self.transcript.select_message(message)
        if uncover:
            self.uncover()

    def new_conversation(self) -> Conversation:
        """An empty one, with the settings of preferences and command line."""
        stored = self.preferences
        sampling, max_tokens, system = self.given
        return Conversation(
            system=system or stored.system,
            sampling={**stored.sampling, **sampling},
            max_tokens=max_tokens or stored.max_tokens,
        )

    def open(self, pair: PairReference) -> None:
        """Open this pair, now and, if that works, next time."""
        self.chosen = pair
        self.engine.open(pair)

    def send(
        self, text: str, attached: Sequence[Attachment], instead_of: str | None = None
    ) -> object:
        """Send a message, as a branch of that one."""
        raise NotImplementedError

    def show_tokens(self, tokens: bool, rejected: bool) -> None:
        """How answers are shown, now and next time."""
        self.transcript.tokens, self.transcript.rejected = tokens, rejected
        self.preferences.tokens, self.preferences.rejected = tokens, rejected
        self.save_preferences()

"""Dialogs over the screen: a question, something to read, settings, and a download."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from rich.table import Table
from rich.text import Text
from textual import on, work
from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.command import CommandList, CommandPalette
from textual.containers import Grid, Vertical, VerticalScroll
from textual.events import Mount
from textual.message import Message
from textual.screen import ModalScreen, Screen
from textual.widget import Widget
from textual.widgets import Button, Checkbox, Footer, Input, Label, OptionList, ProgressBar, Static
from textual.widgets.option_list import Option

from localspec import SamplingParams
from localspec.chat.conversation import Conversation
from localspec.errors import Cancelled, UsageError, describe
from localspec.text import gigabytes, harmless
from localspec.tui.rendering.palette import Palette
from localspec.tui.session.commands import COMMANDS, MAX_TOKENS, SETTINGS, setting
from localspec.tui.widgets.inputs import Options, TextInput
from localspec.worker_threads import run_in_thread

if TYPE_CHECKING:
    from localspec.hub.download import PullProgress

T = TypeVar("T")

_ABOUT = {
    "temperature": "0 is greedy",
    "top_k": "0 keeps all",
    "top_p": "1 keeps all",
    "min_p": "0 keeps all",
    "repeat_penalty": "1 is off",
    "frequency_penalty": "0 is off",
    "presence_penalty": "0 is off",
    "penalty_last_n": "-1 counts all",
    "seed": "empty is random",
    MAX_TOKENS: "tokens of an answer",
}

_WIDTHS = [(0, "-narrow"), (64, "-wide")]

_EVERY = 0.2
"""Seconds between two redraws of a download."""


class _ClosedOnce(Screen[T]):
    """A screen that can be dismissed more than once."""

    def dismiss(self, result: T | None = None) -> AwaitComplete:
        # A second key may have been queued when the first one closed it.
        if not self.is_current:
            return AwaitComplete()
        self.workers.cancel_node(self)
        return super().dismiss(result)


class Dialog(ModalScreen[T], _ClosedOnce[T]):
    """A modal screen with a line of its keys. Its first widget has the focus."""

    @on(Mount)
    def _show_keys(self) -> None:
        if self.is_attached:  # not closed before it was shown
            self.mount(Footer(compact=True, show_command_palette=False))
            self.focus_next()


class CommandScreen(CommandPalette, _ClosedOnce[None]):
    """Textual's list of commands, also for keys before it is drawn and after it is closed."""

    @on(Mount)
    def _begin(self, event: Mount) -> None:
        if not self.is_attached:
            event.prevent_default()

    @on(Input.Submitted)
    @on(OptionList.OptionSelected)
    def _take_one(self, event: Message) -> None:
        if not self.is_current:
            event.prevent_default()

    def _action_command_list(self, action: str) -> None:
        commands = self.query_one(CommandList)
        if not action.startswith("page_") or (commands.highlighted or 0) in commands._index_to_line:
            super()._action_command_list(action)


class QuestionScreen(Dialog[str | None]):
    """A question; its result is the id of an answer, None for Escape. `answers`: texts by id."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "Cancel")]

    def __init__(self, text: str, answers: Mapping[str, str]) -> None:
        super().__init__()
        self._text, self._answers = text, answers

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(harmless(self._text), markup=False)
            yield Options(*(Option(says, id=id) for id, says in self._answers.items()))

    @on(OptionList.OptionSelected)
    def _answer(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_id)


class ReadingScreen(Dialog[None]):
    """A scrollable text, made of widgets."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,f1,q,w,enter", "dismiss(None)", "Close")
    ]

    def __init__(self, *parts: Widget) -> None:
        super().__init__()
        self._parts = parts

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog wide"):
            yield from self._parts


class SettingsScreen(Dialog[tuple[dict[str, Any], bool] | None]):
    """A dialog for a conversation's settings; its result is None for Escape, else the values of
    `system`, `sampling` and `max_tokens`, and whether they are for new conversations, too. `to`: id
    of the field to focus."""

    HORIZONTAL_BREAKPOINTS = _WIDTHS
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Cancel"),
        Binding("ctrl+s", "save", "Save", priority=True),
    ]

    def __init__(self, conversation: Conversation, *, to: str = "system") -> None:
        super().__init__()
        self._conversation, self._to = conversation, to

    def compose(self) -> ComposeResult:
        defaults, now = {f.name: f.default for f in fields(SamplingParams)}, self._conversation
        values: dict[str, Any] = {**now.sampling, MAX_TOKENS: now.max_tokens}
        with VerticalScroll(classes="dialog wide"):
            yield Label("System prompt")
            yield TextInput(now.system or "", id="system", compact=True, tab_behavior="focus")
            with Grid(id="sampling"):
                for name in SETTINGS:
                    default = defaults.get(name)
                    value = values.get(name)
                    yield Label(f"{name.replace('_', ' ')}\n[dim]{_ABOUT.get(name, '')}[/]")
                    yield Input(
                        "" if value is None else str(value),
                        placeholder="none" if default is None else f"{default}",
                        id=name,
                        compact=True,
                    )
            yield Checkbox("for new conversations, too", id="always", compact=True)
            yield Static("", id="problem", markup=False)
            yield Button("Save (Ctrl+S)", id="save", variant="primary", compact=True)

    def on_mount(self) -> None:
        self.query_one(f"#{self._to}").focus()

    @on(Input.Submitted)
    @on(Button.Pressed)
    def action_save(self) -> None:
        """Check all fields, and close the dialog if they are valid."""
        found: dict[str, Any] = {}
        for field in self.query(Input):
            assert field.id is not None
            try:
                name, value = setting(f"{field.id} {field.value.strip()}")
            except UsageError as error:
                self.query_one("#problem", Static).update(str(error))
                field.focus()
                return
            if value is not None:
                found[name] = value
        system = self.query_one("#system", TextInput).text.strip()
        chosen = {"system": system or None, MAX_TOKENS: found.pop(MAX_TOKENS, None)}
        self.dismiss(({**chosen, "sampling": found}, self.query_one(Checkbox).value))


class DownloadScreen(Dialog[bool]):
    """Downloads references in order; its result is whether all were downloaded. A download stops
    when the screen is closed, and keeps the part so far."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(False)", "Stop the download")
    ]

    def __init__(self, references: Sequence[str]) -> None:
        super().__init__()
        self._references = references
        self._shown = 0.0

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(f"Downloading {harmless(' and '.join(self._references))}", markup=False)
            yield ProgressBar(id="progress")
            yield Static("Looking for the files …", id="about", markup=False)

    @work(group="download")
    async def on_mount(self) -> None:
        from localspec.hub import download

        try:
            for reference in self._references:
                # The user has chosen a model to download, so the network may be used.
                pull = partial(download.pull, reference, offline=False, progress=self._progress)
                await run_in_thread("download", partial(pull, notify=self._notify))
        except Exception as error:  # an unhandled error would end the app
            self.query_one(ProgressBar).display = False
            self._about(f"{describe(error)[0]} Esc closes this.")
        else:
            self.dismiss(True)

    def _progress(self, progress: PullProgress) -> None:
        """Show progress. Called in the download thread, which ends with the screen."""
        if not self.is_running:
            raise Cancelled("The download was stopped.")
        now = monotonic()
        if now - self._shown >= _EVERY or progress.done == progress.total:
            self._shown = now
            self.app.call_from_thread(self._show, progress)

    def _notify(self, sentence: str) -> None:
        """Show a choice or a wait. Called in the download thread."""
        if self.is_running:
            self.app.call_from_thread(self._about, sentence)

    def _show(self, progress: PullProgress) -> None:
        if not self.is_attached:
            return
        self.query_one(ProgressBar).update(total=progress.total, progress=progress.done)
        doing = "checking" if progress.doing == "check" else "downloading"
        which = f" ({progress.number} of {progress.of})" if progress.of > 1 else ""
        self._about(
            f"{doing} {progress.file}{which}: {gigabytes(progress.done)} of "
            f"{gigabytes(progress.total)}"
        )

    def _about(self, text: str) -> None:
        if self.is_attached:
            self.query_one("#about", Static).update(harmless(text))


def keys_of(screen: Screen[Any], display: Callable[[Binding], str]) -> list[Static]:
    """Tables of the active keys, the focused widget's first, without those of standard lists and
    fields; and a table of the commands."""
    places: dict[str, dict[str, str]] = {}
    for active in screen.active_bindings.values():
        binding, kind = active.binding, vars(type(active.node))
        place = kind.get("BINDING_GROUP_TITLE")
        bound = [b.key.split(",") for b in kind.get("BINDINGS", ()) if isinstance(b, Binding)]
        own = any(binding.key in keys for keys in bound)
        if not (own and place and binding.description and active.enabled):
            continue
        keys = places.setdefault(place, {})
        key, about = display(binding), binding.tooltip or binding.description
        before = keys.get(about)
        keys[about] = key if before is None else f"{before}  {key}"
    tables = sorted(places.items(), key=lambda item: item[0] == screen.app.BINDING_GROUP_TITLE)
    tables.append(("Commands", {c.about: f"/{c.name} {c.arguments}".strip() for c in COMMANDS}))
    palette = Palette.of(screen.app)
    return [Static(_table(title, rows, palette), classes="keys") for title, rows in tables]


def _table(title: str, rows: Mapping[str, str], palette: Palette) -> Table:
    """A table of keys. `rows`: keys by description."""
    table = Table(
        box=None,
        title=Text(title, palette.style("primary", bold=True)),
        title_justify="left",
        show_header=False,
        pad_edge=False,
        expand=True,
    )
    table.add_column(no_wrap=True, style=palette.style("accent"))
    table.add_column(ratio=1)
    for about, key in rows.items():
        table.add_row(Text(key), Text(about))
    return table

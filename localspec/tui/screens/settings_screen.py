"""The dialog for system prompt and sampling parameters of the conversation."""

from dataclasses import dataclass, fields
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Grid, VerticalScroll
from textual.widgets import Button, Checkbox, Input, Label, Static, TextArea

from localspec import SamplingParams
from localspec.errors import UsageError
from localspec.tui.screens.dialogs import Dialog
from localspec.tui.session.commands import MAX_TOKENS, SETTINGS, setting

ABOUT = {
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


@dataclass(frozen=True, slots=True)
class ChosenSettings:
    """The result of `SettingsScreen`. `sampling`: values that differ from the defaults, including
    MAX_TOKENS; `always`: also for new conversations."""

    system: str | None
    sampling: dict[str, float | int]
    always: bool


class SettingsScreen(Dialog[ChosenSettings | None]):
    """A dialog for settings; its result is None for Escape. `to`: id of the field to focus."""

    HORIZONTAL_BREAKPOINTS = _WIDTHS
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Cancel"),
        Binding("ctrl+s", "save", "Save", priority=True),
    ]

    def __init__(
        self, system: str | None, sampling: dict[str, float | int], *, to: str = "system"
    ) -> None:
        super().__init__()
        self._system, self._sampling, self._to = system, sampling, to

    def compose(self) -> ComposeResult:
        defaults = {f.name: f.default for f in fields(SamplingParams)}
        with VerticalScroll(classes="dialog wide"):
            yield Label("System prompt")
            yield TextArea(self._system or "", id="system", compact=True, tab_behavior="focus")
            with Grid(id="sampling"):
                for name in SETTINGS:
                    default = defaults.get(name)
                    value = self._sampling.get(name)
                    yield Label(f"{name.replace('_', ' ')}\n[dim]{ABOUT.get(name, '')}[/]")
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
        found: dict[str, float | int] = {}
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
        system = self.query_one("#system", TextArea).text.strip()
        self.dismiss(ChosenSettings(system or None, found, self.query_one(Checkbox).value))

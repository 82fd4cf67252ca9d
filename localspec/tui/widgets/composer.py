"""The message being written: text, files, completions, and what it replaces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import OptionList, Static, TextArea
from textual.widgets.option_list import Option

from localspec.chat.conversation import Attachment
from localspec.text import harmless
from localspec.tui.rendering.palette import Palette
from localspec.tui.session import commands
from localspec.tui.session.commands import CommandCompletion
from localspec.tui.widgets.prompt_input import PromptInput

Known = Mapping[str, Callable[[], Iterable[str]]]
"""As for `commands.complete`."""


class Completions(OptionList, can_focus=False):
    """Shows completions, one of them chosen; the keys stay with the input."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, compact=True)
        self._all: Sequence[CommandCompletion] = ()
        self.display = False

    def offer(self, completions: Sequence[CommandCompletion]) -> None:
        self._all = completions
        self.display = bool(completions)
        self.clear_options()
        if not completions:
            return
        palette = Palette.of(self.app)
        width = max(len(c.label) for c in completions) + 2
        for completion in completions:
            text = Text(completion.label.ljust(width), palette.style("accent"), no_wrap=True)
            text.append(completion.about, palette.faint)
            self.add_option(Option(text))
        self.highlighted = 0

    @property
    def chosen(self) -> CommandCompletion | None:
        """What Enter would take."""
        return None if self.highlighted is None else self._all[self.highlighted]


class Composer(Vertical):
    """The input, and what is shown above it. `attached`: files for the next message; `editing`: id
    of the message that the next one is a branch of; None for a new one."""

    def __init__(self, known: Callable[[], Known], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.attached: list[Attachment] = []
        self.editing: str | None = None
        self._known = known
        self._put_aside = ""
        self._completed = ""
        self._begun = False

    def compose(self) -> ComposeResult:
        yield Completions(id="completions")
        yield Static(id="attached", markup=False)
        yield PromptInput(id="input")

    @property
    def prompt(self) -> PromptInput:
        return self.query_one(PromptInput)

    def taken(self) -> tuple[list[Attachment], str | None]:
        """The message is sent: its files, and what it is a branch of."""
        attached, self.attached = self.attached, []
        instead_of = self.editing
        self.leave_edit()
        self._draw()
        return attached, instead_of

    def attach(self, attachment: Attachment) -> None:
        self.attached.append(attachment)
        self._draw()

    def detach(self) -> None:
        self.attached.clear()
        self._draw()

    def begin_edit(self, message: str, text: str) -> None:
        if self.editing is None:
            self._put_aside = self.prompt.text
        self.editing = message
        self.prompt.put(text)
        self.prompt.focus()
        self._draw()

    def leave_edit(self) -> None:
        if self.editing is not None:
            self.editing = None
            self.prompt.put(self._put_aside)
            self._draw()

    def escape(self) -> bool:
        """Close the completions, else leave an edit; False if there was neither."""
        if self.query_one(Completions).display:
            self._offer([])
        elif self.editing is not None:
            self.leave_edit()
        else:
            return False
        return True

    @on(TextArea.Changed)
    def _complete(self) -> None:
        line = self._completed = self.prompt.text
        offered = commands.complete(line, self._known()) if line[:1] == "/" else []
        if len(offered) == 1 and offered[0].text == line:
            offered = []
        self._offer(offered)
        if bool(line) != self._begun:
            self._begun = bool(line)
            self.prompt.refresh_bindings()

    @on(PromptInput.Choose)
    def _choose(self, event: PromptInput.Choose) -> None:
        completions = self.query_one(Completions)
        if self._completed != self.prompt.text:
            self._complete()  # keys were faster than the list
        chosen = completions.chosen
        if chosen is None and not event.step:
            self._send()
        elif event.step < 0:
            completions.action_cursor_up()
        elif event.step:
            completions.action_cursor_down()
        elif chosen is not None:
            whole = chosen.text == self.prompt.text.strip() or not chosen.text.endswith((" ", "/"))
            self.prompt.put(chosen.text)
            if whole:
                self._offer([])
                if chosen.about:  # a command without arguments: nothing is left to write
                    self._send()

    @on(OptionList.OptionSelected)
    def _clicked(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self._choose(PromptInput.Choose(0))
        self.prompt.focus()

    def _send(self) -> None:
        # In the input's own turn: a message that its parent has it send would end at the parent.
        self.prompt.call_later(self.prompt.action_send)

    def _offer(self, offered: list[CommandCompletion]) -> None:
        self.query_one(Completions).offer(offered)
        self.prompt.completing = bool(offered)

    def _draw(self) -> None:
        line = self.query_one("#attached", Static)
        parts = [f"+ {harmless(a.name)}" for a in self.attached]
        if self.editing is not None:
            parts.insert(0, "editing: Enter sends it as a branch, Esc leaves it")
        line.set_class(bool(parts), "shown")
        line.update(" · ".join(parts))
        self.prompt.set_class(self.editing is not None, "editing")

"""The message being written: text, files, completions, and what it replaces."""

from __future__ import annotations

from collections.abc import Callable

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import OptionList, Static

from localspec.chat.conversation import Attachment
from localspec.text import harmless
from localspec.tui.widgets.prompt_input import Completions, Known, PromptInput


class Composer(Vertical):
    """The input, and what is shown above it. `attached`: files for the next message; `editing`: id
    of the message that the next one is a branch of; None for a new one."""

    def __init__(self, known: Callable[[], Known], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.attached: list[Attachment] = []
        self.editing: str | None = None
        self._completions = Completions(known, id="completions")
        self._put_aside = ""

    def compose(self) -> ComposeResult:
        yield self._completions
        yield Static(id="attached", markup=False)
        yield PromptInput(self._completions, id="input")

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

    def put_away(self) -> None:
        """Clear the text, which Up brings back, and leave an edit."""
        self.prompt.accepted(self.prompt.text)
        self.leave_edit()

    def leave_edit(self) -> None:
        if self.editing is not None:
            self.editing = None
            self.prompt.accepted(self.prompt.text)
            self.prompt.put(self._put_aside)
            self._draw()

    def escape(self) -> bool:
        """Close the completions, else leave an edit; False if there was neither."""
        if self._completions.display:
            self.prompt.close_completions()
        elif self.editing is not None:
            self.leave_edit()
        else:
            return False
        return True

    @on(events.Paste)
    def _pasted(self, event: events.Paste) -> None:
        self.attach(Attachment(f"pasted text ({len(event.text):,} characters)", event.text))

    @on(OptionList.OptionSelected)
    def _clicked(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.prompt.action_send()
        self.prompt.focus()

    def _draw(self) -> None:
        line = self.query_one("#attached", Static)
        parts = [f"+ {harmless(a.name)}" for a in self.attached]
        if self.editing is not None:
            parts.insert(0, "editing: Enter sends it as a branch, Esc leaves it")
        line.set_class(bool(parts), "shown")
        line.update(" · ".join(parts))
        self.prompt.attached = bool(self.attached)
        self.prompt.set_class(self.editing is not None, "editing")

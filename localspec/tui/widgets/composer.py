"""The message being written: text, files, completions, and the message it edits."""

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import OptionList, Static

from localspec.chat.conversation import Attachment
from localspec.text import harmless
from localspec.tui.widgets.prompt_input import Completions, Known, PromptInput


class Composer(Vertical):
    """The input, with completions and attachments above it. `attached`: files for the next message;
    `editing`: id of the message that is being edited; None for a new one."""

    def __init__(self, known: Known, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.attached: list[Attachment] = []
        self.editing: str | None = None
        self._completions = Completions(known, id="completions")
        self._attached_line = Static(id="attached", markup=False)
        self.prompt = PromptInput(self._completions, id="input")
        self._stashed = ""

    def compose(self) -> ComposeResult:
        yield self._completions
        yield self._attached_line
        yield self.prompt

    def take_attachments(self) -> tuple[list[Attachment], str | None]:
        """Remove and return the message's files and the id of the edited message, for sending."""
        attached, self.attached = self.attached, []
        instead_of = self.editing
        self.end_edit()
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
            self._stashed = self.prompt.text
        self.editing = message
        self.prompt.set_text(text)
        self.prompt.focus()
        self._draw()

    def stash(self) -> None:
        """Clear the text, which Up restores, and end an edit."""
        self.prompt.remember_sent(self.prompt.text)
        self.end_edit()

    def end_edit(self) -> None:
        if self.editing is not None:
            self.editing = None
            self.prompt.remember_sent(self.prompt.text)
            self.prompt.set_text(self._stashed)
            self._draw()

    def escape(self) -> bool:
        """Close the completions, else end an edit; returns False if there was neither."""
        if self._completions.display:
            self.prompt.close_completions()
        elif self.editing is not None:
            self.end_edit()
        else:
            return False
        return True

    @on(events.Paste)
    def _pasted(self, event: events.Paste) -> None:
        text = event.text.replace("\r\n", "\n").replace("\r", "\n")  # terminals send returns
        self.attach(Attachment(f"pasted text ({len(text):,} characters)", text))

    @on(OptionList.OptionSelected)
    def _clicked(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.prompt.action_send()
        self.prompt.focus()

    def _draw(self) -> None:
        parts = [f"+ {harmless(a.name)}" for a in self.attached]
        if self.editing is not None:
            parts.insert(0, "editing: Enter sends it as a branch, Esc cancels")
        self._attached_line.set_class(bool(parts), "shown")
        self._attached_line.update(" · ".join(parts))
        self.prompt.attached = bool(self.attached)
        self.prompt.set_class(self.editing is not None, "editing")

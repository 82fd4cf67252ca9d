"""The message being written: text with a history and completions, files, and the message that it
edits."""

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from rich.text import Text
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.reactive import var
from textual.widgets import OptionList, Static, TextArea
from textual.widgets.option_list import Option

from localspec.chat.conversation import Attachment
from localspec.chat.titles import one_line
from localspec.tui.rendering.palette import Palette
from localspec.tui.session import commands
from localspec.tui.session.commands import CommandCompletion
from localspec.tui.widgets.inputs import Options, TextInput

Known = Callable[[], Mapping[str, Sequence[str]]]
"""Returns values as for `commands.complete`."""
_LONG_PASTE = 20_000
"""Characters from which a pasted text becomes an attachment: the input wraps a long line again for
each key and each row."""


class Completions(Options, can_focus=False):
    """A list of completions with one highlighted; the input keeps the focus."""

    def __init__(self, known: Known) -> None:
        super().__init__(id="completions", compact=True)
        self._known = known
        self._all: Sequence[CommandCompletion] = ()
        self.display = False

    def offer(self, line: str) -> bool:
        """Show completions of a line; returns whether there are any."""
        completions = commands.complete(line, self._known()) if line[:1] == "/" else []
        self._all = completions = [] if [c.text for c in completions] == [line] else completions
        self.display = bool(completions)
        self.clear_options()
        if not completions:
            return False
        palette = Palette.of(self.app)
        width = max(len(c.label) for c in completions) + 2
        for completion in completions:
            text = Text(completion.label.ljust(width), palette.style("accent"))
            text.append(completion.about, palette.faint)
            self.add_option(Option(text))
        self.highlighted = 0
        return True

    @property
    def chosen(self) -> CommandCompletion:
        """The highlighted completion, which Enter accepts."""
        return self._all[self.highlighted or 0]


class PromptInput(TextInput):
    """The input: Enter sends, Ctrl+J inserts a line break, arrows recall sent texts at the first
    and last line. `send`: takes a text, or a command; `resume`: opens the last conversation.
    `completions`: to be shown above it."""

    BINDING_GROUP_TITLE = "Input"
    BINDINGS: ClassVar[list[BindingType]] = [
        # `check_action` enables one of them; the footer shows it.
        Binding("enter", "take", "Complete"),
        Binding("enter", "resume", "Continue"),
        Binding("enter", "send", "Send"),
        Binding("ctrl+j,shift+enter,alt+enter", "newline", "New line"),
        Binding("up", "up", "Previous message", show=False),
        Binding("down", "down", "Next message", show=False),
        Binding("tab", "complete", "Complete, or next panel", show=False),
        Binding("alt+left,alt+b", "cursor_word_left", show=False),
        Binding("alt+right,alt+f", "cursor_word_right", show=False),
        Binding("alt+d,ctrl+delete", "delete_word_right", show=False),
        Binding("ctrl+d", "leave", "Quit, if the input is empty", show=False),
    ]

    completing: var[bool] = var(False, bindings=True)
    resumable: var[bool] = var(False, bindings=True)
    """Whether Enter in the empty input opens the last conversation."""
    attached: var[bool] = var(False, bindings=True)
    """Whether files are attached, which can be sent without a text."""

    def __init__(
        self, known: Known, send: Callable[[str], object], resume: Callable[[], object]
    ) -> None:
        super().__init__(
            id="input",
            soft_wrap=True,
            compact=True,
            highlight_cursor_line=False,
            placeholder="Write a message; / for commands, ? for keys",
        )
        self._sent: list[str] = []
        self._position = 0  # index of the shown text; after the last one, the draft
        self._changed: dict[int, str] = {}
        self.completions = Completions(known)
        self._send, self._resume = send, resume
        self._completed = ""

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "take":
            return self.completing
        if action == "resume":
            return self.resumable and not self.text and not self.attached
        if action in ("cursor_page_up", "cursor_page_down"):  # these scroll the conversation
            return False
        return super().check_action(action, parameters)

    def remember(self, texts: Sequence[str]) -> None:
        """Set the texts sent before, oldest first."""
        self._sent = [text for text in texts if text.strip()]
        self._position, self._changed = len(self._sent), {}

    def set_text(self, text: str) -> None:
        self.text = text
        self.move_cursor(self.document.end)

    def action_send(self) -> None:
        self._complete()  # keys may have arrived before the list was updated
        if self.completing and not self._accept_completion():
            return
        text = self.text
        if text.strip() or self.attached:
            self._send(text)
        elif self.resumable and not text:
            self._resume()

    # The same action under the names that the footer shows.
    action_take = action_resume = action_send

    def remember_sent(self) -> None:
        """Remember the text as sent, and clear it."""
        if self.text.strip() and self._sent[-1:] != [self.text]:
            self._sent.append(self.text)
        self._position, self._changed = len(self._sent), {}
        self.set_text("")

    def action_undo(self) -> None:
        before = self.text
        super().action_undo()
        # With nothing to undo, Ctrl+Z suspends the program, as is usual in a terminal.
        if not before and not self.text:
            self.app.action_suspend_process()

    def action_newline(self) -> None:
        self.insert("\n")

    def action_complete(self) -> None:
        if self.completing:
            self.action_send()
        else:
            self.screen.focus_next()

    def action_leave(self) -> None:
        if self.text:
            self.action_delete_right()
        else:
            self.app.exit()

    def action_up(self) -> None:
        if self.completing:
            self.completions.action_cursor_up()
        elif self.navigator.is_first_wrapped_line(self.cursor_location):
            self._recall(-1)
        else:
            self.action_cursor_up()

    def action_down(self) -> None:
        if self.completing:
            self.completions.action_cursor_down()
        elif self.navigator.is_last_wrapped_line(self.cursor_location):
            self._recall(1)
        else:
            self.action_cursor_down()

    def _recall(self, step: int) -> None:
        """Show the previous or next sent text; edits of texts are kept until one is sent."""
        texts, at = [*self._sent, ""], self._position + step
        if 0 <= at < len(texts):
            self._changed[self._position], self._position = self.text, at
            self.set_text(self._changed.get(at, texts[at]))
            self._complete()
            self.close_completions()  # in which the arrows would move
        else:
            (self.action_cursor_up if step < 0 else self.action_cursor_down)()

    @on(TextArea.Changed)
    def _complete(self) -> None:
        line, before = self.text, self._completed
        if line == before:
            return
        self._completed = line
        self.completing = self.completions.offer(line)
        if bool(line) != bool(before):
            self.refresh_bindings()

    def close_completions(self) -> None:
        self.completing = self.completions.offer("")

    def _accept_completion(self) -> bool:
        """Accept the highlighted completion; returns whether it is a complete command to send."""
        chosen, before = self.completions.chosen, self.text
        self.set_text(chosen.text)
        self._complete()
        if chosen.text.endswith((" ", "/")):
            return False
        self.close_completions()
        return bool(chosen.about) or chosen.text == before  # a command without arguments, or typed

    async def _on_paste(self, event: events.Paste) -> None:
        if len(event.text) < _LONG_PASTE:
            event.stop()  # longer ones bubble to `Composer`
        else:
            event.prevent_default()

    async def _on_key(self, event: events.Key) -> None:
        # Not as priority bindings: those would overtake letters that were typed earlier and are
        # still queued.
        action = _ACTIONS.get(event.key)
        asks_for_keys = event.character == "?" and not self.text
        if action is None and not asks_for_keys:
            await super()._on_key(event)
            return
        event.prevent_default()
        event.stop()
        if action is not None:
            getattr(self, f"action_{action}")()
        else:
            await self.run_action("app.keys")


_ACTIONS = {
    key: binding.action
    for binding in PromptInput.BINDINGS
    if isinstance(binding, Binding)
    for key in binding.key.split(",")
}


class Composer(Vertical):
    """The input, with completions and attachments above it. `attached`: files for the next message;
    `editing`: id of the message that is being edited; None for a new one."""

    def __init__(self, prompt: PromptInput) -> None:
        super().__init__(id="composer")
        self.attached: list[Attachment] = []
        self.editing: str | None = None
        self._attached_line = Static(id="attached", markup=False)
        self.prompt = prompt
        self._stashed = ""

    def compose(self) -> ComposeResult:
        yield self.prompt.completions
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
        self.prompt.remember_sent()
        self.end_edit()

    def end_edit(self) -> None:
        if self.editing is not None:
            self.editing = None
            self.prompt.remember_sent()
            self.prompt.set_text(self._stashed)
            self._draw()

    def escape(self) -> bool:
        """Close the completions, else end an edit; returns False if there was neither."""
        if self.prompt.completing:
            self.prompt.close_completions()
        elif self.editing is not None:
            self.end_edit()
        else:
            return False
        return True

    @on(events.Paste)
    def _pasted(self, event: events.Paste) -> None:
        event.stop()
        text = event.text.replace("\r\n", "\n").replace("\r", "\n")  # terminals send returns
        self.attach(Attachment(f"pasted text ({len(text):,} characters)", text))

    @on(OptionList.OptionSelected)
    def _clicked(self) -> None:
        self.prompt.action_send()
        self.prompt.focus()

    def _draw(self) -> None:
        parts = [f"+ {one_line(a.name)}" for a in self.attached]
        if self.editing is not None:
            parts.insert(0, "editing: Enter sends it as a branch, Esc cancels")
        self._attached_line.set_class(bool(parts), "shown")
        self._attached_line.update(" · ".join(parts))
        self.prompt.attached = bool(self.attached)
        self.prompt.set_class(self.editing is not None, "editing")

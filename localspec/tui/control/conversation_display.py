"""Display of the conversation and its figures: the `View` of `ChatSession`."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic, thread_time

import psutil
from rich.text import Text
from textual.timer import Timer

from localspec.chat.conversation import Conversation, Message
from localspec.chat.figures import Figures
from localspec.chat.titles import one_line
from localspec.paths import EMBEDDED_TARGET, embedded
from localspec.text import gigabytes, harmless
from localspec.tui.control.host import Host
from localspec.tui.rendering.message_lines import legend
from localspec.tui.rendering.palette import Palette
from localspec.tui.widgets import sidebar
from localspec.tui.widgets.figures_panel import status_text

SHARE = 0.015
"""Processor time of a redraw ÷ the pause after it: on a small machine the model uses all cores and
waits for its slowest thread, so a redraw delays it."""
SHARE_OF_MANY = 0.1
"""The same on MANY cores, where the model leaves some free."""
MANY = 8
LEAST, MOST = 0.05, 0.8
"""Seconds between two redraws; more would look stuck."""

HINTS = (
    "Ctrl+O another model · / commands · ? keys",
    "Ctrl+T tokens by drafter · Ctrl+G figures",
)
BUILT_IN = "the built-in story model, for tests and demos"

FIGURES_EVERY = 1.0
"""Seconds between two redraws of the figures, to be readable."""


class ConversationDisplay:
    """Shows the conversation and the running answer. `doing`: a description of the running work, or
    None; `resident`: returns the resident memory of this process in bytes."""

    def __init__(self, host: Host) -> None:
        self.doing: str | None = None
        self._host = host
        self._cost, self._worked = 0.0, 0.0  # processor time of a redraw, and until the last one
        self._timer: Timer | None = None
        self._figures: Sequence[Figures] = ()  # of all finished answers
        self._figured = 0.0
        process = psutil.Process()
        self.resident: Callable[[], int] = lambda: process.memory_info().rss

    # View

    def show_conversation(self) -> None:
        conversation = self._host.chat_session.conversation
        shown = []
        for message in conversation.path():
            siblings = conversation.siblings(message.id)
            shown.append((message, (siblings.index(message) + 1, len(siblings))))
        self._host.transcript.show(shown)
        self._host.sidebar.mark(conversation.id)
        self._add_up()
        self._title()
        self.legend()
        self.figures()

    def message_changed(self, message: Message) -> None:
        self._host.transcript.update_message(message)
        if message.note is not None:
            self.figures()

    def working(self, doing: str | None) -> None:
        self.doing = doing
        self._title()
        self.figures()

    def answering(self, begins: bool) -> None:
        # Blinking would take processor time from the model.
        self._host.prompt.cursor_blink = not begins
        self._host.sidebar.list()
        if begins:
            self._figured = 0.0
            self.figures()
            if self._timer is None:
                self._cost, self._worked = 0.0, thread_time()
                self._timer = self._host.set_timer(LEAST, self._tick)
            return
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
        self._host.transcript.at_rest()
        self._add_up()
        self.legend()
        self.figures()

    async def overflowed(self, conversation: Conversation, error: str) -> None:
        chat_session = self._host.chat_session
        answer = await self._host.ask(
            f"The conversation has outgrown the context. {error}",
            {
                "drop": "Continue without the oldest turns",
                "anew": "Begin a new conversation with this message",
                "leave": "Leave it as it is",
            },
        )
        if answer == "drop":
            if chat_session.conversation is not conversation:
                self._host.show(conversation)
            await chat_session.drop_oldest()
        elif answer == "anew":
            last = conversation.path()[-1]
            self._host.show(self._host.new_conversation())
            await chat_session.send(last.content, last.attachments)

    def show_notice(self, text: str, *, error: bool = False) -> None:
        self._host.show_notice(text, error=error)

    # Drawing

    def legend(self) -> None:
        transcript, line = self._host.transcript, self._host.legend_line
        line.set_class(transcript.tokens, "shown")
        if transcript.tokens:
            sources = dict.fromkeys(("target", "ngram", "model"))
            for message in self._host.chat_session.conversation.path():
                sources.update(dict.fromkeys(source for _, source in message.spans or ()))
            palette, width = Palette.of(self._host), transcript.content_size.width
            shown = legend(palette, list(sources), rejected=transcript.rejected, width=width)
            line.update(shown)

    def redraw(self) -> None:
        """Draw again what depends on the theme, or on the screen's size."""
        self.welcome()
        self.legend()
        self.figures()

    def figures(self, live: Figures | None = None) -> None:
        """Show figures of the running answer, else of the last one of this conversation."""
        shown = live
        if shown is None:
            path = self._host.chat_session.conversation.path()
            shown = Figures.from_dict(next((m.stats for m in reversed(path) if m.stats), None))
        self._status(shown, live=live is not None)
        panel = self._host.figures_panel
        if panel.display:
            answers = self._figures if live is None else [*self._figures, live]
            memory = gigabytes(self.resident())
            panel.show(shown, answers, self._host.chat_session.opened, memory)

    def _status(self, shown: Figures, *, live: bool) -> None:
        palette, chat_session = Palette.of(self._host), self._host.chat_session
        comes, doing = chat_session.shown_answer, None
        if self.doing is not None:
            doing = f"{self.doing} · Esc cancels"
        elif comes is not None and not (live and shown.tokens):
            at = comes.to if comes.message is None else comes.message.id
            doing = comes.conversation.messages[at].note or "getting ready"
        if doing is not None:
            text = Text(f"◌ {harmless(doing)}", palette.style("accent"))
        elif shown.tokens:
            text = status_text(shown, chat_session.conversation.draft, palette, live=live)
        else:
            text = Text("Enter sends · Esc stops · ? shows the keys", palette.faint)
        self._host.status_line.update(text, layout=False)

    def _title(self) -> None:
        title = one_line(self._host.chat_session.conversation.title)
        line = Text.assemble((title, "bold"), "  ", (self._pair(), "dim"))
        self._host.title_line.update(line, layout=False)
        self.welcome()

    def _pair(self) -> str:
        opened = self._host.chat_session.opened
        if self.doing is not None:
            return harmless(self.doing)
        if opened is None:
            return "no model is open (Ctrl+O)"
        draft = f" + {opened.draft}" if opened.draft else ", no draft model"
        return harmless(f"{opened.model}{draft}")

    def welcome(self) -> None:
        """Draw the welcome screen, where Enter opens the last conversation."""
        palette, newest = Palette.of(self._host), self._host.sidebar.newest
        opened = self._host.chat_session.opened
        self._host.prompt.resumable = bool(
            newest and not self._host.chat_session.conversation.messages
        )
        lines = [
            Text("localspec", palette.style("primary", bold=True)),
            Text("Local models, faster, with the same output."),
            Text(""),
            Text(self._pair(), palette.style("accent")),
        ]
        if self._host.chat_session.unopened and self.doing is None:
            why = harmless(self._host.chat_session.unopened)
            lines.append(Text(why, palette.style("error")))
        if opened is not None and Path(opened.model_path) == embedded(EMBEDDED_TARGET):
            lines.append(Text(BUILT_IN, palette.faint))
        lines.append(Text(""))
        if newest is not None:
            row = Text("Enter continues ", palette.faint)
            row.append(one_line(newest.title), palette.style("foreground", bold=True))
            row.append(f"  {sidebar.ago(newest.updated)}", palette.faint)
            lines.append(row)
        self._host.transcript.welcome([*lines, *(Text(hint, palette.faint) for hint in HINTS)])

    def _tick(self) -> None:
        figures = self._host.chat_session.tick(spans=self._host.transcript.tokens)
        now = monotonic()
        if (
            figures is not None
            and figures.tokens  # none while the prompt is read
            and self._host.chat_session.shown_answer
            and now - self._figured >= FIGURES_EVERY
        ):
            self._figured = now
            self.figures(figures)
        before, self._worked = self._worked, thread_time()
        cost = self._worked - before
        # Smoothed: one expensive redraw (a scrolled page, a new code block) must not look stuck.
        self._cost = 0.6 * self._cost + 0.4 * cost if self._cost else cost
        share = SHARE_OF_MANY if (os.cpu_count() or 1) >= MANY else SHARE
        self._timer = self._host.set_timer(min(MOST, max(LEAST, self._cost / share)), self._tick)

    def _add_up(self) -> None:
        messages = self._host.chat_session.conversation.messages.values()
        self._figures = [Figures.from_dict(message.stats) for message in messages]

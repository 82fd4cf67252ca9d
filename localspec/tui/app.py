"""The Textual app: what is where on the screen, and who is told what."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, ClassVar

import psutil
from rich.text import Text
from textual import on, work
from textual.app import App, ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.message import Message as TextualMessage
from textual.screen import ModalScreen, Screen
from textual.timer import Timer
from textual.widgets import Footer, Static, TextArea

from localspec import Drafting, ModelOptions
from localspec.chat import words
from localspec.chat.conversation import Attachment, Conversation, Message
from localspec.chat.figures import Figures, Totals
from localspec.errors import Cancelled, LocalspecError, UsageError
from localspec.text import harmless
from localspec.tui import commands, preferences
from localspec.tui.command_actions import CommandActions
from localspec.tui.completions import Completions
from localspec.tui.conversing import Conversing
from localspec.tui.engine_thread import EngineThread, Event, Loader, Pair
from localspec.tui.figures_panel import FiguresPanel
from localspec.tui.keys_screen import KeysScreen
from localspec.tui.look import Look
from localspec.tui.markdown_lines import CodeBlock
from localspec.tui.pacing import RedrawBudget
from localspec.tui.prompt_input import PromptInput
from localspec.tui.question import QuestionScreen
from localspec.tui.records import Records
from localspec.tui.sidebar import Sidebar
from localspec.tui.status_line import StatusLine
from localspec.tui.token_lines import legend
from localspec.tui.transcript import Transcript

TWICE = 2.0
"""Seconds within which a second Ctrl+C leaves."""


class EngineEvent(TextualMessage):
    """Something from the engine's thread."""

    def __init__(self, event: Event) -> None:
        super().__init__()
        self.event = event


class ChatApp(App[None]):
    """`localspec chat`.

    Args:
        pair: what to open; None for what was open last, else the embedded pair.
        options, drafting: as for `localspec.load`.
        sampling, max_tokens, system: for new conversations, over what the preferences say.
        loader: `localspec.load`, or what a test puts in its place.
        notices: sentences to begin with.
    """

    CSS_PATH = "styles.tcss"
    TITLE = "localspec"
    HORIZONTAL_BREAKPOINTS: ClassVar[list[tuple[int, str]] | None] = [
        (0, "-narrow"),
        (96, "-middling"),
        (132, "-wide"),
        (170, "-huge"),
    ]
    VERTICAL_BREAKPOINTS: ClassVar[list[tuple[int, str]] | None] = [
        (0, "-tiny"),
        (9, "-low"),
        (16, "-high"),
    ]
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f1", "keys", "Keys", priority=True),
        Binding("escape", "stop", "Stop", show=False),
        Binding("ctrl+n", "new", "New", priority=True),
        Binding("ctrl+o", "model", "Model", priority=True),
        Binding("ctrl+t", "tokens", "Tokens", priority=True),
        Binding("ctrl+g", "figures", "Figures", priority=True),
        Binding("ctrl+b", "sidebar", "List", priority=True),
        Binding("ctrl+f", "search", "Search", priority=True, show=False),
        Binding("ctrl+r", "regenerate", "Again", priority=True, show=False),
        Binding("ctrl+s", "settings", "Settings", show=False),
        Binding("f2", "why", "Why this speed", show=False),
        Binding("question_mark", "keys", "Keys", show=False),
        Binding("ctrl+c", "interrupt", "Copy, stop, or leave", show=False, priority=True),
        Binding("ctrl+q", "quit", "Quit", priority=True),
    ]

    def __init__(
        self,
        pair: Pair | None = None,
        *,
        options: ModelOptions | None = None,
        drafting: Drafting | None = None,
        sampling: dict[str, float | int] | None = None,
        max_tokens: int | None = None,
        system: str | None = None,
        loader: Loader | None = None,
        notices: Iterable[str] = (),
    ) -> None:
        super().__init__()
        self.preferences, trouble = preferences.load()
        self._notices = [*notices, *([trouble] if trouble else ())]
        self._pair = pair
        self._said = (sampling or {}, max_tokens, system)
        self.records = Records(self._tell_from_thread)
        self.engine = EngineThread(
            lambda event: self.post_message(EngineEvent(event)),
            options=options,
            drafting=drafting,
            loader=loader,
        )
        self.conversing = Conversing(self, self.records, self.engine, self.new_conversation())
        self.attached: list[Attachment] = []
        self.editing: str | None = None
        self._commands = CommandActions(self)
        self._budget = RedrawBudget()
        self._timer: Timer | None = None
        self._totals = Totals()
        self._doing: str | None = None
        self._interrupted = -TWICE
        self._process = psutil.Process()

    def compose(self) -> ComposeResult:
        yield Static(id="title", markup=False)
        with Horizontal(id="body"):
            yield Sidebar(id="sidebar")
            with Vertical(id="middle"):
                yield Transcript(id="transcript")
                yield Static(id="legend", markup=False)
                yield Completions(id="completions")
                yield StatusLine(id="status")
                yield Static(id="attached", markup=False)
                yield PromptInput(id="input")
            yield FiguresPanel(id="figures")
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        said = self.preferences
        self.theme = said.theme if said.theme in self.available_themes else _first_theme()
        self._fold(Sidebar, said.sidebar)
        self._fold(FiguresPanel, said.figures)
        self.transcript.tokens, self.transcript.rejected = said.tokens, said.rejected
        self.prompt.focus()
        self.show_conversation()
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        """After the first paint: all that could keep it waiting."""
        for notice in self._notices:
            self.tell(notice)
        self.engine.open(
            self._pair or Pair(self.preferences.model, self.preferences.draft or "auto")
        )
        self._open_history()

    @work(thread=True, group="history")
    def _open_history(self) -> None:
        for notice in self.records.open():
            self.call_from_thread(self.tell, notice)
        self.call_from_thread(self.list_conversations)
        sent = self.records.sent_before()
        self.call_from_thread(self.prompt.remember, sent)

    async def on_unmount(self) -> None:
        self.engine.close(timeout=10.0)
        self.records.close()

    # Parts of the screen

    @property
    def transcript(self) -> Transcript:
        return self._first(Transcript)

    @property
    def prompt(self) -> PromptInput:
        return self._first(PromptInput)

    @property
    def sidebar(self) -> Sidebar:
        return self._first(Sidebar)

    def _first(self, kind: type[Any]) -> Any:
        return self.screen_stack[0].query_one(kind)

    # View: told by `Conversing`

    def show_conversation(self) -> None:
        conversation = self.conversing.conversation
        shown = []
        for message in conversation.path():
            siblings = conversation.siblings(message.id)
            place = (1, 1)
            if len(siblings) > 1:
                place = (siblings.index(message) + 1, len(siblings))
            shown.append((message, place))
        self.transcript.show(shown)
        for message, _ in shown:
            if message.id in self.conversing.notes:
                self.message_changed(message)
        self._totals = Totals.of(m.stats for m in conversation.messages.values())
        self._draw_title()
        self._draw_legend()
        self._draw_figures()

    def message_changed(self, message: Message) -> None:
        rejected = None
        for answer in (self.conversing.running, self.conversing):
            latest = getattr(answer, "answer", None) or getattr(answer, "latest", None)
            if latest is not None and getattr(answer, "message", None) is message:
                rejected = latest.rejected
        self.transcript.update_message(
            message, note=self.conversing.notes.get(message.id), rejected=rejected
        )

    def working(self, doing: str | None) -> None:
        self._doing = doing
        self._draw_title()
        self._draw_figures()

    def answering(self, begins: bool) -> None:
        if begins:
            if self._timer is None:
                self._timer = self.set_timer(self._budget.start(), self._tick)
            return
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
        conversation = self.conversing.conversation
        self._totals = Totals.of(m.stats for m in conversation.messages.values())
        self._draw_legend()
        self._draw_figures()
        self.list_conversations()

    def overflowed(self, error: str) -> None:
        self._ask_about_overflow(error)

    def tell(self, text: str, *, error: bool = False) -> None:
        self.notify(
            harmless(text), severity="error" if error else "information", markup=False, timeout=8
        )

    def _tell_from_thread(self, text: str) -> None:
        self.call_later(partial(self.tell, text, error=True))

    # Drawing

    def _tick(self) -> None:
        figures = self.conversing.tick(spans=self.transcript.tokens)
        if figures is not None and self.conversing.comes_here:
            self._draw_figures(figures)
        self._timer = self.set_timer(self._budget.pause(), self._tick)

    def _draw_title(self) -> None:
        opened = self.conversing.opened
        title = harmless(self.conversing.conversation.title)
        if self._doing is not None:
            pair = self._doing
        elif opened is None:
            pair = "no model is open (Ctrl+O)"
        else:
            pair = opened.model + (f" + {opened.draft}" if opened.draft else ", no draft model")
        self._first_static("#title").update(
            Text.assemble((title, "bold"), "  ", (harmless(pair), "dim"), no_wrap=True),
            layout=False,
        )

    def _draw_legend(self) -> None:
        line = self._first_static("#legend")
        line.set_class(self.transcript.tokens, "shown")
        if self.transcript.tokens:
            sources = ["target", "ngram", "model"]
            for message in self.conversing.conversation.path():
                sources += [s for _, s in message.spans or () if s not in sources]
            look = Look.of(self)
            line.update(legend(look, sources, rejected=self.transcript.rejected))

    def _draw_figures(self, live: Figures | None = None) -> None:
        """Of the answer that comes, or of the last one that came in this conversation."""
        shown, status = live, self._first(StatusLine)
        if shown is None:
            path = self.conversing.conversation.path()
            stats = next((m.stats for m in reversed(path) if m.stats), None)
            shown = Figures.from_dict(stats)
        comes = self.conversing.comes_here
        if self._doing is not None:
            status.doing(f"{self._doing} · Esc cancels")
        elif live is not None:
            status.figures(live, live=True)
        elif comes is not None:
            status.doing(self.conversing.notes.get(comes.to, "reading the prompt"))
        elif shown.tokens:
            status.figures(shown, live=False)
        else:
            status.nothing("Enter sends · Esc stops · ? shows the keys")
        panel = self._first(FiguresPanel)
        if panel.display:
            totals = self._totals if live is None else self._totals.plus(live)
            memory = words.size(self._process.memory_info().rss)
            panel.show(shown, totals, self.conversing.opened, memory=memory)

    def _first_static(self, selector: str) -> Static:
        return self.screen_stack[0].query_one(selector, Static)

    # From the engine's thread

    @on(EngineEvent)
    def _engine_event(self, message: EngineEvent) -> None:
        self.conversing.on_event(message.event)

    # From the input

    @on(PromptInput.Sent)
    def _sent(self, event: PromptInput.Sent) -> None:
        text = event.text
        try:
            command = commands.parse(text.strip())
            if command is not None:
                self.prompt.accepted(text)
                self._commands.run(*command)
                return
            if self.conversing.running is not None:
                raise UsageError("An answer is still coming. Wait for it, or stop it with Esc.")
        except LocalspecError as error:
            self.tell(str(error), error=True)
            return
        self.prompt.accepted(text)
        attached, self.attached = self.attached, []
        instead_of, self.editing = self.editing, None
        self.draw_attached()
        self._send(commands.unescaped(text), attached, instead_of)

    @work(group="send")
    async def _send(self, text: str, attached: list[Attachment], instead_of: str | None) -> None:
        await self.conversing.send(text, attached, instead_of=instead_of)
        self.list_conversations()

    @on(TextArea.Changed, "#input")
    def _complete(self) -> None:
        line = self.prompt.text
        offered = commands.complete(line, self._commands.completers()) if line[:1] == "/" else []
        if len(offered) == 1 and offered[0].text == line:
            offered = []
        self._first(Completions).offer(offered)
        self.prompt.completing = bool(offered)

    @on(PromptInput.Choose)
    def _choose_completion(self, event: PromptInput.Choose) -> None:
        completions = self._first(Completions)
        chosen = completions.chosen
        if event.step:
            completions.move(event.step)
        elif chosen is not None:
            whole = chosen.text == self.prompt.text.strip() or not chosen.text.endswith((" ", "/"))
            self.prompt.put(chosen.text)
            if whole:
                completions.offer(())
                self.prompt.completing = False
                if chosen.about:  # a command without arguments: nothing is left to write
                    self.prompt.action_send()

    @on(PromptInput.KeysWanted)
    def _keys_wanted(self) -> None:
        self.action_keys()

    # From the conversation and the list

    @on(Transcript.Act)
    def _act(self, event: Transcript.Act) -> None:
        self.attempt(partial(self._commands.act, event.action, event.message))

    @on(Sidebar.Chosen)
    def _conversation_chosen(self, event: Sidebar.Chosen) -> None:
        self.show_stored(event.conversation, event.message)

    @on(Sidebar.Searched)
    def _searched(self, event: Sidebar.Searched) -> None:
        if event.query:
            self._search(event.query)
        else:
            self.list_conversations()

    @on(Sidebar.MoreWanted)
    def _more(self, event: Sidebar.MoreWanted) -> None:
        self.list_conversations(event.listed)

    @on(Sidebar.DeleteWanted)
    def _delete_wanted(self, event: Sidebar.DeleteWanted) -> None:
        self.delete(event.conversation)

    @on(Sidebar.Left)
    def _sidebar_left(self) -> None:
        if self.screen.has_class("-narrow"):
            self._fold(Sidebar, None)
        self.prompt.focus()

    @work(thread=True, group="list", exclusive=True)
    def list_conversations(self, offset: int = 0) -> None:
        """Show the conversations anew, or further ones."""
        found = self.records.list(offset)
        self.call_from_thread(self._list, found, offset)

    def _list(self, found: list[Any], offset: int) -> None:
        if not self.sidebar.searching:
            self.sidebar.current(self.conversing.conversation.id)
            self.sidebar.list(found, more=offset > 0)

    @work(thread=True, group="list", exclusive=True)
    def _search(self, query: str) -> None:
        hits = self.records.search(query)
        self.call_from_thread(self._found, query, hits)

    def _found(self, query: str, hits: list[Any]) -> None:
        if self.sidebar.searching == query:
            self.sidebar.found(hits)

    @work(thread=True, group="load", exclusive=True)
    def show_stored(self, conversation: str, message: str | None = None) -> None:
        """Show a conversation of the history."""
        try:
            found = self.records.load(conversation)
        except LocalspecError as error:
            self.call_from_thread(self.tell, str(error), error=True)
            return
        self.call_from_thread(self.show, found, message)

    def show(self, conversation: Conversation, message: str | None = None) -> None:
        """Show this conversation, and in it this message."""
        if message is not None and message in conversation.messages:
            if message not in {m.id for m in conversation.path()}:
                conversation.select(message)
        self.editing = None
        self.conversing.begin(conversation)
        self.transcript.select_message(message)
        if self.screen.has_class("-narrow"):
            self._fold(Sidebar, None)
        self.prompt.focus()

    def new_conversation(self) -> Conversation:
        """An empty one, with what the preferences and the command line say."""
        said = self.preferences
        sampling, max_tokens, system = self._said
        return Conversation(
            system=system or said.system,
            sampling={**said.sampling, **sampling},
            max_tokens=max_tokens or said.max_tokens,
        )

    # Dialogs

    @work(group="dialog")
    async def _ask_about_overflow(self, error: str) -> None:
        answer = await self.push_screen_wait(
            QuestionScreen(
                f"{error}\n\nThe conversation has outgrown the context.",
                [
                    ("drop", "Go on without the oldest turns"),
                    ("anew", "Begin a new conversation with this message"),
                    ("leave", "Leave it as it is"),
                ],
            )
        )
        if answer == "drop":
            self.attempt(self.conversing.drop_oldest)
        elif answer == "anew":
            last = self.conversing.conversation.path()[-1]
            self.show(self.new_conversation())
            await self.conversing.send(last.content, last.attachments)

    @work(group="dialog")
    async def choose_code(self, blocks: Sequence[CodeBlock]) -> None:
        """Ask which of several code blocks to copy."""
        offered = [
            (str(number), f"{block.language or 'text'}: {block.code.strip().splitlines()[0][:48]}")
            for number, block in enumerate(blocks)
            if block.code.strip()
        ]
        answer = await self.push_screen_wait(QuestionScreen("Copy which code block?", offered))
        if answer is not None:
            self.copy(blocks[int(answer)].code)

    @work(group="dialog")
    async def delete(self, conversation: str) -> None:
        """Ask, and delete a conversation."""
        answer = await self.push_screen_wait(
            QuestionScreen(
                "Delete this conversation? It cannot be brought back.",
                [("keep", "Keep it"), ("delete", "Delete it")],
            )
        )
        if answer != "delete":
            return
        running = self.conversing.running
        if running is not None and running.conversation.id == conversation:
            self.conversing.stop()
        self.attempt(partial(self.records.delete, conversation))
        if self.conversing.conversation.id == conversation:
            self.show(self.new_conversation())
        self.list_conversations()

    # Actions

    def attempt(self, action: Callable[[], object]) -> None:
        """Do it, or tell why not."""
        try:
            action()
        except LocalspecError as error:
            self.tell(str(error), error=True)

    def action_stop(self) -> None:
        """Esc: close what is open, else stop what runs."""
        completions = self._first(Completions)
        if completions.display:
            completions.offer(())
            self.prompt.completing = False
        elif self.editing is not None:
            self.editing = None
            self.draw_attached()
        elif self._doing is not None or self.conversing.running is not None:
            self.conversing.stop()
        elif self.screen.has_class("-narrow") and (
            self.sidebar.has_class("open") or self._first(FiguresPanel).has_class("open")
        ):
            self._fold(Sidebar, None)
            self._fold(FiguresPanel, None)
        else:
            self.prompt.focus()

    def action_interrupt(self) -> None:
        """Ctrl+C: copy what is selected, else the innermost thing that can end ends."""
        focused = self.focused
        selected = self.screen.get_selected_text()
        if not selected and isinstance(focused, TextArea):
            selected = focused.selected_text
        if selected:
            self.copy(selected)
        elif isinstance(self.screen, ModalScreen):
            self.screen.dismiss(None)
        elif self._doing is not None or self.conversing.running is not None:
            self.conversing.stop()
        elif self._loop_time() - self._interrupted < TWICE:
            self.exit(return_code=Cancelled.exit_code)
        else:
            self._interrupted = self._loop_time()
            self.tell("Ctrl+C again leaves. Everything is kept.")

    def _loop_time(self) -> float:
        assert self._loop is not None
        return self._loop.time()

    def action_new(self) -> None:
        self.show(self.new_conversation())

    def action_model(self) -> None:
        self._commands.run(commands.BY_NAME["model"], "")

    def action_settings(self) -> None:
        self._commands.run(commands.BY_NAME["set"], "")

    def action_regenerate(self) -> None:
        self.attempt(self.conversing.regenerate)

    def action_why(self) -> None:
        self._commands.run(commands.BY_NAME["why"], "")

    def action_tokens(self) -> None:
        """Markdown, tokens, tokens with what was rejected, and round again."""
        now = (self.transcript.tokens, self.transcript.rejected)
        self.show_tokens(
            *{(False, False): (True, False), (True, False): (True, True)}.get(now, (False, False))
        )

    def show_tokens(self, tokens: bool, rejected: bool) -> None:
        """How answers are shown, now and next time."""
        self.transcript.tokens, self.transcript.rejected = tokens, rejected
        self.remember(tokens=tokens, rejected=rejected)
        self._draw_legend()

    def action_figures(self) -> None:
        self._toggle(FiguresPanel, "figures")
        self._draw_figures()

    def action_sidebar(self) -> None:
        self._toggle(Sidebar, "sidebar")

    def action_search(self) -> None:
        """Put the cursor into the search, opening the list if need be."""
        if not self.sidebar.display:
            self._fold(Sidebar, True)
        self.sidebar.focus_search()

    def action_keys(self) -> None:
        """The keys that apply where the focus is."""
        places: dict[str, list[tuple[str, str]]] = {}
        for active in self.screen.active_bindings.values():
            binding = active.binding
            if binding.description and active.enabled:
                place = _PLACES.get(type(active.node).__name__)
                if place is None:
                    place = "Everywhere" if active.node in (self, self.screen) else "Here"
                keys = places.setdefault(place, [])
                known = [
                    number for number, (_, says) in enumerate(keys) if says == binding.description
                ]
                key = self.get_key_display(binding)
                if known:
                    keys[known[0]] = (f"{keys[known[0]][0]}  {key}", binding.description)
                else:
                    keys.append((key, binding.description))
        self.push_screen(
            KeysScreen(sorted(places.items(), key=lambda item: item[0] == "Everywhere"))
        )

    def copy(self, text: str) -> None:
        """To the clipboard, through the terminal."""
        self.copy_to_clipboard(text)
        self.tell(f"Copied {len(text):,} characters.")

    def draw_attached(self) -> None:
        """What goes along with the next message, and whether it replaces an old one."""
        line = self._first_static("#attached")
        parts = [f"+ {harmless(a.name)}" for a in self.attached]
        if self.editing is not None:
            parts.insert(0, "editing: Enter sends it as a branch, Esc leaves it")
        line.set_class(bool(parts), "shown")
        line.update(" · ".join(parts))
        self.prompt.set_class(self.editing is not None, "editing")

    def remember(self, **what: Any) -> None:
        """Keep preferences."""
        for name, value in what.items():
            setattr(self.preferences, name, value)
        trouble = preferences.save(self.preferences)
        if trouble is not None:
            self.tell(trouble, error=True)

    def watch_theme(self, theme: str) -> None:
        if self.is_mounted and theme != self.preferences.theme and self.screen_stack:
            self.remember(theme=theme)
            self._draw_legend()

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The slash commands, in the palette as well."""
        yield from super().get_system_commands(screen)
        for command in commands.COMMANDS:
            yield SystemCommand(
                f"/{command.name}", command.about, partial(self._commands.begin, command)
            )

    def _toggle(self, kind: type[Any], name: str) -> None:
        panel = self._first(kind)
        show = not panel.display
        self._fold(kind, show)
        # On a narrow terminal it only lies over the conversation for a moment.
        if not self.screen.has_class("-narrow"):
            self.remember(**{name: show})
        if not show and not self.prompt.has_focus:
            self.prompt.focus()

    def _fold(self, kind: type[Any], show: bool | None) -> None:
        panel = self._first(kind)
        panel.set_class(show is True, "open")
        panel.set_class(show is False, "shut")


_PLACES = {
    "PromptInput": "Input",
    "Transcript": "Conversation",
    "Sidebar": "List of conversations",
    "OptionList": "List of conversations",
    "FiguresPanel": "Figures",
}


def _first_theme() -> str:
    """Light where the terminal says that it is light."""
    background = os.environ.get("COLORFGBG", "").rpartition(";")[2]
    return "textual-light" if background in ("7", "15") else "textual-dark"

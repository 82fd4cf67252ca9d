"""Implementation of slash commands, and of keys on a message."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial, partialmethod
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.chat import words
from localspec.chat.attachments import read_attachment, unquoted
from localspec.chat.conversation import ASSISTANT, BY_USER, USER, Message
from localspec.chat.figures import Figures
from localspec.errors import LocalspecError, ModelNotFound, UsageError
from localspec.prompting.reasoning import split_thoughts
from localspec.text import path_to_file
from localspec.tui.control.conversation_display import ConversationDisplay
from localspec.tui.control.host import Host
from localspec.tui.session import commands
from localspec.tui.session.background_engine import PairReference
from localspec.tui.session.chat_session import Continuation
from localspec.tui.session.commands import MAX_TOKENS, Command
from localspec.worker_threads import run_in_thread

# Dialogs are imported when they open: earlier, they would delay the first paint.
if TYPE_CHECKING:
    from localspec.tui.screens.model_picker import ModelPicker


SWITCHES = {
    "learn": (
        "From now on, each conversation is learned after its next answer: localspec keeps a copy "
        "of its tokens in the data folder, and looks up drafts there. The output does not change. "
        "Deleting a conversation deletes its copy. /learn off turns learning off.",
        "Conversations are not learned. What was learned from earlier ones is kept until they are "
        "deleted, or until 'localspec learn --forget history'. /learn on turns learning on.",
    ),
    "record": (
        "From now on, answers are recorded, so that 'localspec distill' can train a draft on them: "
        "the data folder keeps the tokens of prompt and answer, with the 32 likeliest "
        "tokens at each position. The output does not change, and nothing leaves the machine. "
        "Deleting a conversation deletes its recordings. 'localspec distill --list' lists all. "
        "/record off turns recording off.",
        "Answers are not recorded. The recordings of earlier ones are kept until their "
        "conversations are deleted, or until 'localspec distill --forget history'. /record on "
        "turns recording on.",
    ),
}
"""Preferences for data stored besides the history, off by default: sentences for on and off."""


class Actions:
    """Actions of the chat; they raise UsageError if they do not apply, which `Host.attempt`
    shows."""

    def __init__(self, host: Host, display: ConversationDisplay) -> None:
        self._host, self._display, self._session = host, display, host.chat_session
        self._picker: ModelPicker | None = None

    def send(self, text: str) -> None:
        """Run the command in the input, or send its text."""
        try:
            command = commands.parse(text.strip())
        except UsageError as error:
            self._host.show_notice(str(error), error=True)
            self._host.prompt.select_all()  # for correction or replacement
            return
        if command is not None:
            self._host.prompt.remember_sent()
            self.run(*command)
            return
        self._host.attempt(partial(self._send_now, text))

    def _send_now(self, text: str) -> Continuation:
        self._session.require_idle()
        self._host.prompt.remember_sent()
        text = commands.unescaped(text)
        attached, instead_of = self._host.composer.take_attachments()
        return self._session.send(text, attached, instead_of=instead_of)

    def run(self, command: Command, argument: str, *on: Message) -> None:
        """Run a command. `on`: the message that it acts on, for those that act on one; by default
        they choose it."""
        self._host.attempt(partial(getattr(self, f"_{command.name}"), argument, *on))

    def begin(self, command: Command) -> None:
        """Run a command from the palette; if it needs an argument, put it into the input."""
        if command.arguments and not command.arguments.startswith("["):
            self._host.composer.stash()
            self._host.prompt.set_text(f"/{command.name} ")
            self._host.prompt.focus()
        else:
            self.run(command, "")

    def values(self) -> Mapping[str, Sequence[str]]:
        """Values that complete arguments of commands, by `Command.values`."""
        models = [] if self._picker is None else self._picker.models
        references = [m.reference for m in models if m.problem is None]
        themes = sorted(self._host.available_themes)
        return {"models": references, "drafts": references, "themes": themes}

    # One method per command, named after it

    def _help(self, _argument: str) -> None:
        self._host.call_next(self._host.run_action, "keys")

    def _new(self, _argument: str) -> None:
        self._host.show(self._host.new_conversation())

    def _model(self, argument: str) -> Continuation:
        chosen = PairReference(argument, "auto")
        return self._open(chosen) if argument else self._pick(draft_only=False)

    def _draft(self, argument: str) -> Continuation:
        chosen = PairReference(self._pair().model, argument)
        return self._open(chosen) if argument else self._pick(draft_only=True)

    def _system(self, argument: str) -> Continuation | None:
        if not argument:
            return self._settings("system")
        self._session.configure(system=argument)
        self._host.show_notice("The system prompt is set for the next answers.")
        return None

    def _set(self, argument: str) -> Continuation | None:
        name, value = commands.setting(argument or commands.SETTINGS[0])
        if " " not in argument and "=" not in argument:
            return self._settings(name)
        if name == MAX_TOKENS:
            self._session.configure(max_tokens=value)
        else:
            sampling = self._session.conversation.sampling | {name: value}
            self._session.configure(sampling={n: v for n, v in sampling.items() if v is not None})
        shown = "its default" if value is None else value
        self._host.show_notice(f"{name.replace('_', ' ')} is {shown} for the next answers.")
        return None

    def _attach(self, argument: str) -> None:
        if not argument:
            raise UsageError("/attach needs the path of a text file, or of an image.")
        self._host.composer.attach(read_attachment(argument))

    def _detach(self, _argument: str) -> None:
        self._host.composer.detach()

    def _regenerate(self, _argument: str, on: Message | None = None) -> Continuation:
        return self._session.regenerate(on)

    def _edit(self, _argument: str, on: Message | None = None) -> None:
        """Put a message into the input, to be sent again."""
        message = on or self._last(
            lambda m: m.role == USER, "There is no message to edit yet. Write one."
        )
        if message.role != USER:
            raise UsageError("Only your own messages can be edited. r answers again.")
        self._host.composer.begin_edit(message.id, commands.escaped(message.content))

    def _branch(self, argument: str, on: Message | None = None) -> None:
        if re.fullmatch(r"\d{1,9}", argument):
            self._session.branch(number=int(argument))
        elif argument in ("", "next", "previous"):
            self._session.branch(-1 if argument == "previous" else 1, on)
        else:
            raise UsageError("/branch takes next, previous, or the number of a branch.")

    def _copy(self, argument: str, on: Message | None = None) -> Continuation | None:
        if argument == "conversation":
            from localspec.history.export import to_markdown

            self._host.copy(to_markdown(self._session.conversation))
            return None
        message = on or self._last(
            lambda m: m.role == ASSISTANT and bool(m.content), "There is no answer to copy yet."
        )
        if argument == "code":
            return self._copy_code(message)
        if argument not in ("", "answer"):
            raise UsageError("/copy takes answer, code, or conversation.")
        text = message.content
        if message.role == ASSISTANT:  # without its reasoning, if there is other text
            text = split_thoughts(text)[1] or text
        self._host.copy(text)
        return None

    def _export(self, argument: str) -> None:
        from localspec.history.export import FORMATS, write_export

        form, _, name = argument.partition(" ")
        if form not in FORMATS:
            form, name = "", argument
        if not self._session.conversation.messages:
            raise UsageError("There is nothing to export yet.")
        where = path_to_file(unquoted(name.strip()) or ".")
        written = write_export(self._session.conversation, where, form=form or None)
        self._host.show_notice(f"Written to {written.absolute()}.")

    async def _title(self, argument: str) -> None:
        if argument:
            self._session.configure(title=argument, titled_by=BY_USER)
            self._display.show_conversation()
        else:
            await self._session.ask_for_title()
        self._host.sidebar.list()

    def _search(self, argument: str) -> None:
        if not self._host.sidebar.display:
            self._sidebar()
        self._host.sidebar.search(argument)

    def _delete(self, _argument: str) -> Continuation:
        if not self._session.conversation.messages:
            raise UsageError("There is nothing to delete yet.")
        return self._host.delete(self._session.conversation.id)

    def _why(self, _argument: str, on: Message | None = None) -> None:
        """Explain an answer's speed."""
        running, figures, title = self._session.running, None, "Why this speed"
        message = on
        if message is None and (shown := self._session.shown_answer) is not None:
            message = shown.message
            if message is None:
                why = "The answer has not begun. Its figures come with its first tokens."
                raise UsageError(why)
        message = message or self._last(
            lambda m: m.role == ASSISTANT and bool(m.stats), "There is no answer to explain yet."
        )
        if running is not None and running.message is message:
            figures, title = running.meter.figures(), "Why this speed, so far"
        elif message.stats:
            figures = Figures.from_dict(message.stats)
        if figures is None:
            raise UsageError("Only answers have figures. Choose an answer.")
        from textual.widgets import Label, Markdown

        from localspec.tui.screens.dialogs import ReadingScreen

        text = words.explain(figures, model=message.model, draft=message.draft)
        self._host.push_screen(ReadingScreen(Label(title), Markdown(text, open_links=False)))

    def _tokens(self, argument: str) -> None:
        modes = {"on": (True, False), "off": (False, False), "rejected": (True, True)}
        transcript = self._host.transcript
        following = "off" if transcript.rejected else "rejected"
        mode = argument or (following if transcript.tokens else "on")
        if mode not in modes:
            raise UsageError("/tokens takes on, off, or rejected.")
        self._host.show_tokens(*modes[mode])
        self._display.legend()

    def _figures(self, _argument: str) -> None:
        self._host.toggle(self._host.figures_panel)
        self._display.figures()

    def _sidebar(self, _argument: str = "") -> None:
        self._host.toggle(self._host.sidebar)
        if self._host.sidebar.display:
            self._host.sidebar.focus_list()
            self._host.sidebar.list()  # other chats write to the history, too

    def _theme(self, argument: str) -> None:
        if not argument:
            self._host.action_change_theme()
        elif argument in self._host.available_themes:
            self._host.theme = argument
        else:
            known = ", ".join(sorted(self._host.available_themes))
            raise UsageError(f"There is no theme '{argument}'. Choose from {known}.")

    def _stop(self, _argument: str) -> None:
        self._session.stop()

    def _quit(self, _argument: str) -> None:
        self._host.exit()

    # Helpers

    def _last(self, wanted: Callable[[Message], bool], otherwise: str) -> Message:
        """The last matching message of the shown branch; raises UsageError if there is none."""
        path = self._session.conversation.path()
        found = next(filter(wanted, reversed(path)), None)
        if found is None:
            raise UsageError(otherwise)
        return found

    async def _copy_code(self, message: Message) -> None:
        """Copy a message's code block; ask which if there are several."""
        from localspec.tui.rendering.markdown_lines import code_blocks

        blocks = [block for block in code_blocks(message.content) if block.code.strip()]
        if not blocks:
            raise UsageError("There is no code block in this message.")
        firsts = [block.code.strip().splitlines()[0][:48] for block in blocks]
        offered = {
            str(number): f"{block.language or 'text'}: {first}"
            for number, (block, first) in enumerate(zip(blocks, firsts, strict=True))
        }
        several = len(blocks) > 1
        chosen = await self._host.ask("Copy which code block?", offered) if several else "0"
        if chosen is not None:
            self._host.copy(blocks[int(chosen)].code)

    def _switch(self, name: str, argument: str) -> None:
        """Set a preference of SWITCHES, or only show it."""
        if argument not in ("", "on", "off"):
            raise UsageError(f"/{name} takes on or off.")
        if argument == "on" and name == "learn":
            from localspec.retrieval import learner

            learner.require()  # raises where a package is missing
        preferences = self._host.preferences
        if argument:
            setattr(preferences, name, argument == "on")
            self._host.save_preferences()
        on, off = SWITCHES[name]
        self._host.show_notice(on if getattr(preferences, name) else off)

    _learn, _record = partialmethod(_switch, "learn"), partialmethod(_switch, "record")

    def _pair(self) -> PairReference:
        opened = self._session.opened
        return PairReference(None) if opened is None else opened.pair

    async def _pick(self, *, draft_only: bool) -> None:
        from localspec.tui.screens.model_picker import ModelPicker

        opened = self._session.opened
        beside = [] if opened is None else [Path(opened.model_path).parent]
        self._picker = ModelPicker(self._pair(), beside, draft_only=draft_only)
        pair = await self._host.push_screen_wait(self._picker)
        if pair is not None:
            await self._open(pair)

    async def _open(self, pair: PairReference) -> None:
        from localspec.tui.screens.dialogs import DownloadScreen

        self._session.require_idle()
        references = [name for name in (pair.model, pair.draft) if name is not None]
        find = partial(_to_download, references, self._host.engine.offline)
        missing = await run_in_thread("find", find)
        if not missing or await self._host.push_screen_wait(DownloadScreen(missing)):
            await self._host.open(pair)

    async def _settings(self, to: str) -> None:
        from localspec.tui.screens.dialogs import SettingsScreen

        chosen = await self._host.push_screen_wait(
            SettingsScreen(self._session.conversation, to=to)
        )
        if chosen is None:
            return
        settings, always = chosen
        self._session.configure(**settings)
        if always:
            for name, value in settings.items():
                setattr(self._host.preferences, name, value)
            self._host.save_preferences()


def _to_download(references: Iterable[str], offline: bool | None) -> list[str]:
    from localspec.hub import cache, resolution
    from localspec.hub.reference import Repository

    if cache.offline_by_environment() if offline is None else offline:
        return []
    missing = []
    for reference in references:
        with suppress(LocalspecError):  # opening it reports why
            if isinstance(resolution.identify(reference), Repository):
                try:
                    resolution.find(reference, offline=offline)
                except ModelNotFound:
                    missing.append(reference)
    return missing

"""What the slash commands and the keys on a message do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.chat import words
from localspec.chat.attachments import read_attachment
from localspec.chat.conversation import ASSISTANT, USER, Message
from localspec.chat.figures import Figures
from localspec.errors import UsageError
from localspec.tui.session import commands
from localspec.tui.session.commands import MAX_TOKENS, Command
from localspec.tui.session.events import PairReference

# What opens over the screen is imported when it does: the first paint need not wait for it.
if TYPE_CHECKING:
    from localspec.hub.local import LocalModel
    from localspec.tui.app import ChatApp
    from localspec.tui.screens.settings_screen import ChosenSettings


class CommandActions:
    """Carries commands out on the app."""

    def __init__(self, app: ChatApp) -> None:
        self._app = app
        self._models: list[LocalModel] | None = None

    def run(self, command: Command, argument: str) -> None:
        """Do it, or tell why not."""
        action: Callable[[str], object] = getattr(self, f"_{command.name}")
        self._app.attempt(partial(action, argument))

    def begin(self, command: Command) -> None:
        """From the palette: what needs an argument is put into the input."""
        if command.arguments and not command.arguments.startswith("["):
            self._app.prompt.put(f"/{command.name} ")
            self._app.prompt.focus()
        else:
            self.run(command, "")

    def act(self, action: str, message: str) -> None:
        """A key on a message.

        Raises:
            UsageError: it cannot be done with this one.
        """
        conversing = self._app.conversing
        found = conversing.conversation.messages[message]
        if action == "copy":
            self._app.copy(found.content)
        elif action == "copy_code":
            self._copy_code(found)
        elif action == "regenerate":
            conversing.regenerate(message)
        elif action == "edit":
            self._begin_edit(found)
        elif action.startswith("branch"):
            conversing.branch(1 if action == "branch_next" else -1, message)
        elif action == "why":
            self._explain(found)

    def completers(self) -> Mapping[str, Callable[[], Iterable[str]]]:
        """For `commands.complete`."""
        return {
            "models": lambda: [m.reference for m in self._models or () if m.problem is None],
            "drafts": lambda: [m.reference for m in self._models or () if m.problem is None],
            "themes": lambda: sorted(self._app.available_themes),
        }

    # One method per command, by its name

    def _help(self, _argument: str) -> None:
        self._app.action_keys()

    def _new(self, _argument: str) -> None:
        self._app.action_new()

    def _model(self, argument: str) -> None:
        if argument:
            self._open(PairReference(argument, "auto"))
        else:
            self._pick(draft_only=False)

    def _draft(self, argument: str) -> None:
        if argument:
            self._open(PairReference(self._pair().model, argument))
        else:
            self._pick(draft_only=True)

    def _system(self, argument: str) -> None:
        if not argument:
            self._settings("system")
            return
        conversation = self._app.conversing.conversation
        self._app.conversing.configure(
            system=argument, sampling=conversation.sampling, max_tokens=conversation.max_tokens
        )
        self._app.conversation_display.tell("The system prompt is set for the answers to come.")

    def _set(self, argument: str) -> None:
        if " " not in argument and "=" not in argument:
            name = argument.replace("-", "_") if argument else commands.SETTINGS[0]
            if name not in commands.SETTINGS:
                commands.setting(argument)  # raises
            self._settings(name)
            return
        name, value = commands.setting(argument)
        conversation = self._app.conversing.conversation
        sampling, longest = dict(conversation.sampling), conversation.max_tokens
        if name == MAX_TOKENS:
            longest = None if value is None else int(value)
        elif value is None:
            sampling.pop(name, None)
        else:
            sampling[name] = value
        self._app.conversing.configure(
            system=conversation.system, sampling=sampling, max_tokens=longest
        )
        shown = "its default" if value is None else f"{value:g}"
        self._app.conversation_display.tell(
            f"{name.replace('_', ' ')} is {shown} for the answers to come."
        )

    def _attach(self, argument: str) -> None:
        if not argument:
            raise UsageError("/attach needs the path of a text file.")
        self._app.composer.attach(read_attachment(argument))

    def _detach(self, _argument: str) -> None:
        self._app.composer.detach()

    def _regenerate(self, _argument: str) -> None:
        self._app.conversing.regenerate()

    def _edit(self, _argument: str) -> None:
        path = self._app.conversing.conversation.path()
        mine = next((m for m in reversed(path) if m.role == USER), None)
        if mine is None:
            raise UsageError("There is no message to edit yet. Write one.")
        self._begin_edit(mine)

    def _branch(self, argument: str) -> None:
        conversing = self._app.conversing
        if argument.isdigit():
            path = conversing.conversation.path()
            for message in reversed(path):
                siblings = conversing.conversation.siblings(message.id)
                if len(siblings) > 1:
                    conversing.branch(int(argument) - 1 - siblings.index(message), message.id)
                    return
        if argument not in ("", "next", "previous"):
            raise UsageError("/branch takes next, previous, or the number of a branch.")
        conversing.branch(-1 if argument == "previous" else 1)

    def _copy(self, argument: str) -> None:
        path = self._app.conversing.conversation.path()
        if argument == "conversation":
            from localspec.history.export import to_markdown

            self._app.copy(to_markdown(self._app.conversing.conversation))
            return
        answer = next((m for m in reversed(path) if m.role == ASSISTANT and m.content), None)
        if answer is None:
            raise UsageError("There is no answer to copy yet.")
        if argument == "code":
            self._copy_code(answer)
        elif argument in ("", "answer"):
            self._app.copy(answer.content)
        else:
            raise UsageError("/copy takes answer, code, or conversation.")

    def _export(self, argument: str) -> None:
        from localspec.history.export import FORMATS, write_export

        form, _, name = argument.partition(" ")
        if form not in FORMATS:
            form, name = "", argument
        if not self._app.conversing.conversation.messages:
            raise UsageError("There is nothing to export yet.")
        where = Path(name.strip() or ".").expanduser()
        written = write_export(self._app.conversing.conversation, where, form=form or None)
        self._app.conversation_display.tell(f"Written to {written.absolute()}.")

    def _title(self, argument: str) -> None:
        if not argument:
            self._app.conversing.ask_for_title()
            self._app.conversation_display.tell("The model is asked for a title.")
            return
        self._app.conversing.rename(argument)
        self._app.conversation_display.show_conversation()
        self._app.conversation_list.list()

    def _search(self, argument: str) -> None:
        self._app.action_search()
        self._app.sidebar.search_for(argument)

    def _delete(self, _argument: str) -> None:
        self._app.dialogs.delete(self._app.conversing.conversation.id)

    def _why(self, _argument: str) -> None:
        path = self._app.conversing.conversation.path()
        answer = next((m for m in reversed(path) if m.role == ASSISTANT and m.stats), None)
        if answer is None:
            raise UsageError("There is no answer to explain yet.")
        self._explain(answer)

    def _tokens(self, argument: str) -> None:
        modes = {"on": (True, False), "off": (False, False), "rejected": (True, True)}
        if not argument:
            self._app.action_tokens()
        elif argument in modes:
            self._app.show_tokens(*modes[argument])
        else:
            raise UsageError("/tokens takes on, off, or rejected.")

    def _figures(self, _argument: str) -> None:
        self._app.action_figures()

    def _sidebar(self, _argument: str) -> None:
        self._app.action_sidebar()

    def _theme(self, argument: str) -> None:
        if not argument:
            self._app.action_change_theme()
        elif argument in self._app.available_themes:
            self._app.theme = argument
        else:
            known = ", ".join(sorted(self._app.available_themes))
            raise UsageError(f"There is no theme '{argument}'. Choose from {known}.")

    def _stop(self, _argument: str) -> None:
        self._app.conversing.stop()

    def _quit(self, _argument: str) -> None:
        self._app.exit()

    # Parts of them

    def _begin_edit(self, message: Message) -> None:
        if message.role != USER:
            raise UsageError("Only your own messages can be edited. r answers again.")
        self._app.composer.begin_edit(message.id, message.content)

    def _copy_code(self, message: Message) -> None:
        from localspec.tui.rendering.markdown_lines import code_blocks

        blocks = code_blocks(message.content)
        if not blocks:
            raise UsageError("There is no code block in this message.")
        if len(blocks) == 1:
            self._app.copy(blocks[0].code)
        else:
            self._app.dialogs.choose_code(blocks)

    def _explain(self, message: Message) -> None:
        if not message.stats:
            raise UsageError("Only answers have figures. Choose one of them.")
        from localspec.tui.screens.reading_screen import ReadingScreen

        text = words.explain(
            Figures.from_dict(message.stats), model=message.model, draft=message.draft
        )
        self._app.push_screen(ReadingScreen("Why this speed", text))

    def _pair(self) -> PairReference:
        opened = self._app.conversing.opened
        return PairReference(None) if opened is None else opened.pair

    def _pick(self, *, draft_only: bool) -> None:
        from localspec.hub.local import local_models
        from localspec.pairing.rules import judge
        from localspec.tui.screens.model_picker import ModelPicker

        opened = self._app.conversing.opened
        beside = [] if opened is None else [Path(opened.model_path).parent]

        def find() -> list[LocalModel]:
            self._models = local_models(beside)
            return self._models

        picker = ModelPicker(find, judge, self._pair(), draft_only=draft_only)
        self._app.push_screen(picker, lambda pair: None if pair is None else self._open(pair))

    def _open(self, pair: PairReference) -> None:
        if self._app.conversing.running is not None:
            self._app.conversation_display.tell(
                "An answer is still coming. Wait for it, or stop it with Esc.", error=True
            )
            return
        self._app.chosen = pair
        self._app.engine.open(pair)

    def _settings(self, to: str) -> None:
        from localspec.tui.screens.settings_screen import SettingsScreen

        conversation = self._app.conversing.conversation
        values = dict(conversation.sampling)
        if conversation.max_tokens is not None:
            values[MAX_TOKENS] = conversation.max_tokens
        self._app.push_screen(
            SettingsScreen(conversation.system, values, to=to), self._take_settings
        )

    def _take_settings(self, chosen: ChosenSettings | None) -> None:
        if chosen is None:
            return
        sampling = dict(chosen.sampling)
        longest = sampling.pop(MAX_TOKENS, None)
        most = None if longest is None else int(longest)
        self._app.conversing.configure(system=chosen.system, sampling=sampling, max_tokens=most)
        if chosen.always:
            self._app.remember(system=chosen.system, sampling=sampling, max_tokens=most)

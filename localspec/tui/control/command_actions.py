"""What the slash commands do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.chat.attachments import read_attachment
from localspec.chat.conversation import ASSISTANT, BY_USER, USER, Message
from localspec.errors import LocalspecError, ModelNotFound, UsageError
from localspec.paths import expanded
from localspec.tui.control import message_actions, switches
from localspec.tui.control.conversation_display import ConversationDisplay
from localspec.tui.control.conversation_list import ConversationList
from localspec.tui.control.host import Host
from localspec.tui.session import commands
from localspec.tui.session.commands import MAX_TOKENS, Command
from localspec.tui.session.events import PairReference

# What opens over the screen is imported when it does: the first paint need not wait for it.
if TYPE_CHECKING:
    from localspec.tui.screens.model_picker import ModelPicker
    from localspec.tui.screens.settings_screen import ChosenSettings


ACTIONS = {"help": "keys", "new": "new", "figures": "figures", "sidebar": "sidebar", "quit": "quit"}
"""Commands that are actions of the app."""


class CommandActions:
    def __init__(
        self,
        host: Host,
        conversation_list: ConversationList,
        conversation_display: ConversationDisplay,
    ) -> None:
        self._host = host
        self._conversation_list = conversation_list
        self._conversation_display = conversation_display
        self._picker: ModelPicker | None = None

    def run(self, command: Command, argument: str) -> None:
        if command.name in ACTIONS:
            self._host.call_next(self._host.run_action, ACTIONS[command.name])
            return
        action: Callable[[str], object] = getattr(self, f"_{command.name}")
        self._host.attempt(partial(action, argument))

    def begin(self, command: Command) -> None:
        """From the palette: a command that needs an argument is put into the input."""
        if command.arguments and not command.arguments.startswith("["):
            self._host.prompt.put(f"/{command.name} ")
            self._host.prompt.focus()
        else:
            self.run(command, "")

    def completers(self) -> Mapping[str, Callable[[], Iterable[str]]]:
        def references() -> list[str]:
            models = [] if self._picker is None else self._picker.models
            return [m.reference for m in models if m.problem is None]

        themes = self._host.available_themes
        return {"models": references, "drafts": references, "themes": lambda: sorted(themes)}

    # One method per command, by its name

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
        self._host.conversing.configure(system=argument)
        self._host.tell("The system prompt is set for the next answers.")

    def _set(self, argument: str) -> None:
        if " " not in argument and "=" not in argument:
            name = argument.replace("-", "_") if argument else commands.SETTINGS[0]
            if name not in commands.SETTINGS:
                commands.setting(argument)  # raises
            self._settings(name)
            return
        name, value = commands.setting(argument)
        conversing = self._host.conversing
        if name == MAX_TOKENS:
            conversing.configure(max_tokens=value)
        else:
            sampling = conversing.conversation.sampling | {name: value}
            conversing.configure(sampling={n: v for n, v in sampling.items() if v is not None})
        shown = "its default" if value is None else f"{value:g}"
        self._host.tell(f"{name.replace('_', ' ')} is {shown} for the next answers.")

    def _attach(self, argument: str) -> None:
        if not argument:
            raise UsageError("/attach needs the path of a text file, or of an image.")
        self._host.composer.attach(read_attachment(argument))

    def _detach(self, _argument: str) -> None:
        self._host.composer.detach()

    def _regenerate(self, _argument: str) -> None:
        self._host.conversing.regenerate()

    def _edit(self, _argument: str) -> None:
        mine = self._last(lambda m: m.role == USER, "There is no message to edit yet. Write one.")
        message_actions.edit(self._host, mine)

    def _branch(self, argument: str) -> None:
        conversing = self._host.conversing
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
        if argument == "conversation":
            from localspec.history.export import to_markdown

            self._host.copy(to_markdown(self._host.conversing.conversation))
            return
        answer = self._last(
            lambda m: m.role == ASSISTANT and bool(m.content), "There is no answer to copy yet."
        )
        if argument == "code":
            message_actions.copy_code(self._host, answer)
        elif argument in ("", "answer"):
            message_actions.copy(self._host, answer)
        else:
            raise UsageError("/copy takes answer, code, or conversation.")

    def _export(self, argument: str) -> None:
        from localspec.history.export import FORMATS, write_export

        form, _, name = argument.partition(" ")
        if form not in FORMATS:
            form, name = "", argument
        if not self._host.conversing.conversation.messages:
            raise UsageError("There is nothing to export yet.")
        where = expanded(name.strip() or ".")
        written = write_export(self._host.conversing.conversation, where, form=form or None)
        self._host.tell(f"Written to {written.absolute()}.")

    def _title(self, argument: str) -> None:
        if not argument:
            self._host.conversing.ask_for_title()
            self._host.tell("The model is writing a title.")
            return
        self._host.conversing.configure(title=argument, titled_by=BY_USER)
        self._conversation_display.show_conversation()
        self._conversation_list.list()

    def _search(self, argument: str) -> None:
        self._host.call_next(self._host.run_action, "search")
        self._host.sidebar.search_for(argument)

    def _delete(self, _argument: str) -> None:
        self._conversation_list.delete(self._host.conversing.conversation.id)

    def _why(self, _argument: str) -> None:
        answer = self._last(
            lambda m: m.role == ASSISTANT and bool(m.stats), "There is no answer to explain yet."
        )
        message_actions.explain(self._host, answer)

    def _tokens(self, argument: str) -> None:
        modes = {"on": (True, False), "off": (False, False), "rejected": (True, True)}
        if not argument:
            self._host.call_next(self._host.run_action, "tokens")
        elif argument in modes:
            self._host.show_tokens(*modes[argument])
            self._conversation_display.legend()
        else:
            raise UsageError("/tokens takes on, off, or rejected.")

    def _learn(self, argument: str) -> None:
        switches.turn(self._host, switches.LEARN, argument)

    def _record(self, argument: str) -> None:
        switches.turn(self._host, switches.RECORD, argument)

    def _theme(self, argument: str) -> None:
        if not argument:
            self._host.action_change_theme()
        elif argument in self._host.available_themes:
            self._host.theme = argument
        else:
            known = ", ".join(sorted(self._host.available_themes))
            raise UsageError(f"There is no theme '{argument}'. Choose from {known}.")

    def _stop(self, _argument: str) -> None:
        self._host.conversing.stop()

    # Parts of them

    def _last(self, wanted: Callable[[Message], bool], otherwise: str) -> Message:
        """The last such message of the shown branch; UsageError where there is none."""
        path = self._host.conversing.conversation.path()
        found = next(filter(wanted, reversed(path)), None)
        if found is None:
            raise UsageError(otherwise)
        return found

    def _pair(self) -> PairReference:
        opened = self._host.conversing.opened
        return PairReference(None) if opened is None else opened.pair

    def _pick(self, *, draft_only: bool) -> None:
        from localspec.tui.screens.model_picker import ModelPicker

        opened = self._host.conversing.opened
        beside = [] if opened is None else [Path(opened.model_path).parent]
        self._picker = ModelPicker(self._pair(), beside, draft_only=draft_only)

        def picked(pair: PairReference | None) -> None:
            if pair is not None:
                self._host.attempt(partial(self._open, pair))

        self._host.push_screen(self._picker, picked)

    def _open(self, pair: PairReference) -> None:
        self._host.conversing.require_idle()
        self._host.run_worker(partial(self._open_or_fetch, pair), thread=True, group="fetch")

    def _open_or_fetch(self, pair: PairReference) -> None:
        """Open it, after a download where needed. Runs in a thread."""
        missing = [
            reference
            for reference in (pair.model, pair.draft)
            if reference is not None and _is_to_download(reference, self._host.offline)
        ]
        if not missing:
            self._host.call_from_thread(self._host.open, pair)
            return
        from localspec.tui.screens.download_screen import DownloadScreen

        self._host.call_from_thread(
            self._host.push_screen,
            DownloadScreen(missing),
            lambda here: self._host.open(pair) if here else None,
        )

    def _settings(self, to: str) -> None:
        from localspec.tui.screens.settings_screen import SettingsScreen

        conversation = self._host.conversing.conversation
        values = dict(conversation.sampling)
        if conversation.max_tokens is not None:
            values[MAX_TOKENS] = conversation.max_tokens
        self._host.push_screen(
            SettingsScreen(conversation.system, values, to=to), self._take_settings
        )

    def _take_settings(self, chosen: ChosenSettings | None) -> None:
        if chosen is None:
            return
        sampling = dict(chosen.sampling)
        most = sampling.pop(MAX_TOKENS, None)
        self._host.conversing.configure(system=chosen.system, sampling=sampling, max_tokens=most)
        if chosen.always:
            preferences = self._host.preferences
            preferences.system, preferences.sampling = chosen.system, sampling
            preferences.max_tokens = None if most is None else int(most)
            self._host.save_preferences()


def _is_to_download(reference: str, offline: bool | None) -> bool:
    from localspec.hub import cache, resolution
    from localspec.hub.reference import Repository

    with suppress(LocalspecError):  # whoever opens it says why
        if isinstance(resolution.identify(reference), Repository):
            try:
                resolution.find(reference, offline=offline)
            except ModelNotFound:
                return not (cache.offline_by_environment() if offline is None else offline)
    return False

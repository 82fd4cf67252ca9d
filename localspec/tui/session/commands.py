"""Slash commands: definitions, parsing and completion."""

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from glob import escape, glob
from typing import Any

from localspec import SamplingParams
from localspec.errors import UsageError

MAX_TOKENS = "max_tokens"
SETTINGS = (*(f.name for f in fields(SamplingParams) if f.name != "logit_bias"), MAX_TOKENS)
"""Names for `/set`: the numeric fields of SamplingParams, and MAX_TOKENS."""


@dataclass(frozen=True, slots=True)
class Command:
    """A slash command. `arguments`: in capitals, or one of the words of the first bracket;
    `values`: kind of further values that complete an argument."""

    name: str
    arguments: str
    about: str
    values: str = ""

    @property
    def words(self) -> list[str]:
        return re.findall("[a-z]+", self.arguments.partition("]")[0])


COMMANDS = (
    Command("help", "", "all commands and keys"),
    Command("new", "", "start a new conversation"),
    Command("model", "[REF]", "choose the model, or open this one", "models"),
    Command("draft", "[REF|auto|self|none]", "choose the draft model", "drafts"),
    Command("system", "[TEXT]", "edit the system prompt, or set it"),
    Command("set", "[NAME [VALUE]]", "edit the sampling parameters, or set one", "settings"),
    Command("attach", "FILE", "send a text file or an image with the next message", "files"),
    Command("detach", "", "do not send the attached files"),
    Command("regenerate", "", "answer the last message again"),
    Command("edit", "", "change your last message and send it as a branch"),
    Command("branch", "[next|previous|N]", "switch between branches"),
    Command("copy", "[answer|code|conversation]", "copy to the clipboard"),
    Command("export", "[md|json] [FILE]", "write the conversation to a file"),
    Command("title", "[TEXT]", "name the conversation, or let the model do it"),
    Command("search", "[WORDS]", "search all conversations"),
    Command("delete", "", "delete the conversation"),
    Command("why", "", "explain the last answer's speed in words"),
    Command("tokens", "[on|off|rejected]", "colour tokens by drafter"),
    Command("learn", "[on|off]", "learn conversations, to draft from them"),
    Command("record", "[on|off]", "record answers, to train a draft from"),
    Command("figures", "", "show or hide the figures"),
    Command("sidebar", "", "show or hide the list of conversations"),
    Command("theme", "[NAME]", "choose the colours", "themes"),
    Command("stop", "", "stop the answer"),
    Command("quit", "", "leave"),
)
_NAMES = {command.name: command for command in COMMANDS}
_ALIASES = {"exit": "quit", "bye": "quit", "clear": "new", "?": "help"}
BY_NAME = _NAMES | {name: _NAMES[ours] for name, ours in _ALIASES.items()}
"""Commands by name, including aliases from other chat programs."""


@dataclass(frozen=True, slots=True)
class CommandCompletion:
    """A completion. `text`: the whole completed line; `label`, `about`: shown in the list."""

    text: str
    label: str
    about: str = ""


def parse(line: str) -> tuple[Command, str] | None:
    """Parse a line into a command and its argument; None for text to send.

    `//` escapes a leading slash. Raises UsageError for an unknown command.
    """
    if not line.startswith("/") or line.startswith("//"):
        return None
    name, _, argument = line[1:].partition(" ")
    if "\n" in name or "/" in name:
        return None  # a path, or code
    command = BY_NAME.get(name.strip().lower())
    if command is None:
        raise UsageError(
            f"There is no command /{name.strip()}. /help lists them; begin with // to send it."
        )
    return command, argument.strip()


def escaped(text: str) -> str:
    """What to type to send a text: `//` begins a message that would be a command."""
    with suppress(UsageError):  # of an unknown command
        if parse(text.strip()) is None:
            return text
    return f"/{text}"


def unescaped(text: str) -> str:
    """The message that a typed text sends; a comment such as `// main.c` stays as it is."""
    message = text[1:]
    return message if escaped(message) == text and not message[1:2].isspace() else text


def complete(line: str, known: Mapping[str, Sequence[str]]) -> list[CommandCompletion]:
    """Completions of a line. `known`: values by `Command.values`, besides the settings."""
    if not line.startswith("/") or line.startswith("//") or "\n" in line:
        return []
    name, space, argument = line[1:].partition(" ")
    if not space:
        return [
            CommandCompletion(
                f"/{c.name}{' ' if c.arguments else ''}",
                f"/{c.name} {c.arguments}".strip(),
                c.about,
            )
            for c in COMMANDS
            if c.name.startswith(name.lower())
        ]
    command = BY_NAME.get(name.lower())
    if command is None:
        return []
    if command.values == "files":
        return [CommandCompletion(f"/{name} {path}", path) for path in _files(argument)]
    if " " in argument:
        return []
    further = SETTINGS if command.values == "settings" else known.get(command.values, ())
    return [
        CommandCompletion(f"/{name} {value}", value)
        for value in dict.fromkeys([*command.words, *further])
        if argument.lower() in value.lower() and value != argument
    ]


def setting(argument: str) -> tuple[str, float | int | None]:
    """Parse the argument of `/set NAME VALUE`; the value is None for "default". Raises
    UsageError."""
    name, _, text = argument.replace("=", " ", 1).partition(" ")
    name, text = name.strip().lower().replace("-", "_"), text.strip()
    name = {"temp": "temperature", "n": MAX_TOKENS}.get(name, name)
    if name not in SETTINGS:
        raise UsageError(f"There is no setting '{name}'. Choose from {', '.join(SETTINGS)}.")
    if text in ("default", "none", ""):
        return name, None
    whole = name in ("top_k", "penalty_last_n", "seed", MAX_TOKENS)
    try:
        value = int(text) if whole else float(text)
    except ValueError:
        kind = "whole number" if whole else "number"
        raise UsageError(f"{name} is '{text}'. Give a {kind}, or 'default'.") from None
    if name == MAX_TOKENS:
        if value < 1:
            raise UsageError(f"max_tokens is {text}. Give 1 or more, or 'default'.")
    else:
        sampling_params(**{name: value})
    return name, value


def sampling_params(**sampling: float | int) -> SamplingParams:
    """SamplingParams from the known names; raises UsageError for invalid values."""
    known: dict[str, Any] = {n: value for n, value in sampling.items() if n in SETTINGS}
    try:
        return SamplingParams(**known)
    except TypeError:  # values from a file need not be numbers
        values = ", ".join(f"{name} {value!r}" for name, value in known.items())
        raise UsageError(f"Some settings are invalid: {values}. /set changes them.") from None


def _files(typed: str) -> list[str]:
    """Paths that start with the typed text; folders end with a slash."""
    start = os.path.expanduser(typed)
    return [
        f"{typed}{path.removeprefix(start)}{'/' * os.path.isdir(path)}"
        for path in sorted(glob(f"{escape(start)}*"))[:50]
    ]

"""Read texts from the command line, standard input, and files."""

import os
import re
from contextlib import suppress
from typing import TextIO

from localspec.errors import Cancelled, LocalspecError, UsageError
from localspec.files import MOST, require_file
from localspec.paths import expanded
from localspec.text import decoded, not_utf8


def read_prompt(argument: str | None, stdin: TextIO | None, default: str | None = None) -> str:
    """Read the prompt: piped text, a blank line, and the argument. "-" and None mean only standard
    input; a terminal is read only for "-". `default`: used if nothing was given or piped in.
    Raises UsageError if there is no prompt or it is not UTF-8, and Cancelled on Ctrl+C."""
    parts: list[str] = []
    if stdin is not None and (argument == "-" or not stdin.isatty()):
        parts.append(_read(stdin))
    elif argument == "-" or argument is default is None:
        raise UsageError('There is no prompt. Write it in quotes: localspec run "Tell me a story".')
    if argument not in (None, "-"):
        assert argument is not None
        parts.append(require_utf8(argument, "The prompt"))
    text = "\n\n".join(part for part in parts if part)
    if not text.strip() and argument is None and default:
        return default
    if not text.strip():
        raise UsageError("The prompt is empty. Write some text, or pipe it in.")
    return text


def mistaken_model(prompt: str | None) -> str | None:
    """The model that a prompt of one word may be meant to name, as `ollama run qwen3:8b` does."""
    from localspec.hub import catalog, reference

    with suppress(LocalspecError):
        if prompt and re.fullmatch(r"\S{4,200}", prompt):
            parsed = reference.parse(prompt)
            if isinstance(parsed, reference.CatalogName):
                return next(iter(catalog.load().similar(parsed)), None)
            return prompt if "gguf" in prompt.lower() else None
    return None


def _read(stdin: TextIO) -> str:
    try:
        data = stdin.buffer.read(MOST + 1)
    except KeyboardInterrupt:
        raise Cancelled("Interrupted while standard input was read.") from None
    except OSError as error:
        raise UsageError(
            f"Standard input cannot be read: {error.strerror}. Pipe text into it."
        ) from None
    if len(data) > MOST:
        raise UsageError(f"Standard input has more than {MOST:,} bytes. Pipe in less.")
    text = decoded(data, "Standard input")
    return text.removesuffix("\n").removesuffix("\r")


GRAMMAR, SCHEMA = re.compile(r"(?m)::=|^\s*start\s*:"), re.compile(r"\A\s*\{")
"""Patterns of inline GBNF or Lark, and of inline JSON; any other value is a path."""


def text_or_file(value: str | None, option: str, inline: re.Pattern[str]) -> str | None:
    """The value itself if it matches `inline`, else the text of the file that it names. `@PATH` is
    always a file. Raises UsageError if it cannot be read."""
    if value is None:
        return None
    text = require_utf8(value, option)
    if inline.search(value) and not value.startswith("@"):
        return text
    path = expanded(value.removeprefix("@"))
    if not os.path.exists(path):  # unlike Path.exists, it accepts any name
        raise UsageError(
            f"{option}: there is no file {path}. Check the path, or give the text itself."
        )
    return decoded(require_file(path, streams=True), str(path))


def require_utf8(text: str, what: str) -> str:
    """Decode an argument as UTF-8 even if the locale is another; raises UsageError with the
    position of the first invalid byte."""
    with suppress(UnicodeEncodeError):
        text.encode()
        return text
    try:
        return os.fsencode(text).decode()
    except UnicodeDecodeError as error:
        raise not_utf8(what, error.start) from None


def require_texts(values: list[str] | None, option: str, escapes: bool = False) -> tuple[str, ...]:
    """Values of a repeatable option; UsageError if one is empty. `escapes`: read \\n, \\r, \\t."""
    texts = tuple(require_utf8(value, option) for value in values or ())
    if "" in texts:
        raise UsageError(f"{option} is empty. Leave it out, or give some text.")
    ends = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\"} if escapes else {}
    return tuple(re.sub(r"\\(.)", lambda m: ends.get(m[1], m[0]), text) for text in texts)

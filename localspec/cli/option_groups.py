"""Declaration of options and arguments, and those that most verbs have.

Shared options are declared once, in groups. Options that are not given are None: the defaults are
in the dataclasses and in `localspec.settings`, and the help texts quote them.
"""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from typer.core import TyperArgument, TyperOption

from localspec.errors import UsageError
from localspec.paths import expanded
from localspec.text import path_to_file

Shared = partial[Any]
"""Creates an option or argument of a verb; the verb adds the parameter name."""
Group = Mapping[str, Shared]
"""Options and arguments by parameter name."""
Params = dict[str, Any]
"""Values by parameter name. What was not given is None, or () for repeatable arguments."""
Verb = TypeVar("Verb", bound=Callable[..., int])

OUTPUT = "Output"
_FILES = ("FILE", "FOLDER", "PATH", "DIR")
_KINDS: Mapping[str, Any] = {
    **dict.fromkeys(("N", "K"), int),
    **dict.fromkeys(("X", "P"), float),
    **dict.fromkeys(_FILES, expanded),
    "FILE": path_to_file,
    "": bool,
}
"""Value types by metavar; all others are str."""


def default(record: type[Any], name: str) -> str:
    """Sentence with a field's default, for a help text."""
    found = next(field for field in dataclasses.fields(record) if field.name == name)
    return f"Default {found.default}."


def in_panel(panel: str | None, *, advanced: bool = False) -> Callable[..., Shared]:
    """A function that declares options of a titled group, or of none. Only `--help-all` shows
    `advanced` ones. It takes names and metavar separated by blanks, the help text, and the
    `least` value. "Repeatable" in the help text makes the option repeatable."""

    def option(names: str, help: str, *, least: int | None = None) -> Shared:
        words = names.split()
        declared = [word for word in words if word.startswith("-")]
        metavar = " ".join(words[len(declared) :])
        kind = _KINDS.get(metavar.rpartition("|")[2], str)
        several = "Repeatable" in help

        def read(context: Any, option: Any, value: Any) -> Any:
            if value is not None and least is not None and not least <= value < 1 << 63:
                better = f"{least} or more" if value < least else "a smaller number"
                raise UsageError(f"{declared[-1]} is {value}. Give {better}.")
            if "" in (value if several else [value]) and metavar.endswith(_FILES):
                raise UsageError(f"{declared[-1]} is empty. Leave it out, or name a file.")
            if several:
                return [kind(part) for part in value] or None
            return value if value is None else kind(value)

        return partial(
            TyperOption,
            param_decls=declared,
            type=kind if kind in (int, float) else None,
            is_flag=kind is bool,
            multiple=several,
            callback=read,
            metavar=metavar,
            help=help,
            rich_help_panel=panel,
            hidden=advanced,
        )

    return option


def argument(metavar: str, help: str, *, required: bool = True) -> Shared:
    """An argument. Dots in the metavar make it repeatable, brackets optional."""
    return partial(
        TyperArgument,
        param_decls=[],
        nargs=-1 if metavar.endswith(("…", "...")) else 1,
        required=required and not metavar.startswith("["),
        metavar=metavar,
        show_default=False,
        help=help,
    )


def takes(*groups: Group) -> Callable[[Verb], Verb]:
    """Decorator that gives a verb, which is called with a console and `Params`, its parameters."""

    def declare(verb: Verb) -> Verb:
        vars(verb)["takes"] = {name: option for group in groups for name, option in group.items()}
        return verb

    return declare


def only(group: Group, *names: str) -> Group:
    return {name: group[name] for name in names}


def without(group: Group, *names: str) -> Group:
    return {name: annotation for name, annotation in group.items() if name not in names}


def renamed(option: Shared, *names: str) -> Shared:
    return partial(option, param_decls=names)


YES = {"yes": in_panel(None)("-y --yes", "Delete without asking.")}
_output = in_panel(OUTPUT)
COMMON = {
    "json": _output("--json", "Print one JSON object on standard output."),
    "quiet": _output("-q --quiet", "Print only results and errors."),
    "verbose": partial(
        TyperOption,
        param_decls=["-v", "--verbose"],
        type=int,
        count=True,
        default=0,
        metavar="",
        help="Print the log, including llama.cpp's, on standard error; -vv prints more.",
        rich_help_panel=OUTPUT,
    ),
}
"""Options of most verbs; they configure the console before a verb runs."""

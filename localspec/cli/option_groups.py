"""Declaration of options and arguments, and those that most verbs have.

Shared options are declared once, in groups. Options that are not given are None: the defaults are
in the dataclasses and in `localspec.settings`, and the help texts quote them.
"""

import dataclasses
import re
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
"""Values by parameter name; if not given, None, or () for repeatable arguments."""
Verb = TypeVar("Verb", bound=Callable[..., int | None])
"""A verb returns its exit code; None is 0."""

_FILES = ("FILE", "FOLDER", "PATH", "DIR")
_KINDS: Mapping[str, Any] = {
    **dict.fromkeys(("N", "K"), int),
    **dict.fromkeys(("X", "P"), float),
    **dict.fromkeys(_FILES, expanded),
    "FILE": path_to_file,
    "": bool,
}
"""Value types by metavar; all others are str."""
_LISTED = re.compile(r": ((?:[\w-]+, )+[\w-]+)\.")
"""Values that a help text lists, which the shell completes."""


def default(record: type[Any], name: str) -> str:
    """Sentence with a field's default, for a help text."""
    found = next(field for field in dataclasses.fields(record) if field.name == name)
    return f"Default {found.default}."


def parameters(text: str) -> Group:
    """Declare options and arguments by parameter name, in the form of the help texts:

        Title of a group:
            -n --max-tokens N≥1
                The help text, in any number of lines.
            paths: [PATH]...
                An argument: nothing in its heading begins with a dash.

    Headings are indented by 4. The parameter's name is the text before a colon, by default the
    option's last name. The metavar determines the type; `≥` is followed by the minimum. Only
    `--help-all` shows options with a final `*`. "Repeatable" in the help text makes an option
    repeatable. In a metavar, dots make an argument repeatable, and brackets make it optional."""
    found, panel = dict[str, Shared](), None
    for block in re.split(r"\n(?=(?: {4})?\S)", text.strip("\n")):
        heading, *lines = (line.strip() for line in block.splitlines())
        if not block.startswith(" "):
            panel = heading.removesuffix(":")
            continue
        name, _, declared = heading.rpartition(": ")
        options = re.findall(r"(?<!\S)-\S+", declared)
        if options:
            name = name or options[-1].partition("/")[0].lstrip("-").replace("-", "_")
            found[name] = _option(declared, options, " ".join(lines), panel)
        else:
            found[name] = _argument(declared, " ".join(lines))
    return found


def _option(declared: str, names: list[str], help: str, panel: str | None) -> Shared:
    words = declared.removesuffix(" *").split()[len(names) :]
    metavar, _, least = " ".join(words).partition("≥")
    kind = _KINDS.get(metavar.rpartition("|")[2], str)
    several = "Repeatable" in help
    choices = [one for listed in _LISTED.findall(help) for one in listed.split(", ")]

    def read(context: Any, option: Any, value: Any) -> Any:
        if value is not None and least and not int(least) <= value < 1 << 63:
            better = f"{least} or more" if value < int(least) else "a smaller number"
            raise UsageError(f"{names[-1]} is {value}. Give {better}.")
        if "" in (value if several else [value]) and metavar.endswith(_FILES):
            raise UsageError(f"{names[-1]} is empty. Leave it out, or name a file.")
        if several:
            return [kind(part) for part in value] or None
        return value if value is None else kind(value)

    return partial(
        TyperOption,
        param_decls=names,
        type=kind if kind in (int, float) else None,
        is_flag=kind is bool,
        multiple=several,
        callback=read,
        autocompletion=lambda *_: choices,
        metavar=metavar,
        help=help,
        rich_help_panel=panel,
        hidden=declared.endswith(" *"),
    )


def _argument(metavar: str, help: str) -> Shared:
    name = metavar.strip("[].")

    def read(context: Any, argument: Any, value: Any) -> Any:
        if name in (*_FILES, "PROMPTS") and "" in value:
            raise UsageError(f"{name} is empty. Leave it out, or name a file.")
        return value

    return partial(
        TyperArgument,
        param_decls=[],
        nargs=-1 if metavar.endswith(("…", "...")) else 1,
        required=not metavar.startswith("["),
        callback=read,
        metavar=metavar,
        show_default=False,
        help=help,
    )


def takes(*groups: Group) -> Callable[[Verb], Verb]:
    """Decorator that declares a verb's parameters; the verb gets a console and `Params`."""

    def declare(verb: Verb) -> Verb:
        vars(verb)["takes"] = {name: option for group in groups for name, option in group.items()}
        return verb

    return declare


def only(group: Group, *names: str) -> Group:
    return {name: group[name] for name in names}


def without(group: Group, *names: str) -> Group:
    return {name: annotation for name, annotation in group.items() if name not in names}


YES = parameters("""
    -y --yes
        Delete without asking.
""")
COMMON = {
    **parameters("""
Output:
    --json
        Print one JSON object on standard output.
    -q --quiet
        Print only results and errors.
"""),
    "verbose": partial(
        TyperOption,
        param_decls=["-v", "--verbose"],
        type=int,
        count=True,
        default=0,
        metavar="",
        help="Print the log, including llama.cpp's, on standard error; -vv prints more.",
        rich_help_panel="Output",
    ),
}
"""Options of most verbs; they configure the console before a verb runs."""

"""How verbs declare options, and the few that most verbs have.

Shared options are declared once, in groups. Each is None until it is given: defaults are those of
the dataclasses and of `localspec.settings`, which the help texts quote.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Mapping
from copy import copy
from typing import Annotated, Any, TypeVar

import typer

Shared = tuple[Any, Any]
"""Type and declaration of an option."""
Group = Mapping[str, Shared]
"""Options by parameter name."""
Verb = TypeVar("Verb", bound=Callable[..., int])

OUTPUT = "Output"


def default(record: type[Any], name: str) -> str:
    """A field's default, for a help text."""
    found = next(field for field in dataclasses.fields(record) if field.name == name)
    return f"Default {found.default}."


def in_panel(panel: str) -> Callable[..., Shared]:
    """Declares options of one titled group.

    The result takes a type, names with blanks between, a metavar ("" for a flag), the help text,
    and `advanced` for an option that only `--help-all` shows.
    """

    def option(kind: Any, names: str, metavar: str, help: str, *, advanced: bool = False) -> Shared:
        info = typer.Option(
            None,
            *names.split(),
            metavar=metavar,
            help=help,
            rich_help_panel=panel,
            show_default=False,
            hidden=advanced,
        )
        return kind | None, info

    return option


def takes(*groups: Group) -> Callable[[Verb], Verb]:
    """Give a verb these options; it finds their values in `context.params`."""

    def declare(verb: Verb) -> Verb:
        options = {name: option for group in groups for name, option in group.items()}
        verb.shared = options  # type: ignore[attr-defined]
        return verb

    return declare


def only(group: Group, *names: str) -> Group:
    return {name: group[name] for name in names}


def without(group: Group, *names: str) -> Group:
    return {name: annotation for name, annotation in group.items() if name not in names}


def renamed(option: Shared, *names: str) -> Shared:
    kind, info = option
    info = copy(info)
    info.param_decls = names
    return kind, info


Reference = Annotated[
    str,
    typer.Argument(
        metavar="REF",
        show_default=False,
        help="A name from 'localspec models', user/repo[:quant] of Hugging Face (default Q4_K_M, "
        "else its first GGUF), hf.co/user/repo, or the address of a file there.",
    ),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print one JSON object on standard output.",
        rich_help_panel=OUTPUT,
        show_default=False,
    ),
]
Quiet = Annotated[
    bool,
    typer.Option(
        *("-q", "--quiet"),
        help="Print only results and errors.",
        rich_help_panel=OUTPUT,
        show_default=False,
    ),
]
Verbose = Annotated[
    int,
    typer.Option(
        *("-v", "--verbose"),
        count=True,
        rich_help_panel=OUTPUT,
        show_default=False,
        metavar="",
        help="Print the log, including llama.cpp's, on standard error; -vv prints more.",
    ),
]


def command_line(context: typer.Context) -> str:
    """The command line as it would be typed again."""
    words = ["localspec", str(context.info_name)]
    for parameter in context.command.params:
        name = str(parameter.name)
        source = context.get_parameter_source(name)
        if source is None or source.name != "COMMANDLINE":
            continue
        value = context.params[name]
        option = max(parameter.opts, key=len)
        if isinstance(value, bool):
            words.append(option)
        elif name == "verbose":
            words += [option] * int(value)
        else:
            for each in value if isinstance(value, list | tuple) else [value]:
                words += [option, str(each)]
    return shlex.join(words)

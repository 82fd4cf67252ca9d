"""How verbs declare options, and the few that most verbs have.

Shared options are declared once, in groups. Each is None until it is given: defaults are those of
the dataclasses and of `localspec.settings`, which the help texts quote.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperOption

from localspec.errors import UsageError
from localspec.paths import expanded

Shared = partial[TyperOption]
"""Makes an option of a verb, which gives it the parameter name."""
Group = Mapping[str, Shared]
"""Options by parameter name."""
Verb = TypeVar("Verb", bound=Callable[..., int])

OUTPUT = "Output"
KINDS: Mapping[str, Any] = {
    **dict.fromkeys(("N", "K"), int),
    **dict.fromkeys(("X", "P"), float),
    **dict.fromkeys(("FILE", "FOLDER", "PATH", "DIR"), expanded),
    "": bool,
}
"""Types of values by metavar; others are str."""


def default(record: type[Any], name: str) -> str:
    """A field's default, for a help text."""
    found = next(field for field in dataclasses.fields(record) if field.name == name)
    return f"Default {found.default}."


def in_panel(panel: str | None, *, advanced: bool = False) -> Callable[..., Shared]:
    """Declares options of one titled group, or of none; only `--help-all` shows `advanced` ones.
    The result takes the names and the metavar with blanks between, the help text, which says
    "Repeatable" if it is, and the `least` value."""

    def option(names: str, help: str, *, least: int | None = None) -> Shared:
        words = names.split()
        declared = [word for word in words if word.startswith("-")]
        metavar = " ".join(words[len(declared) :])
        kind = KINDS.get(metavar.rpartition("|")[2], str)
        several = "Repeatable" in help

        def read(context: Any, option: Any, value: Any) -> Any:
            if value is not None and least is not None and value < least:
                raise UsageError(f"{declared[-1]} is {value}. Give {least} or more.")
            if several:
                return [kind(one) for one in value] or None
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


def argument(metavar: str, help: str) -> Any:
    return typer.Argument(metavar=metavar, show_default=False, help=help)


def takes(*groups: Group) -> Callable[[Verb], Verb]:
    """Give a verb these options; it finds their values in `context.params`."""

    def declare(verb: Verb) -> Verb:
        vars(verb)["options"] = {name: one for group in groups for name, one in group.items()}
        return verb

    return declare


def only(group: Group, *names: str) -> Group:
    return {name: group[name] for name in names}


def without(group: Group, *names: str) -> Group:
    return {name: annotation for name, annotation in group.items() if name not in names}


def renamed(option: Shared, *names: str) -> Shared:
    return partial(option, param_decls=names)


Reference = Annotated[
    str,
    argument(
        "REF",
        "A name from 'localspec models', user/repo[:quant] of Hugging Face (default Q4_K_M, "
        "else the nearest to 4 bits), hf.co/user/repo, or the address of a file there.",
    ),
]
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
"""Options of most verbs; the console is configured by them before a verb runs."""

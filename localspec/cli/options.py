"""How verbs declare their options, and the few that most verbs have.

A verb's own options are parameters of its function. Those that several verbs share are declared
once, as groups: `takes` gives them to a verb, which finds their values in `context.params`. Every
option of a group is None until it is given: the defaults are those of the dataclasses (and of
`localspec.settings`), which the help texts quote. `localspec.cli.request` makes records of them.
"""

from __future__ import annotations

import dataclasses
import inspect
import shlex
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Annotated, Any, Protocol

import typer

Group = Mapping[str, Any]
"""Annotations by the names of parameters."""

OUTPUT = "Output"


def default(record: type[Any], name: str) -> str:
    """A field's default as help texts end with it."""
    found = next(field for field in dataclasses.fields(record) if field.name == name)
    return f"Default {found.default}."


class Option(Protocol):
    """Declares one option of a group; one without a metavar is a flag.

    An advanced one is shown by `--help-all` alone.
    """

    def __call__(
        self, kind: Any, *names: str, help: str, metavar: str = "", advanced: bool = False
    ) -> Any: ...


def in_panel(panel: str) -> Option:
    """Declares options that the help text shows together."""

    def option(kind: Any, *names: str, help: str, metavar: str = "", advanced: bool = False) -> Any:
        said = typer.Option(
            *names,
            metavar=metavar,
            help=help,
            rich_help_panel=panel,
            show_default=False,
            hidden=advanced,
        )
        return Annotated[kind | None, said]

    return option


def takes(*groups: Group) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Give a verb the options of these groups, in front of its keyword-only ones."""
    shared = {name: annotation for group in groups for name, annotation in group.items()}

    def declare(verb: Callable[..., int]) -> Callable[..., int]:
        own = inspect.signature(verb, eval_str=True).parameters

        @wraps(verb)
        def with_groups(**said: Any) -> int:
            return verb(**{name: said[name] for name in own})

        late = [p for p in own.values() if p.kind is p.KEYWORD_ONLY]
        early = [p for p in own.values() if p.kind is not p.KEYWORD_ONLY]
        parameters = [
            *early,
            *(
                inspect.Parameter(
                    name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
                )
                for name, annotation in shared.items()
            ),
            *late,
        ]
        # What typer reads a command's options from.
        with_groups.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        with_groups.__annotations__ = {p.name: p.annotation for p in parameters}
        return with_groups

    return declare


def only(group: Group, *names: str) -> Group:
    """A part of a group."""
    return {name: group[name] for name in names}


def without(group: Group, *names: str) -> Group:
    """A group but for some of its options."""
    return {name: annotation for name, annotation in group.items() if name not in names}


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

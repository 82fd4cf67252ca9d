"""Help texts: plain columns, options in titled groups, rare options in `--help-all`."""

from collections.abc import Mapping, Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

_ARGUMENTS, _OPTIONS = "Arguments", "Options"


class Command(TyperCommand):
    """A verb, with `--help-all`."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        options = getattr(self.callback, "options", {})  # see `localspec.cli.option_groups.takes`
        self.params += [
            option(param_decls=[name, *option.keywords["param_decls"]])
            for name, option in options.items()
        ]

    def invoke(self, ctx: Any) -> Any:
        assert self.callback is not None
        json, quiet = (bool(ctx.params.get(name)) for name in ("json", "quiet"))
        ctx.obj.configure(json=json, quiet=quiet, verbosity=ctx.params.get("verbose") or 0)
        own = {param.name for param in self.params if param.param_type_name == "argument"}
        given = {name: value for name, value in ctx.params.items() if name in own}
        return ctx.invoke(self.callback, **given)

    def get_params(self, ctx: Any) -> list[Any]:
        return [*super().get_params(ctx), _help_all(self.params)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        write_options(self, ctx, formatter)


class Group(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return [*super().get_params(ctx), _help_all(self.params)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        write_options(self, ctx, formatter)
        self.format_commands(ctx, formatter)


def write_options(command: Any, ctx: Any, formatter: Any) -> None:
    """Write arguments, titled groups of options, then options without a group."""
    sections: dict[str, list[tuple[str, str]]] = {_ARGUMENTS: []}
    untitled: list[tuple[str, str]] = []
    for param in command.get_params(ctx):
        record = param.get_help_record(ctx)
        if record is None:  # it is hidden
            continue
        title = _ARGUMENTS if param.param_type_name == "argument" else param.rich_help_panel
        rows = untitled if title is None else sections.setdefault(title, [])
        rows.append(record)
    for title, rows in {**sections, _OPTIONS: untitled}.items():
        if rows:
            with formatter.section(title):
                formatter.write_dl(rows)


def write_commands(groups: Mapping[str, Mapping[str, str]], formatter: Any) -> None:
    width = max(len(verb) for verbs in groups.values() for verb in verbs)
    for title, verbs in groups.items():
        with formatter.section(title):
            formatter.write_dl([(f"{verb:<{width}}", text) for verb, text in verbs.items()])


def verbatim(text: str) -> str:
    """Mark a paragraph that the formatter must not wrap."""
    return f"\b\n{text}" if text else ""


def _help_all(params: Sequence[Any]) -> Any:
    """The option --help-all; hidden if it would show nothing more."""
    return TyperOption(
        param_decls=["--help-all"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_show_all,
        hidden=not any(getattr(param, "hidden", False) for param in params),
        help="Show all options and exit.",
    )


def _show_all(ctx: Any, param: Any, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        for one in ctx.command.params:
            one.hidden = False
        typer.echo(ctx.get_help())
        raise typer.Exit

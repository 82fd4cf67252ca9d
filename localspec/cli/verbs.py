"""The verbs, and their help texts: plain columns, options in titled groups, rare options in
`--help-all`. Each verb is imported and built only when it runs.

Declaring all options takes longer than a small command, so the overview has the summaries, which
the docstrings of verbs continue. Verbs import numpy and the engine late, for quick help texts.
"""

import re
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from inspect import getdoc
from itertools import pairwise, takewhile
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from localspec.cli.other_names import advised, elsewhere
from localspec.errors import UsageError

GROUPS = {
    "Use a model": {
        "run": "Answer one prompt.",
        "chat": "Chat in the terminal.",
        "serve": "Serve the APIs of OpenAI, Anthropic, llama.cpp and ollama.",
    },
    "Models": {
        "models": "List recommended models with their drafts and licences.",
        "pull": "Download a model from Hugging Face.",
        "list": "List the models on this machine.",
        "show": "Show a model, the memory it needs, and drafts that fit it.",
        "rm": "Delete downloaded models.",
    },
    "Measure and check": {
        "doctor": "Check this machine and your models, and measure the gain.",
        "race": "Watch plain decoding and localspec answer the same prompt.",
        "verify": "Check that drafting does not change the output.",
    },
    "Advanced": {
        "bench": "Compare configurations, plain decoding and other programs.",
        "eval": "Score a model on a test suite, with and without drafting.",
        "learn": "Learn texts, to speed up answers that repeat them.",
        "distill": "Train a draft for a model from the model's own answers.",
        "history": "List, search, export and delete conversations.",
    },
}
"""Summaries of the verbs by title; the verbs' docstrings continue them."""
VERBS = {verb: summary for verbs in GROUPS.values() for verb, summary in verbs.items()}
_FUNCTIONS = {"list": "list_models", "eval": "evaluate"}  # named otherwise than their verbs


class Command(TyperCommand):
    """A verb, with the parameters that it `takes`, and `--help-all`."""

    def __init__(
        self, name: str, verb: Callable[..., int | None], *, summary: str = "", examples: str = ""
    ) -> None:
        options = vars(verb)["takes"].items()
        super().__init__(
            name,
            callback=verb,
            params=[o(param_decls=[name, *o.keywords["param_decls"]]) for name, o in options],
            help="\n\n".join(filter(None, (summary, getdoc(verb)))),
            epilog=verbatim(examples),
            rich_markup_mode=None,
        )

    def invoke(self, ctx: Any) -> Any:
        json, quiet = (bool(ctx.params.get(name)) for name in ("json", "quiet"))
        ctx.obj.configure(json=json, quiet=quiet, verbosity=ctx.params.get("verbose"))
        return ctx.invoke(self.callback, ctx.obj, ctx.params)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        named = {name: param for param in self.params for name in param.opts}
        for before, word in pairwise(["", *takewhile("--".__ne__, args)]):
            # The parser would read -np as -n with a value.
            whole = re.match(r"-\w\w", word) and elsewhere(word, named)
            if whole and word not in named and getattr(named.get(before), "is_flag", True):
                raise UsageError(advised(f"No such option: {word}", word, named))
        try:
            return super().parse_args(ctx, args)
        except typer.TyperException as error:  # the parser's own errors lack it
            (it := vars(error))["ctx"] = ctx
            if "possibilities" in it:
                it["possibilities"] = []
                word = it["option_name"]
                it["message"] = advised(it["message"], word, named, _of_other_verbs(ctx, word))
            raise

    def get_params(self, ctx: Any) -> list[Any]:
        return [*super().get_params(ctx), _help_all(self.params)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_options(self, ctx, formatter)


class Group(TyperGroup):
    def __init__(self, **given: Any) -> None:
        super().__init__(**given | {"suggest_commands": False})

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except typer.TyperException as error:
            known = [*self.list_commands(ctx), *(o for p in self.get_params(ctx) for o in p.opts)]
            refusal = error.message.rstrip(".")
            error.message = advised(refusal, args[0], known, self.otherwise(args[0]))
            raise

    def otherwise(self, word: str) -> list[str]:
        """Suggestions for a word that is no command."""
        return []

    def get_params(self, ctx: Any) -> list[Any]:
        return [*super().get_params(ctx), _help_all(self.params)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_options(self, ctx, formatter)
        self.format_commands(ctx, formatter)


def _of_other_verbs(ctx: Any, word: str) -> list[str]:
    """Suggestions such as "run --temp" for an option of at most three other verbs."""
    root = ctx.find_root().command
    commands = {verb: root.get_command(ctx, verb) for verb in root.list_commands(ctx)}
    options = {verb: [o for p in it.params for o in p.opts] for verb, it in commands.items()}
    found = [f"{verb} {name}" for verb, all in options.items() for name in elsewhere(word, all)]
    return found if len(found) <= 3 else []


def _write_options(command: Any, ctx: Any, formatter: Any) -> None:
    """Write arguments, titled groups of options, then options without a group."""
    sections: dict[str, list[tuple[str, str]]] = {"Arguments": []}
    untitled: list[tuple[str, str]] = []
    for param in command.get_params(ctx):
        record = param.get_help_record(ctx)
        if record is None:  # it is hidden
            continue
        title = "Arguments" if param.param_type_name == "argument" else param.rich_help_panel
        rows = untitled if title is None else sections.setdefault(title, [])
        rows.append(record)
    for title, rows in {**sections, "Options": untitled}.items():
        if rows:
            with formatter.section(title):
                formatter.write_dl(rows)


def verbatim(text: str, title: str = "Examples") -> str:
    """A titled paragraph that the formatter must not wrap."""
    return f"\b\n{title}:\n{text}" if text else ""


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


class VerbGroup(Group):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Run `chat` if no verb is given but options of it are, or on a terminal."""
        own = {name for param in self.get_params(ctx) for name in param.opts}
        if args[:1] == ["help"]:
            args = [*args[1:2], "--help"]
        if args:
            chats = args[0].startswith("-") and args[0].partition("=")[0] not in own
        else:
            chats = all(stream and stream.isatty() for stream in (sys.stdin, sys.stdout))
        return super().parse_args(ctx, ["chat", *args] if chats else args)

    def list_commands(self, ctx: Any) -> list[str]:
        return [*VERBS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return build_command(cmd_name) if cmd_name in VERBS else None

    def otherwise(self, word: str) -> list[str]:
        """The command missing before what looks like a prompt or a model."""
        meant = "run" if " " in word else f"chat -m {word}"
        return [meant] if re.search(r"[\d/.: ]", word) else []

    def format_options(self, ctx: Any, formatter: Any) -> None:
        width = max(map(len, VERBS))
        for title, verbs in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{verb:<{width}}", text) for verb, text in verbs.items()])
        _write_options(self, ctx, formatter)


def build_command(name: str) -> Any:
    """Build the command of one of VERBS."""
    module = import_module(f"localspec.cli.{name}")
    verb = getattr(module, _FUNCTIONS.get(name, name))
    if isinstance(verb, Group):
        return verb
    return Command(name, verb, summary=VERBS[name], examples=module.EXAMPLES)

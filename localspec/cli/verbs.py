"""The verbs of the command line, each imported and built when it is asked for.

Together they have some 250 options. To declare them all and make commands of them takes longer than
everything else that a small command does, and one command line has one verb.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import typer

VERBS = {
    "run": "localspec.cli.run:run",
    "chat": "localspec.cli.chat:chat",
    "serve": "localspec.cli.serve:serve",
    "race": "localspec.cli.race:race",
    "bench": "localspec.cli.bench:bench",
    "verify": "localspec.cli.verify:verify",
    "eval": "localspec.cli.eval:evaluate",
    "learn": "localspec.cli.learn:learn",
    "distill": "localspec.cli.distill:distill",
    "paths": "localspec.cli.paths:paths",
    "doctor": "localspec.cli.doctor:doctor",
    "list": "localspec.cli.list:list_models",
    "show": "localspec.cli.show:show",
    "models": "localspec.cli.models:models",
    "pull": "localspec.cli.pull:pull",
    "rm": "localspec.cli.rm:rm",
    "history": "localspec.cli.history:history",
}
"""Function, or group of verbs, by what is typed; in the order of the help text."""


class VerbCommands(Mapping[str, Any]):
    """A command for each verb; listing their names imports none of them."""

    def __init__(self) -> None:
        self._built: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._built:
            self._built[name] = _built(name)
        return self._built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(VERBS)

    def __len__(self) -> int:
        return len(VERBS)


class VerbGroup(typer.core.TyperGroup):
    """The group of all verbs."""

    def __init__(self, **said: Any) -> None:
        super().__init__(**said)
        self.commands = VerbCommands()  # type: ignore[assignment]  # nothing is ever added

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)


def _built(name: str) -> Any:
    """What typer makes of a verb.

    Raises:
        KeyError: there is none of that name.
    """
    place, _, attribute = VERBS[name].partition(":")
    module = import_module(place)
    verb = getattr(module, attribute)
    if isinstance(verb, typer.Typer):
        return typer.main.get_group(verb)
    # Of an application with a single command typer makes that command.
    application = typer.Typer(add_completion=False)
    application.command(name, epilog=getattr(module, "EXAMPLES", None))(verb)
    return typer.main.get_command(application)

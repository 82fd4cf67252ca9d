"""The verbs. Each is imported and built only when it runs.

Declaring all options takes longer than a small command, so the overview has its own summaries;
`tests/cli/test_help.py` compares them with the help texts.
"""

import re
import sys
from importlib import import_module
from typing import Any

from localspec.cli import help as help_text

GROUPS = {
    "Use a model": {
        "run": "Answer one prompt.",
        "chat": "Chat in the terminal.",
        "serve": "Serve clients of OpenAI, Anthropic, llama.cpp and ollama.",
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
"""Summaries of the verbs by title."""

_FUNCTIONS = {"list": "list_models", "eval": "evaluate"}
VERBS = {
    verb: f"localspec.cli.{verb}:{_FUNCTIONS.get(verb, verb)}"
    for verbs in GROUPS.values()
    for verb in verbs
}
"""Module and function, or group of verbs, by name."""


class VerbGroup(help_text.Group):
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
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return build_command(cmd_name) if cmd_name in VERBS else None

    def otherwise(self, word: str) -> list[str]:
        """The command missing before what looks like a prompt or a model."""
        meant = "run" if " " in word else f"chat -m {word}"
        return [meant] if re.search(r"[\d/.: ]", word) else []

    def format_options(self, ctx: Any, formatter: Any) -> None:
        help_text.write_commands(GROUPS, formatter)
        help_text.write_options(self, ctx, formatter)


def build_command(name: str) -> Any:
    """Build the command of a verb; raises KeyError if there is none."""
    module_name, _, attribute = VERBS[name].partition(":")
    module = import_module(module_name)
    verb = getattr(module, attribute)
    if isinstance(verb, help_text.Group):
        return verb
    return help_text.Command(name, verb, examples=getattr(module, "EXAMPLES", ""))

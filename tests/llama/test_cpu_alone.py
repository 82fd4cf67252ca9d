"""What is tried in a process of its own is tried on the CPU, on a machine with a GPU as well."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from localspec import ModelOptions
from localspec.llama import library, trial
from localspec.llama.context import Context
from localspec.llama.model import Model
from tests.support.ggufs import tiny_llama


class Noted(Model):
    """A model that notes how it was opened."""

    opened: ClassVar[list[tuple[ModelOptions, bool]]] = []

    def __init__(self, path: Path, options: ModelOptions, **more: Any) -> None:
        self.opened.append((options, more.get("cpu_alone", False)))
        super().__init__(path, options, **more)


def test_a_crash_test_leaves_devices_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "Model", Noted)
    monkeypatch.setattr(Noted, "opened", [])
    assert trial.main("file", str(tiny_llama(tmp_path / "a.gguf"))) == 0
    [(options, alone)] = Noted.opened
    assert (options.gpu_layers, alone) == (0, True)


def test_a_model_that_is_kept_off_devices_works(
    draft_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "accelerated", lambda: True)
    options = ModelOptions(context=64)
    with Model(draft_path, options, cpu_alone=True) as model:
        assert not model.on_device
        context = Context(model, options)
        assert context.extend([1, 2, 3]).shape == (1, model.vocabulary.size)
        context.close()

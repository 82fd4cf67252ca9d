"""Models that the picker finds, and one to download."""

from collections.abc import Callable
from pathlib import Path

import pytest

from localspec.hub.catalog import Entry
from localspec.hub.local import LocalModel
from localspec.pairing import auto
from localspec.pairing.auto import DraftCandidate
from localspec.pairing.rules import Check, failure
from localspec.tui.screens import model_picker


def a_model(
    name: str,
    size: int,
    *,
    parameters: int | None = None,
    quantization: str = "Q8_0",
    problem: str | None = None,
) -> LocalModel:
    """A file of `size` bytes in /models."""
    path = Path("/models") / f"{name}.gguf"
    return LocalModel(
        path=path,
        reference=str(path),
        name=name,
        source="folder",
        architecture="llama",
        parameters=parameters or size,
        quantization=quantization,
        trained_context=8192,
        size=size,
        problem=problem,
        chat=True,
    )


def lynx(*drafts: str) -> Entry:
    return Entry(
        name="lynx-7b",
        family="Lynx",
        parameters=7_000_000_000,
        repo="den/lynx-7b-gguf",
        size=4_700_000_000,
        licence="MIT",
        drafts=[*drafts],
        source="https://example.org",
        checked="2026-01-01",
    )


def judge_drafts(patch: pytest.MonkeyPatch, judge: Callable[[str], Check]) -> None:
    """Have drafts judged by their names, as there are no files."""

    def candidates(_target: Path, models: list[LocalModel], _use: object) -> list[DraftCandidate]:
        checks = [(model, (judge(model.name),)) for model in models]
        found = [DraftCandidate(model, failure(known), known) for model, known in checks]
        return sorted(found, key=lambda draft: not draft.usable)

    patch.setattr(model_picker, "read_gguf", lambda path: path)
    patch.setattr(auto, "candidates", candidates)

"""Models that the picker finds, and one to download."""

from pathlib import Path

from localspec.hub.catalog import Entry
from localspec.hub.local import LocalModel


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

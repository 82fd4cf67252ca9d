"""What the chat remembers from one time to the next, besides the conversations."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from localspec import paths
from localspec.tui.commands import checked


class Preferences(BaseModel):
    """Kept as JSON in the data folder; a setting in the config file or a flag wins over it."""

    model_config = ConfigDict(extra="ignore", validate_assignment=True)

    theme: str | None = None
    """Name of a Textual theme."""
    sidebar: bool | None = None
    """Whether the list of conversations is open; None goes by the width of the terminal."""
    figures: bool | None = None
    """Whether the figures are open; None goes by the width of the terminal."""
    tokens: bool = False
    """Whether tokens are coloured by their source."""
    rejected: bool = False
    """Whether rejected proposals are shown with them."""
    model: str | None = None
    """The model that was open last, as a reference."""
    draft: str | None = None
    """The draft that was chosen for it."""
    system: str | None = None
    """System prompt of new conversations."""
    sampling: dict[str, float | int] = {}
    """Sampling parameters of new conversations, by name."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Longest answer of new conversations."""

    @field_validator("sampling")
    @classmethod
    def _can_be_meant(cls, sampling: dict[str, float | int]) -> dict[str, float | int]:
        # Every answer of every new conversation would fail over it.
        checked(**sampling)
        return sampling


def file() -> Path:
    """Where they are."""
    return paths.data_folder() / "chat.json"


def load() -> tuple[Preferences, str | None]:
    """The preferences, and a sentence about what was wrong with the file, if anything was."""
    path = file()
    try:
        return Preferences.model_validate_json(path.read_text(encoding="utf-8")), None
    except FileNotFoundError:
        return Preferences(), None
    except (OSError, ValidationError, ValueError):
        return Preferences(), f"{path} could not be read, so the chat starts with its defaults."


def save(preferences: Preferences) -> str | None:
    """Replace the file in one go; returns a sentence where that fails."""
    path = file()
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        # With the system prompt in it, it is nobody else's business.
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial.touch(mode=0o600)
        partial.write_text(preferences.model_dump_json(exclude_none=True), encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        return f"The settings of the chat are not kept: {error.strerror}. Make room for {path}."
    return None

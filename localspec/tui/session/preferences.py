"""The chat's preferences on disk."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from localspec import paths
from localspec.files import read_file, write_atomically
from localspec.tui.session.commands import sampling_params
from localspec.typed import convert_fields


# No pydantic: importing it takes a tenth of the time to the first paint.
@dataclass(slots=True)
class Preferences:
    """Preferences, stored as JSON in the data folder; the config file and flags override them.
    `sidebar`, `figures`: whether they are open; None depends on the terminal's width; `tokens`,
    `rejected`: see `localspec.tui.rendering.message_lines.DisplayMode`; `learn`, `record`: see
    `localspec.tui.control.actions`; `model`, `draft`: references of the last pair; `system`,
    `sampling`, `max_tokens`: for new conversations."""

    theme: str | None = None
    sidebar: bool | None = None
    figures: bool | None = None
    tokens: bool = False
    rejected: bool = False
    learn: bool = False
    record: bool = False
    model: str | None = None
    draft: str | None = None
    system: str | None = None
    sampling: dict[str, float | int] = field(default_factory=dict)
    max_tokens: int | None = None


def file() -> Path:
    return paths.data_folder() / "chat.json"


def load() -> tuple[Preferences, str | None]:
    """The preferences, and a sentence if the file could not be read."""
    path, names = file(), {f.name for f in fields(Preferences)}
    try:
        stored = json.loads(read_file(path).decode()).items()
        found = Preferences(**{name: v for name, v in stored if name in names and v is not None})
        convert_fields(found)
        # Invalid values would make every answer of new conversations fail.
        sampling_params(**found.sampling)
        if found.max_tokens is not None and found.max_tokens < 1:
            raise ValueError(f"max_tokens is {found.max_tokens}")
    except FileNotFoundError:
        return Preferences(), None
    except (AttributeError, OSError, ValueError, RecursionError):  # JSON may be no object
        return Preferences(), f"{path} could not be read, so the chat starts with its defaults."
    return found, None


def save(preferences: Preferences) -> str | None:
    """Replace the file; returns a sentence if that fails."""
    path = file()
    try:
        # It may contain a private system prompt.
        write_atomically(path, json.dumps(asdict(preferences)), private=True)
    except OSError as error:
        return f"The chat's settings were not saved: {error.strerror}. Make room for {path}."
    return None

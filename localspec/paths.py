"""localspec's own folders: those of platformdirs, or subfolders of LOCALSPEC_HOME."""

import os
from pathlib import Path

import platformdirs

EMBEDDED_TARGET = "tale-13m-q8_0.gguf"
EMBEDDED_DRAFT = "tale-3m-q8_0.gguf"
ADVICE = "Make room, check its permissions, or set LOCALSPEC_HOME to another folder."
"""What to do if a file in the folders below cannot be written."""

# A container's user may have no home: Docker sets / then. Without it platformdirs fails, and
# huggingface-hub writes to a folder named ~.
if not os.path.isabs(os.environ.get("HOME", os.sep)):
    del os.environ["HOME"]
if not os.path.isabs(os.path.expanduser("~")):
    os.environ["HOME"] = os.path.abspath(os.sep)


def _folder(kind: str, standard: str) -> Path:
    home = os.environ.get("LOCALSPEC_HOME")
    return expanded(home) / kind if home else Path(standard)


def cache_folder() -> Path:
    """Folder for data that can be recomputed: measurements, results of checks."""
    return _folder("cache", platformdirs.user_cache_dir("localspec", appauthor=False))


def config_file() -> Path:
    """The settings file; it need not exist."""
    return _folder("config", platformdirs.user_config_dir("localspec", appauthor=False)) / (
        "config.toml"
    )


def data_folder() -> Path:
    """Folder for user data, such as the history of chats."""
    return _folder("data", platformdirs.user_data_dir("localspec", appauthor=False))


def history_file() -> Path:
    return data_folder() / "history.db"


def embedded(name: str) -> Path:
    """A file of the embedded pair: inside the installed package, or next to it in a checkout."""
    package = Path(__file__).resolve().parent
    installed = package / "models" / name
    return installed if installed.exists() else package.parent / "models" / name


def expanded(path: str | os.PathLike[str]) -> Path:
    """Expand `~` in a path, unless it names an unknown user."""
    return Path(os.path.expanduser(path))

"""localspec's own folders: those of platformdirs, or subfolders of LOCALSPEC_HOME."""

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

import platformdirs

EMBEDDED_TARGET = "tale-13m-q8_0.gguf"
EMBEDDED_DRAFT = "tale-3m-q8_0.gguf"
ADVICE = "Make room, check its permissions, or set LOCALSPEC_HOME to another folder."
"""What to do if a file in the folders below cannot be written."""
_OF_XDG = {"cache": ".cache", "config": ".config", "data": ".local/share"}


def home() -> Path:
    """The user's home folder; the root folder if there is none, as Docker sets it."""
    found = os.path.expanduser("~")
    return Path(found if os.path.isabs(found) else os.sep)


def provide_home() -> None:
    """Set a home for other libraries: without one, huggingface-hub writes to a folder named ~."""
    if not os.path.isabs(os.environ.get("HOME", os.sep)):
        del os.environ["HOME"]
    if not os.path.isabs(os.path.expanduser("~")):
        os.environ["HOME"] = str(home())


def _folder(kind: str) -> Path:
    if given := os.environ.get("LOCALSPEC_HOME"):
        return expanded(given) / kind
    try:
        return Path(getattr(platformdirs, f"user_{kind}_dir")("localspec", appauthor=False))
    except RuntimeError:  # there is no home
        return home() / _OF_XDG[kind] / "localspec"


def cache_folder() -> Path:
    """Folder for data that can be recomputed: measurements, results of checks."""
    return _folder("cache")


def config_file() -> Path:
    """The settings file; it need not exist."""
    return _folder("config") / "config.toml"


def data_folder() -> Path:
    """Folder for user data, such as the history of chats."""
    return _folder("data")


def history_file() -> Path:
    return data_folder() / "history.db"


def embedded(name: str) -> Path:
    """A file of the built-in pair: inside the installed package, or next to it in a checkout."""
    package = Path(__file__).resolve().parent
    installed = package / "models" / name
    return installed if os.path.exists(installed) else package.parent / "models" / name


def expanded(path: str | os.PathLike[str]) -> Path:
    """Expand `~` in a path, unless it names an unknown user, and a file:// address, as file
    managers copy it."""
    name = os.fspath(path)
    if name.startswith("file://"):
        name = unquote(urlsplit(name).path)
    return Path(os.path.expanduser(name))

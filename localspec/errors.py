"""The exceptions of localspec, all derived from LocalspecError.

Each message has a sentence with the cause and one with the next step. Imports nothing of
localspec, so that every module can import it.
"""

import errno
import logging
import os
import sys
from importlib import import_module
from typing import Any

# Warnings of a library are silent until a program handles them.
logging.getLogger("localspec").addHandler(logging.NullHandler())


class LocalspecError(Exception):
    """Base class; `exit_code` is the exit code of the command line."""

    exit_code: int = 1


class UsageError(LocalspecError, ValueError):
    """An invalid option, grammar, schema or prompt. `hint`: a further sentence, shown only on the
    command line."""

    exit_code = 2

    def __init__(self, message: str = "", *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class WrongType(UsageError, TypeError):
    """A value of the wrong type."""


class ModelNotFound(LocalspecError, FileNotFoundError):
    """The reference names no model on this machine."""

    exit_code = 3


class ModelInvalid(LocalspecError):
    """The file cannot generate text: not a GGUF, truncated, without vocabulary …"""

    exit_code = 4


class DraftMismatch(LocalspecError):
    """The draft model's vocabulary differs, and cannot or must not be translated."""

    exit_code = 5


class ContextOverflow(LocalspecError):
    """The prompt, of `needed` tokens, does not fit the context of `available` tokens."""

    exit_code = 6

    def __init__(self, message: str = "", *, needed: int = 0, available: int = 0) -> None:
        super().__init__(message)
        self.needed = needed
        self.available = available


class EngineBusy(LocalspecError):
    """Another generation is running."""


class HistoryError(LocalspecError):
    """The history cannot be read or written: locked, damaged, disk full …"""


class DatastoreError(LocalspecError):
    """A datastore of learned texts cannot be read or written."""


class SessionError(LocalspecError):
    """A session file cannot be read or written."""


class TraceError(LocalspecError):
    """A recording or a training checkpoint cannot be read or written."""


class NativeError(LocalspecError):
    """A pass or an allocation failed in llama.cpp."""


class ServerUnreachable(LocalspecError):
    """An RPC server (`--rpc`) does not answer."""


class Cancelled(LocalspecError):
    """Stopped on request; the partial answer and the caches are intact."""

    exit_code = 130


def extra_package(name: str, purpose: str, extra: str) -> Any:
    """Import a package of an extra. Raises UsageError, beginning with `purpose`, if that fails."""
    try:
        return import_module(name)
    except ImportError as error:
        missing = error.name in (name, None)
        why = "is not installed" if missing else f"cannot be loaded ({error})"
        raise UsageError(
            f"{purpose} the package {name}, which {why}. Install it with: pip install '.[{extra}]' "
            "in the clone of localspec"
        ) from None


def describe(error: BaseException, report: str = "Please report it.") -> tuple[str, int]:
    """Message and exit code of an exception; `report`: what to do about an internal one."""
    if isinstance(error, LocalspecError):
        hint = error.hint if isinstance(error, UsageError) else ""
        return " ".join(filter(None, [str(error), hint])), error.exit_code
    if isinstance(error, MemoryError):
        text = "There is not enough memory. Use a smaller model, or a shorter context with --ctx."
        return text, 1
    if isinstance(error, RuntimeError) and "new thread" in str(error):
        text = "The system allows no further thread. Close other programs, or raise the limits of "
        return f"{text}memory and processes (ulimit -a).", 1
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        text = "The system allows no further open file. Close other programs, or raise the limit "
        return f"{text}of open files (ulimit -n).", 1
    if isinstance(error, ImportError) or "hared library" in str(error):  # as llama_cpp calls it
        text = f"A part of localspec cannot be loaded: {error}. Install what it lacks, or install "
        return f"{text}localspec again.", 1
    if isinstance(error, FileNotFoundError) and error.filename is None:  # from getcwd()
        return "The current folder is gone. Change to another one.", 1
    if sys.platform == "linux" and not os.path.exists("/proc/self"):  # as in a bare chroot
        text = "/proc is not mounted, where localspec finds memory and cores. Mount it: "
        return f"{text}mount -t proc proc /proc", 1
    if isinstance(error, OSError) and error.filename:
        return (
            f"{error.filename} cannot be opened: {error.strerror}. Check the path, and the "
            "permissions of its folders. LOCALSPEC_HOME names another folder for localspec's own "
            "files.",
            1,
        )
    name = type(error).__name__
    return f"Internal error, {name}: {error}. {report}", 1

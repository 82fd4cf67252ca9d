"""The exceptions of localspec, all of them LocalspecErrors.

A message has one sentence with the cause and one with the next step. Imports nothing, so that every
module can import it.
"""

from __future__ import annotations


class LocalspecError(Exception):
    """Root of the tree; `exit_code` is that of the command line."""

    exit_code: int = 1


class UsageError(LocalspecError, ValueError):
    """An invalid option, grammar, schema or prompt.

    Attributes:
        hint: one more sentence for the command line; no server sends it.
    """

    exit_code = 2

    def __init__(self, message: str = "", *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class WrongType(UsageError, TypeError):
    """A value of another type than the declared one."""


class ModelNotFound(LocalspecError, FileNotFoundError):
    """No file for the reference."""

    exit_code = 3


class ModelInvalid(LocalspecError):
    """Not a model that generates text: not a GGUF, truncated, without vocabulary …"""

    exit_code = 4


class DraftMismatch(LocalspecError):
    """The draft model's vocabulary differs, and cannot or must not be translated."""

    exit_code = 5


class ContextOverflow(LocalspecError):
    """The prompt does not fit the context.

    Attributes:
        needed: tokens in the prompt.
        available: tokens the context holds.
    """

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
    """Learned texts cannot be read or written."""


class SessionError(LocalspecError):
    """A session file cannot be read or written."""


class TraceError(LocalspecError):
    """A recording or the state of a training cannot be read or written."""


class NativeError(LocalspecError):
    """llama.cpp refused a pass or an allocation."""


class ServerUnreachable(LocalspecError):
    """An RPC server (`--rpc`) does not answer."""


class Cancelled(LocalspecError):
    """Stopped on request; the partial answer and the caches are intact."""

    exit_code = 130


def describe(error: BaseException) -> tuple[str, int]:
    """Message and exit code of an exception."""
    if isinstance(error, LocalspecError):
        hint = error.hint if isinstance(error, UsageError) else ""
        return " ".join(filter(None, [str(error), hint])), error.exit_code
    if isinstance(error, MemoryError):
        return (
            "There is not enough memory. Take a smaller model, or a shorter context with --ctx.",
            1,
        )
    if isinstance(error, PermissionError) and error.filename is not None:
        return (
            f"{error.filename} cannot be opened: {error.strerror}. Check the permissions of its "
            "folders. LOCALSPEC_HOME names another folder for localspec's own files.",
            1,
        )
    name = type(error).__name__
    return f"Internal error, {name}: {error}. Run it again with -v, and report the output.", 1

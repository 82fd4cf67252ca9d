"""Every error localspec raises on purpose.

    LocalspecError            exit code 1   anything that went wrong while running
    ├── UsageError            exit code 2   an option, a grammar or a schema that cannot be meant
    ├── ModelNotFound         exit code 3   no file where the reference points
    ├── ModelInvalid          exit code 4   a file that is no model that generates text
    ├── DraftMismatch         exit code 5   a draft model whose vocabulary cannot serve, or may not
    ├── ContextOverflow       exit code 6   the prompt does not fit the context
    ├── EngineBusy            exit code 1   another generation holds the engine
    ├── HistoryError          exit code 1   the history of chats cannot be read or written
    ├── DatastoreError        exit code 1   what was learned cannot be read or written
    ├── SessionError          exit code 1   a session's file cannot be read or written
    ├── TraceError            exit code 1   what a draft is trained from cannot be read or written
    ├── NativeError           exit code 1   llama.cpp refused a pass or an allocation
    ├── ServerUnreachable     exit code 1   an RPC server does not answer, or no longer
    └── Cancelled             exit code 130 stopped on request

A message is one sentence that names the cause, followed by one that names the next step. This
module imports nothing, so that every other one may import it.
"""

from __future__ import annotations


class LocalspecError(Exception):
    """Root of the tree. `exit_code` is what the command line leaves with."""

    exit_code: int = 1


class UsageError(LocalspecError, ValueError):
    """A value that no setting of the world would make right.

    Attributes:
        hint: one more sentence for whoever types commands; no server sends it.
    """

    exit_code = 2

    def __init__(self, message: str = "", *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class ModelNotFound(LocalspecError, FileNotFoundError):
    """The reference names no file."""

    exit_code = 3


class ModelInvalid(LocalspecError):
    """The file cannot serve: not a GGUF, truncated, without vocabulary, embedding-only."""

    exit_code = 4


class DraftMismatch(LocalspecError):
    """The draft model's vocabulary is another one, and that is refused or beyond translation."""

    exit_code = 5


class ContextOverflow(LocalspecError):
    """The prompt needs more positions than the context has.

    Attributes:
        needed: tokens in the prompt.
        available: tokens the context holds.
    """

    exit_code = 6

    def __init__(self, message: str, *, needed: int, available: int) -> None:
        super().__init__(message)
        self.needed = needed
        self.available = available


class EngineBusy(LocalspecError):
    """One engine, one generation at a time, and another one is running."""


class HistoryError(LocalspecError):
    """The file that keeps the chats cannot be read or written: locked, damaged, no room …"""


class DatastoreError(LocalspecError):
    """A datastore of learned texts cannot be read or written: damaged, no room …"""


class SessionError(LocalspecError):
    """The file that a session is kept in cannot be read or written: damaged, no room …"""


class TraceError(LocalspecError):
    """What a draft is trained from, or its state, cannot be read or written: damaged, no room …"""


class NativeError(LocalspecError):
    """llama.cpp reported a failure that no check of ours foresaw."""


class ServerUnreachable(LocalspecError):
    """A machine that the model's layers are shared with (`--rpc`) does not answer, or no longer."""


class Cancelled(LocalspecError):
    """Stopped on request; the partial answer and the caches are intact."""

    exit_code = 130


def describe(error: BaseException) -> tuple[str, int]:
    """An error in words, and the exit code that goes with it."""
    if isinstance(error, LocalspecError):
        hint = error.hint if isinstance(error, UsageError) else ""
        return " ".join(filter(None, [str(error), hint])), error.exit_code
    if isinstance(error, MemoryError):
        return (
            "There is not enough memory. Take a smaller model, or a shorter context with --ctx.",
            1,
        )
    name = type(error).__name__
    return f"Internal error, {name}: {error}. Run it again with -v, and report what that says.", 1

"""Read whole files with a size limit, replace them atomically, and lock them."""

import errno
import math
import os
import re
import shutil
import stat
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from localspec.errors import LocalspecError, UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MOST = 64 << 20  # limit in bytes for files, and standard input, that are read whole
_GGUF_FAULTS = {  # start of the file: the problem and the next step
    rb"version https://git-lfs": "is a Git LFS pointer to a file. Type git lfs pull in its folder.",
    rb"\s*[<{][\t-~]{7}|[A-Z][a-z]{2,}[ -~]{6}": "is a web page or an error of a server. "
    "Download the file itself: links of Hugging Face have /resolve/ in place of /blob/.",
    rb"\x1f\x8b|PK\x03\x04|BZh|7z\xbc\xaf|\xfd7zXZ|\x28\xb5\x2f\xfd": "is compressed. Unpack it.",
    rb"GGUF\x00\x00\x00[\x01-\x03]": "has a version of GGUF for big-endian machines. "
    "Download it for little-endian ones.",
    rb"(?!GGUF)": "is not a GGUF file. Convert it with llama.cpp's convert_hf_to_gguf.py, "
    "or download a GGUF of the model.",
}
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)  # of network file systems
_STREAM_PATHS = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")


@contextmanager
def replacing(path: Path, *, private: bool = False) -> Iterator[Path]:
    """Yield a temporary file that replaces `path`, links followed, if the block succeeds; otherwise
    it is deleted. The folder is created. `private`: make the file, and the folder if it is created,
    readable only by the user. Raises OSError if the disk is full, without permission …"""
    path = Path(os.path.realpath(path))
    path.parent.mkdir(mode=0o700 if private else 0o777, parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        if private:
            partial.touch(mode=0o600)
        yield partial
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


@contextmanager
def explaining(path: Path, advice: str, done: str = "written") -> Iterator[None]:
    """Turn an OSError into a LocalspecError: `path` cannot be `done`, and the advice."""
    try:
        yield
    except LocalspecError:  # some are OSErrors, too
        raise
    except OSError as error:
        why = error.strerror or error
        raise LocalspecError(f"{path} cannot be {done}: {why}. {advice}") from None


def remove_abandoned(folder: Path, pattern: str = "*.partial") -> None:
    """Delete temporary files of `replacing` whose process was killed."""
    for partial in folder.glob(pattern):
        process = partial.suffixes[-2].removeprefix(".") if len(partial.suffixes) > 1 else ""
        if process.isdigit() and not psutil.pid_exists(int(process)):
            partial.unlink(missing_ok=True)


@contextmanager
def locked(path: Path, patience: float = -1) -> Iterator[None]:
    """Hold a lock on a file, or on a lock file next to it if the file system has no locks. Raises
    filelock.Timeout if another process held it for longer than `patience` seconds, and OSError if
    the lock file cannot be created."""
    from filelock import FileLock, SoftFileLock

    lock: FileLock | SoftFileLock = FileLock(path, mode=0o664)  # groups may share a cache
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # filelock warns about ENOSYS, and then does the same
            lock.acquire(patience)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        lock = SoftFileLock(f"{path}.held")
        lock.acquire(patience)
    try:
        yield
    finally:
        lock.release()


def write_atomically(path: Path, content: str | bytes, *, private: bool = False) -> None:
    """Write a whole file; text is encoded as UTF-8 without changing line ends. See `replacing`.
    Raises ValueError if the text has lone surrogates, or the name a NUL."""
    data = content.encode() if isinstance(content, str) else content
    with replacing(path, private=private) as partial:
        partial.write_bytes(data)


def gguf_fault(head: bytes) -> str | None:
    """Why a file with this beginning is not a readable GGUF, and what to do; or None."""
    found = next((why for start, why in _GGUF_FAULTS.items() if re.match(start, head)), None)
    version = int.from_bytes(head[4:8], "little")
    if found is None and len(head) >= 8 and not 2 <= version <= 3:
        return (
            f"has version {version} of GGUF; localspec reads 2 and 3. Update localspec if the "
            "file is newer, or download it again."
        )
    return found


def read_file(path: Path, *, most: int = MOST, streams: bool = False) -> bytes:
    """Read a whole regular file of at most `most` bytes, with `streams` also /dev/stdin and the
    pipe of <(command). Raises OSError, with the reason in `strerror`, if it cannot."""
    try:
        mode = path.stat().st_mode
        is_stream = streams and str(path).startswith(_STREAM_PATHS)
        if not stat.S_ISREG(mode) and (stat.S_ISDIR(mode) or not is_stream):
            kind = "folder" if stat.S_ISDIR(mode) else "pipe or a device"
            raise OSError(errno.EINVAL, f"it is a {kind}, not a file", str(path))
        with path.open("rb") as file:
            data = file.read(most + 1)
    except ValueError:  # a NUL in the name, or a lone surrogate
        raise OSError(errno.EINVAL, "this is not a file name", repr(path)) from None
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))
    return data


def require_file(path: Path, advice: str = "Check the path.", *, streams: bool = False) -> bytes:
    """As `read_file`, but raises UsageError, with the advice."""
    try:
        return read_file(path, streams=streams)
    except OSError as error:
        why = error.strerror or error
        raise UsageError(f"{path} cannot be read: {why}. {advice}") from None


def size_and_time(path: Path) -> tuple[int, int]:
    """Bytes of a file, and the time of its last change in ns; zeros if these cannot be read."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return 0, 0
    return status.st_size, status.st_mtime_ns


def free_space(folder: Path) -> float:
    """Bytes left on a folder's disk; infinity if it does not tell its size, as FUSE need not."""
    with suppress(OSError):
        usage = shutil.disk_usage(folder)
        return usage.free if usage.total else math.inf
    return math.inf


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """Read TOML in UTF-8, with or without a byte order mark. Raises UsageError, which calls it
    `what`, if it cannot be read or is invalid."""
    data = require_file(path, "Check its permissions.")
    try:
        return tomllib.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:  # invalid TOML or UTF-8, or nested too deeply
        raise UsageError(
            f"The {what} {path} is not valid TOML: {error}. Correct it, or move it away."
        ) from None

"""Files that are read whole, and replaced atomically. (The libraries in use keep theirs
private.)"""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MOST = 64 << 20  # bytes of a file, or of standard input, that is read as a whole
_NO_GGUF = {  # how a file begins, and what to do
    rb"version https://git-lfs": "is a Git LFS pointer to a file. Type git lfs pull in its folder.",
    rb"\s*[<{][\t-~]{7}": "is a web page or an error of a server. Download the file itself: "
    "links of Hugging Face have /resolve/ in place of /blob/.",
    rb"\x1f\x8b|PK\x03\x04|BZh|7z\xbc\xaf|\xfd7zXZ|\x28\xb5\x2f\xfd": "is compressed. Unpack it.",
    rb"GGUF\x00\x00\x00[\x01-\x03]": "has a version of GGUF for big-endian machines. "
    "Download it for little-endian ones.",
    rb"(?!GGUF)": "is not a GGUF file. Convert it with llama.cpp's convert_hf_to_gguf.py, "
    "or download a GGUF of the model.",
}
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)  # of network file systems
_HANDED_OVER = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")


@contextmanager
def replacing(path: Path, *, private: bool = False) -> Iterator[Path]:
    """A file beside `path` to write to, which takes its name if the block succeeds.

    On an exception `path` is as it was, and nothing is left beside it.

    Args:
        path: what to replace or to make; its folder is made.
        private: keep others from reading the file, and the folder where that is made.

    Raises:
        OSError: no room, no permission …
    """
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


def remove_abandoned(folder: Path, pattern: str = "*.partial") -> None:
    """Remove what `replacing` left in a folder because its process was killed."""
    for partial in folder.glob(pattern):
        process = partial.suffixes[-2].removeprefix(".") if len(partial.suffixes) > 1 else ""
        if process.isdigit() and not psutil.pid_exists(int(process)):
            partial.unlink(missing_ok=True)


@contextmanager
def locked(path: Path, patience: float = -1) -> Iterator[None]:
    """Hold a lock on a file, or one beside it where the file system has no locks.

    Raises:
        filelock.Timeout: another process holds it for longer than `patience` seconds.
        OSError: it cannot be made.
    """
    from filelock import FileLock, SoftFileLock

    lock: FileLock | SoftFileLock = FileLock(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about ENOSYS, for which it does the same
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
    """Write a whole file; text becomes UTF-8, its line ends stay. See `replacing`.

    Raises:
        OSError: no room, no permission …
        ValueError: lone surrogates in the text, a NUL in the name.
    """
    data = content.encode() if isinstance(content, str) else content
    with replacing(path, private=private) as partial:
        partial.write_bytes(data)


def gguf_fault(head: bytes) -> str | None:
    """Why a file that begins so cannot be read as GGUF, and what to do."""
    found = next((why for start, why in _NO_GGUF.items() if re.match(start, head)), None)
    version = int.from_bytes(head[4:8], "little")
    if found is None and len(head) >= 8 and not 2 <= version <= 3:
        return (
            f"has version {version} of GGUF, and this reads 2 and 3. Update localspec if the "
            "file is newer, or download it again."
        )
    return found


def read_file(path: Path, *, most: int = MOST, streams: bool = False) -> bytes:
    """All that is in a regular file.

    Args:
        most: bytes that it may have.
        streams: whether /dev/stdin and the pipe of <(command) will do as well.

    Raises:
        OSError: there is none, it is something else, or it cannot be read. `strerror` says why.
    """
    try:
        mode = path.stat().st_mode
        handed_over = streams and str(path).startswith(_HANDED_OVER)
        if not stat.S_ISREG(mode) and (stat.S_ISDIR(mode) or not handed_over):
            kind = "folder" if stat.S_ISDIR(mode) else "pipe or a device"
            raise OSError(errno.EINVAL, f"it is a {kind}, and no file", str(path))
        with path.open("rb") as file:
            data = file.read(most + 1)
    except ValueError:  # a NUL in the name, or half a surrogate pair
        raise OSError(errno.EINVAL, "this is not a file name", repr(path)) from None
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))
    return data


def read_toml(path: Path) -> dict[str, Any]:
    """TOML in UTF-8, also with the mark that editors of Windows write; a ValueError where it is
    none."""
    return tomllib.loads(read_file(path).decode("utf-8-sig"))

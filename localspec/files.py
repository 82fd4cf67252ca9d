"""Files that are whole: a reader, or a crash, finds the old content or the new one.

None of the libraries that localspec stands on has this in public: huggingface-hub, jinja2 and
textual each keep their own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil


@contextmanager
def replacing(path: Path, *, private: bool = False) -> Iterator[Path]:
    """A file beside `path` to write to, which takes its name at the end of a block that succeeds.

    Its name has the process id in it, so that two processes do not write into one; what comes last
    stays. Where anything is raised in between, `path` is as it was and nothing is left beside it.

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
    """Remove what `replacing` left in a folder because its process was killed over it."""
    for partial in folder.glob(pattern):
        process = partial.suffixes[-2].removeprefix(".") if len(partial.suffixes) > 1 else ""
        if process.isdigit() and not psutil.pid_exists(int(process)):
            partial.unlink(missing_ok=True)


def write_atomically(path: Path, content: str | bytes, *, private: bool = False) -> None:
    """Write a whole file at once; text is UTF-8, its line ends as they are. See `replacing`.

    Raises:
        OSError: no room, no permission …
        ValueError: text that is no UTF-8 (lone surrogates), a NUL in the name.
    """
    data = content.encode() if isinstance(content, str) else content
    with replacing(path, private=private) as partial:
        partial.write_bytes(data)

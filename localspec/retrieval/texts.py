"""Reading the texts in folders."""

import os
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.errors import UsageError
from localspec.files import read_file
from localspec.retrieval.segment import package

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

MOST_BYTES = 8 << 20
"""Larger files are taken for data, not text."""
_VERSIONED = (".git", ".hg", ".svn")
_SNIFFED = 8192
_UNREADABLE = "that cannot be read"
_RUN = re.compile(r"(?<!\\)(?:\*{3,}|(?<=[^/*])\*\*|\*\*(?=[^/*]))")
"""Stars that git reads as one; pathspec would try all ways to share a name between them."""
_MOST_STARS = 6
"""In a line of .gitignore, for the same reason."""


class SkippedFiles(Counter[str]):
    """Numbers of skipped files, by reason."""

    def sentence(self) -> str | None:
        parts = (f"{count} {why}" for why, count in self.most_common())
        return f"Files left out: {', '.join(parts)}." if self else None


def texts_in(path: Path, skipped: SkippedFiles) -> Iterator[str]:
    """Yield the texts of a file, or of all files in a folder that git would not ignore, in order.

    Links are not followed. `.gitignore` files apply from the root of the work tree down, deeper
    ones first. Raises UsageError if there is no such path, or pathspec is not installed."""
    if not path.exists():
        raise UsageError(f"There is no file or folder {path}. Check the path.")
    for file in files_in(path, skipped):
        text = _text(file, skipped)
        if text:
            yield text


def files_in(path: Path, skipped: SkippedFiles) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    path = path.resolve()
    ignored = _Ignored(path)

    def failed(_: OSError) -> None:
        skipped[_UNREADABLE] += 1

    for name, folders, files in os.walk(path, onerror=failed):
        folder = Path(name)
        ignored.enter(folder)
        folders[:] = sorted(
            each for each in folders if each not in _VERSIONED and not ignored(folder / each, "/")
        )
        for each in sorted(files):
            file = folder / each
            if file.is_file() and not file.is_symlink() and not ignored(file):
                yield file


class _Ignored:
    def __init__(self, top: Path) -> None:
        self._kind = package("pathspec").GitIgnoreSpec
        self._specs: dict[Path, GitIgnoreSpec] = {}
        folders = (top, *top.parents)
        root = next((folder for folder in folders if (folder / ".git").exists()), top)
        for folder in folders[1 : folders.index(root) + 1]:
            self.enter(folder)

    def enter(self, folder: Path) -> None:
        try:
            lines = read_file(folder / ".gitignore").decode("utf-8", "replace")
        except OSError:
            return
        patterns = []
        for line in lines.splitlines():
            known = _RUN.sub("*", line)
            # git skips invalid lines, too; FutureWarning: brackets within brackets
            with suppress(ValueError, re.error), warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)
                if known.replace("**", "*").count("*") <= _MOST_STARS:
                    patterns += self._kind.from_lines([known]).patterns
        self._specs[folder] = self._kind(patterns)

    def __call__(self, path: Path, suffix: str = "") -> bool:
        for parent in path.parents:
            spec = self._specs.get(parent)
            if spec is not None:
                ignored = spec.check_file(path.relative_to(parent).as_posix() + suffix).include
                if ignored is not None:
                    return ignored
        return False


def _text(file: Path, skipped: SkippedFiles) -> str:
    try:
        if file.stat().st_size > MOST_BYTES:
            skipped[f"of more than {MOST_BYTES >> 20} MiB"] += 1
            return ""
        data = read_file(file, most=MOST_BYTES, streams=True)
    except OSError:
        skipped[_UNREADABLE] += 1
        return ""
    with suppress(UnicodeDecodeError):
        if b"\0" not in data[:_SNIFFED]:
            return data.decode("utf-8-sig")
    skipped["that are not UTF-8 text"] += 1
    return ""

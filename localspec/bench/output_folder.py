"""The folder that `--output` names."""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from localspec.errors import LocalspecError
from localspec.files import write_atomically


def prepare(folder: Path) -> None:
    """Create the folder and check that it is writable, before a long run. Raises LocalspecError if
    it is not."""
    with _explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")


def write(folder: Path, texts: Mapping[str, str]) -> None:
    """Write texts by file name, in order, each atomically. Earlier files, which may have taken
    hours, are renamed. Raises LocalspecError: the disk is full, or the folder is not writable."""
    for name, text in texts.items():
        with _explained(path := folder / name):
            if path.is_file():
                path.rename(path.with_stem(f"{path.stem}-{path.stat().st_mtime:.0f}"))
            write_atomically(path, text)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        cause = error.strerror or os.strerror(error.errno or 0)
        raise LocalspecError(
            f"{path} cannot be written: {cause}. Make room, or name another folder with --output."
        ) from None

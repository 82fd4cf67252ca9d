"""The folder that `--output` names."""

import tempfile
from collections.abc import Mapping
from pathlib import Path

from localspec.files import explaining, write_atomically

_ADVICE = "Make room, or name another folder with --output."


def prepare(folder: Path) -> None:
    """Create the folder and check that it is writable, before a long run. Raises LocalspecError if
    it is not."""
    with explaining(folder, _ADVICE):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")


def write(folder: Path, texts: Mapping[str, str]) -> None:
    """Write texts by file name, in order, each atomically. Earlier files, which may have taken
    hours, are renamed. Raises LocalspecError: the disk is full, or the folder is not writable."""
    for name, text in texts.items():
        with explaining(path := folder / name, _ADVICE):
            if path.is_file():
                path.rename(path.with_stem(f"{path.stem}-{path.stat().st_mtime:.0f}"))
            # Bytes of file names that are not UTF-8, which JSON escapes in the same way.
            write_atomically(path, text.encode(errors="backslashreplace"))

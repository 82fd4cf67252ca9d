"""Files of the cache that have their size, but not their bytes."""

from pathlib import Path

import pytest

from localspec import paths
from tests.cli.conftest import Cli
from tests.hub.conftest import COMMIT, cache_file

pytestmark = pytest.mark.nightly

AGAIN = "'localspec rm user/repo:m-Q8_0.gguf' and then 'localspec pull user/repo:m-Q8_0.gguf' get"


@pytest.mark.parametrize(
    ("at", "command", "cause"),
    [
        (0, ("run", "-m", "user/repo:Q8_0", "hi"), "m-Q8_0.gguf"),
        (0, ("run", "-d", "user/repo:Q8_0", "hi"), "m-Q8_0.gguf"),
        (0, ("doctor", "-m", "user/repo:Q8_0"), "m-Q8_0.gguf"),
        (-9, ("doctor", "-m", "user/repo:Q8_0"), "m-Q8_0.gguf is damaged: its SHA-256 is"),
        (-9, ("doctor", "-d", "user/repo:Q8_0"), "m-Q8_0.gguf is damaged: its SHA-256 is"),
    ],
)
def test_damaged_files_of_the_cache_are_named_with_the_commands_that_get_them_again(
    cli: Cli, cache: Path, at: int, command: tuple[str, ...], cause: str
) -> None:
    content = bytearray(paths.embedded(paths.EMBEDDED_DRAFT).read_bytes())
    link = cache_file(cache, "user/repo", "m-Q8_0.gguf", bytes(content), COMMIT)
    content[at] ^= 0xFF
    link.resolve().write_bytes(content)
    cli(*command).refused(cause, AGAIN, code=4)

"""`run --image`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.support.images import POSITIONS, png, projector


def test_an_image_goes_before_the_prompt(cli: Cli, tmp_path: Path) -> None:
    eye = projector(tmp_path / "mmproj.gguf", 384)
    image = tmp_path / "fox.png"
    image.write_bytes(png(1))
    said = ("run", "--json", "--temp", "0", "-n", "16", "--mmproj", str(eye))
    text = cli(*said, "Tell me a story.").json
    plain = cli(*said, "--image", str(image), "--drafter", "none", "Tell me a story.").json
    drafted = cli(*said, "--image", str(image), "--drafter", "model", "Tell me a story.").json
    assert plain["text"] == drafted["text"]
    assert drafted["stats"]["accepted"] > 0
    tokens = [found["stats"]["prompt_tokens"] for found in (text, plain, drafted)]
    assert tokens[1] == tokens[2] >= tokens[0] + POSITIONS


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--image", "fox.png"), "Name it with --mmproj FILE"),
        (("--image", "none.png", "--mmproj", "x"), "The image none.png cannot be read: No such"),
        (("--image", __file__, "--mmproj", "x"), "Give one as PNG, JPEG, GIF or BMP"),
        (("--image", "fox.png", "--mmproj", "x", "--raw"), "Leave out one of them"),
        (("--image", "fox.png", "--mmproj", "x", "--session", "s"), "keeps text alone"),
    ],
)
def test_images_that_cannot_be_shown(cli: Cli, options: tuple[str, ...], why: str) -> None:
    result = cli("run", *options, "hi")
    assert result.code == 2
    assert why in result.sentence()

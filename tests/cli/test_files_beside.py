"""Files beside a model: images, and adapters."""

from pathlib import Path

import localspec
from tests.cli.conftest import Cli
from tests.support.adapters import lora
from tests.support.asking import GREEDY, user
from tests.support.ggufs import tiny_llama
from tests.support.images import POSITIONS, png, projector


def test_an_image_goes_before_the_prompt(cli: Cli, tmp_path: Path) -> None:
    eye = projector(tmp_path / "mmproj.gguf", 384)
    image = tmp_path / "fox.png"
    image.write_bytes(png(1))
    said = ("run", "--json", "--temp", "0", "-n", "16", "--mmproj", str(eye))
    text = cli(*said, "Tell me a story.").json
    plain, drafted = (
        cli(*said, "--image", str(image), "--drafter", drafter, "Tell me a story.").json
        for drafter in ("none", "model")
    )
    assert plain["text"] == drafted["text"]
    assert drafted["stats"]["accepted"] > 0
    tokens = [found["stats"]["prompt_tokens"] for found in (text, plain, drafted)]
    assert tokens[1] == tokens[2] >= tokens[0] + POSITIONS


def test_images_keep_their_order(cli: Cli, tmp_path: Path) -> None:
    """They are told apart by their order, which the engine keeps as well."""
    model = tiny_llama(tmp_path / "model.gguf")  # whose weights are random: all changes its text
    eye = projector(tmp_path / "mmproj.gguf", 64)
    files = [tmp_path / f"{number}.png" for number in (1, 2)]
    for number, file in enumerate(files, 1):
        file.write_bytes(png(number))
    said = ("run", "-m", str(model), "-d", "none", "--temp", "0", "-n", "16", "--drafter", "none")

    def shown(*images: Path) -> str:
        named = [word for image in images for word in ("--image", str(image))]
        return cli(*said, "-q", "--mmproj", str(eye), *named, "Tell me a story.").out.rstrip("\n")

    content = [{"type": "image", "image": file.read_bytes()} for file in files]
    content.append({"type": "text", "text": "Tell me a story."})
    with localspec.load(model, draft="none", mmproj=eye) as engine:
        expected = engine.chat([user(content)], max_tokens=16, sampling=GREEDY)
    assert shown(*files) == expected.text
    assert shown(*reversed(files)) != expected.text


# Few tokens: two halves of an adapter are added in another order than the whole, and round
# otherwise.
ASK = ("--temp", "0", "-n", "12", "--raw", "Once upon a time")


def test_an_adapter_changes_the_answer_and_drafts_do_not(
    cli: Cli, tmp_path: Path, target_path: Path
) -> None:
    path = str(lora(tmp_path / "style.gguf", target_path, gain=3.0))

    def answer(*options: str) -> str:
        result = cli("run", "-q", *options, *ASK)
        assert (result.code, result.err) == (0, "")
        return result.out

    adapted = answer("--lora", path, "--drafter", "none")
    assert adapted != answer("--drafter", "none")
    assert answer("--lora", path) == adapted
    assert answer("--lora", f"{path}:0.5", "--lora", f"{path}:0.5") == adapted

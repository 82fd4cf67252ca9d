"""`--lora` and `--lora-draft` on the command line."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Cli
from tests.support.adapters import lora

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

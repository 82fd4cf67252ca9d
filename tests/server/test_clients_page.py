"""The recipes of docs/clients.md do what they say."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec.server.app import ENDPOINTS
from tests.server.process import Running, serving

PAGE = (Path(__file__).parents[2] / "docs" / "clients.md").read_text(encoding="utf-8")
THERE = "http://127.0.0.1:8080"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("plain"), "-t", "1", "--temp", "0") as running:
        yield running


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)


def test_the_python_recipes_run(plain: Running, capsys: pytest.CaptureFixture[str]) -> None:
    """One after the other, as somebody who follows the page would."""
    code = "\n".join(blocks("python")).replace(THERE, plain.address)
    names: dict[str, object] = {"__name__": "recipes"}
    exec(compile(code, "clients.md", "exec"), names)
    for name in ("client", "claude"):
        names[name].close()  # type: ignore[attr-defined]
    printed = capsys.readouterr().out
    assert "predicted_per_second" in printed
    assert '{"city"' in printed
    assert '"legs"' in printed


def test_the_snippet_of_the_readme_runs(plain: Running, capsys: pytest.CaptureFixture[str]) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(from openai.*?)```", readme, re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(code.replace(THERE, plain.address), "README.md", "exec"), names)
    names["client"].close()  # type: ignore[attr-defined]
    assert len(capsys.readouterr().out) > 20


@pytest.mark.parametrize("more", [(), ("--no-stream",), ("--schema", "name, age int")])
def test_the_recipe_for_llm(plain: Running, tmp_path: Path, more: tuple[str, ...]) -> None:
    (models,) = blocks("yaml")
    settings = tmp_path / "extra-openai-models.yaml"
    settings.write_text(models.replace(THERE, plain.address))
    command = [sys.executable, "-m", "llm", "-m", "localspec", "Invent a dog.", *more]
    done = subprocess.run(
        [*command, "-o", "max_tokens", "80"],
        env={"LLM_USER_PATH": str(tmp_path), "PATH": "", "PYTHONIOENCODING": "utf-8"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    if "--schema" in more:
        assert set(json.loads(done.stdout)) == {"name", "age"}
    assert len(done.stdout) > 10


def test_the_paths_that_it_names_are_all_there_are() -> None:
    table = PAGE.split("| protocol |")[1].split("\n\n")[0]
    named = set(re.findall(r"`(/[\w/-]+)`", table))
    aliases = {"/", "/events", "/v1/health", "/models", "/chat/completions", "/completions"}
    aliases.add("/chat/completions/input_tokens")
    assert named == {path for _, path, _ in ENDPOINTS if "{" not in path} - aliases

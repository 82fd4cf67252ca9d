"""The recipes of docs/serve.md work."""

import re
import sys
from pathlib import Path

import pytest

from localspec.server.app import ENDPOINTS
from tests.cli.process import finished
from tests.server.process import Running, module_server

pytestmark = pytest.mark.nightly

PAGE = (Path(__file__).parents[2] / "docs" / "serve.md").read_text(encoding="utf-8")
THERE = "http://127.0.0.1:8080"

plain = module_server("-t", "1", "--temp", "0")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)


def test_python_recipes_run(plain: Running, capsys: pytest.CaptureFixture[str]) -> None:
    code = "\n".join(blocks("python")).replace(THERE, plain.address)
    names: dict[str, object] = {"__name__": "recipes"}
    exec(compile(code, "serve.md", "exec"), names)
    for name in ("client", "claude"):
        names[name].close()  # type: ignore[attr-defined]
    printed = capsys.readouterr().out
    assert "predicted_per_second" in printed
    assert '{"city"' in printed
    assert '"legs"' in printed


TOOL = "def weather() -> str:\n    return 'It rains in Rome.'\n"


@pytest.mark.parametrize(
    "more",
    [
        (),
        ("--no-stream",),
        ("--schema", "name, age int"),
        ("--functions", TOOL, "--td", "--chain-limit", "2"),
    ],
)
def test_llm_recipe(plain: Running, tmp_path: Path, more: tuple[str, ...]) -> None:
    (models,) = blocks("yaml")
    settings = tmp_path / "extra-openai-models.yaml"
    settings.write_text(models.replace(THERE, plain.address))
    llm = (sys.executable, "-m", "llm", "-m", "localspec", "-o", "max_tokens", "80")
    env = {"LLM_USER_PATH": str(tmp_path), "PATH": "", "PYTHONIOENCODING": "utf-8"}
    done = finished("Invent a dog.", *more, command=llm, env=env)
    if "--functions" in more:  # the built-in model calls whatever it can
        assert "Tool call: weather({})" in done.err
        assert "It rains in Rome." in done.err
        return
    assert len(done.succeeded()) > 10
    if "--schema" in more:
        assert set(done.json) == {"name", "age"}


def test_table_lists_all_paths() -> None:
    table = PAGE.split("| protocol |")[1].split("\n\n")[0]
    named = set(re.findall(r"`(/[\w/-]+)`", table))
    aliases = {"/", "/events", "/v1/health", "/completions"}
    assert named == {path for _, path, _ in ENDPOINTS if "{" not in path} - aliases

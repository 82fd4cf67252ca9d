"""The commands and links of README and the pages work."""

import os
import re
import shlex
from pathlib import Path

import pytest

from localspec.cli.main import main
from localspec.drafters.registry import REGISTRY

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RUN = (ROOT / "docs" / "run.md").read_text(encoding="utf-8")
DRAFTERS = (ROOT / "dev" / "drafters.md").read_text(encoding="utf-8")
REFERENCE = [ROOT / "docs" / f"{name}.md" for name in ("chat", "models", "never_slower")]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("dev/*.md")]
TYPED = "".join([README, RUN, *(page.read_text(encoding="utf-8") for page in REFERENCE)])
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", TYPED, re.DOTALL)
SHELL = "".join(code for kind, code in BLOCKS if kind == "sh").splitlines()
LINES = [line.split(" #")[0].strip() for line in SHELL]
ANSWERS = [line for line in LINES if line.startswith("localspec run") and ".gguf" not in line]
ONLY_LOOKS = re.compile(r"localspec (list|show|models|doctor --paths|history (list|search))")
LOOKS = [line for line in LINES if ONLY_LOOKS.match(line)]


def test_make_targets_exist() -> None:
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = [line.split()[1] for line in LINES if line.startswith("make ")]
    assert named[0] == "demo"
    assert {"check"} <= set(named) <= set(targets)
    assert len(LOOKS) >= 7, "commands that only look are found"


@pytest.mark.parametrize("line", ANSWERS)
def test_run_commands_print_answers(
    line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # some make files
    arguments = shlex.split(line)[1:]
    if "--max-tokens" not in arguments and "--json-schema" not in arguments:
        arguments += ["--max-tokens", "12"]
    with open(os.devnull, encoding="utf-8") as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        assert main(arguments) == 0
    assert len(capsys.readouterr().out) > 5


@pytest.mark.parametrize("line", LOOKS)
def test_read_only_commands_succeed(
    line: str, capsys: pytest.CaptureFixture[str], home: Path
) -> None:
    assert main(shlex.split(line)[1:]) == 0


def test_python_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = [c for kind, c in BLOCKS if kind == "python" and "import localspec" in c]
    greedy = "max_tokens=24, sampling=localspec.SamplingParams(temperature=0.0)"
    exec(compile(code.replace("max_tokens=256", greedy), "README.md", "exec"), {})
    assert "Once upon a time" in capsys.readouterr().out


def test_every_drafter_is_listed() -> None:
    assert all(f"`{name}`" in DRAFTERS for name in (*REGISTRY, "auto", "none"))
    assert all(f"`{name}`" in RUN for name in ("auto", "none", "ngram", "model"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_resolve(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    for link in links:
        name, _, place = link.partition("#")
        there = page.parent / name if name else page
        assert there.exists(), link
        if place:
            assert place in anchors(there.read_text(encoding="utf-8")), link


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}

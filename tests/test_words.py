"""Texts for users: plain words (`dev/words.md`), and pages of readable length."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from localspec.cli.main import app
from localspec.cli.verbs import VERBS, build_command

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "BENCHMARKS.md", *sorted(ROOT.glob("docs/*.md"))]
LENGTHS = {
    "README": 900,
    "BENCHMARKS": 500,
    "run": 700,
    "chat": 400,
    "models": 700,
    "serve": 900,
    "python": 700,
    "verify": 600,
    "distill": 600,
    "never_slower": 500,
    "architecture": 1500,
    "install": 250,
    "limits": 250,
}
"""Most words of each page, blocks of code left out."""
LONGEST = 18.0
"""Most words of a sentence, on average over a page."""
SAMPLES = ("drafters/heterogeneous.py", "bench/html.py")
"""Style sheets, and what is about to go."""


def rules() -> list[tuple[re.Pattern[str], str]]:
    """Patterns of words to avoid, with better words."""
    rows = re.findall(
        r"^\| `(.+?)` \| (.+?) \| .+? \|$", (ROOT / "dev/words.md").read_text("utf-8"), re.MULTILINE
    )
    return [(re.compile(rf"\b(?:{bad})".replace(r"\|", "|"), re.I), good) for bad, good in rows]


RULES = rules()


def complaints(text: str) -> list[str]:
    text = " ".join(re.sub(r"`[^`]*`|\S+\.toml|LICENSE", "…", text).split())
    return [
        f"'{found.group()}', better: {good} (in: {text[max(0, found.start() - 40) :][:100]})"
        for bad, good in RULES
        for found in bad.finditer(text)
    ]


def prose(page: Path) -> str:
    return re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def sentences(text: str) -> list[str]:
    """The sentences of paragraphs and list items, without tables and headings."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]*`", "code", text))
    blocks = re.split(r"\n\s*\n|\n\s*(?=[-*] |\d+\. )|\n(?=[#|])", text.replace("**", ""))
    plain = [" ".join(block.split()) for block in blocks if block[:1] not in "#|"]
    return [
        part
        for block in plain
        for part in re.split(r"(?<=[.!?:])\s+(?=[A-Z0-9(])", block)
        if len(part.split()) > 2
    ]


def strings(path: Path) -> Iterator[tuple[int, str]]:
    """The strings of a file that look like sentences, without docstrings."""
    nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    left = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    left |= {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in left:
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            said = [part.value if isinstance(part, ast.Constant) else "…" for part in parts]
            if len((text := "".join(map(str, said))).split()) > 2:
                yield node.lineno, text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_use_plain_words(page: Path) -> None:
    assert complaints(prose(page)) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_and_sentences_are_short(page: Path) -> None:
    text = prose(page)
    lengths = [len(sentence.split()) for sentence in sentences(text)]
    assert len(text.split()) <= LENGTHS[page.stem]
    assert sum(lengths) / len(lengths) <= LONGEST


def test_readme_is_short_and_undated() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    assert not re.search(r"\b[0-9a-f]{7}\b|\b20\d\d\b", text), "no commits and no dates"


def test_only_contributing_links_development_pages() -> None:
    for page in PAGES:
        assert not re.search(r"\]\((\.\./)?dev/", page.read_text(encoding="utf-8")), page.name


def commands() -> Iterator[tuple[str, Any]]:
    yield "localspec", typer.main.get_command(app)
    for command in map(build_command, VERBS):
        for inner in (command, *getattr(command, "commands", {}).values()):
            yield f"{command.name} {inner.name}", inner


def test_help_texts_use_plain_words() -> None:
    found = {
        f"{name} {getattr(part, 'name', '')}": complaints(f"{part.help}")
        for name, command in commands()
        for part in (command, *command.params)
        if getattr(part, "help", None)
    }
    assert {where: what for where, what in found.items() if what} == {}


def test_messages_use_plain_words() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {complaint}"
        for path in sorted((ROOT / "localspec").rglob("*.py"))
        if not any(sample in path.as_posix() for sample in SAMPLES)
        for line, text in strings(path)
        for complaint in complaints(text)
    ]
    assert found == []


def test_complaints_find_each_kind() -> None:
    bad = "It measures anew.|of 12 tokens behind 300 of them|the draft model that promises most|"
    bad += "The model says nothing.|colors"
    assert [len(complaints(text)) for text in bad.split("|")] == [1] * 5

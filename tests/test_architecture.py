"""The page on the architecture names files and layers that there are."""

from __future__ import annotations

import re
from pathlib import Path

from tests.test_layers import LAYERS

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_files_that_it_names_exist() -> None:
    named = set(re.findall(r"\b(?:localspec|tests)/[\w/]+(?:\.py|/)?", PAGE))
    assert len(named) > 15
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_names_in_code_exist() -> None:
    sources = "\n".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "localspec").rglob("*.py")
    )
    for name in re.findall(r"`([A-Z]\w+)`", PAGE):
        assert re.search(rf"\b{name}\b", sources), name


def test_its_layers_are_those_that_are_held() -> None:
    picture = PAGE.split("## Layers")[1].split("```")[1]
    rooms = [line.split("  ")[1] for line in picture.splitlines() if line.strip()]
    shown = [set(room.split(", ")) for room in rooms]
    assert shown == [set(layer) for layer in reversed(LAYERS)]

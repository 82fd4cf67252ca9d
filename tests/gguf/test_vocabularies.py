"""Vocabularies of llama.cpp's own tests: special tokens and pairs."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from localspec.gguf.file import GGUFFile
from localspec.gguf.reader import read_gguf
from localspec.gguf.vocabularies import VocabularyFacts, compare
from localspec.pairing.rules import failure, judge
from tests.conftest import DATA
from tests.pairing.pairs import model

_FACTS = json.loads((DATA / "vocabularies.json").read_text(encoding="utf-8"))
FAMILIES: dict[str, dict[str, Any]] = _FACTS["families"]
DIFFERS = {(a, b): token for a, b, token in _FACTS["differs"]}


def _write(path: Path, family: str, **more: Any) -> Path:
    """A file with the vocabulary of a family, most tokens of which are placeholders."""
    facts = FAMILIES[family]
    tokens: list[str | bytes] = [f"[placeholder {i}]" for i in range(facts["size"])]
    if facts["model"] == "llama":
        tokens[1000:1256] = [f"<0x{byte:02X}>" for byte in range(256)]
    types = [1] * len(tokens)
    for token, text, kind, _ in facts["tokens"]:
        tokens[token], types[token] = text, kind
    ids = {n.removesuffix("_token_id"): i for n, i in facts["keys"].items() if n.endswith("_id")}
    said = {key: facts[key] for key in ("pre", "architecture")} | {"tokenizer": facts["model"]}
    said |= {"special": ids, "add_bos": facts["keys"].get("add_bos_token"), "name": family}
    return model(path, tokens=tokens, types=types, **said, **more)


@pytest.fixture(scope="module")
def file_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], GGUFFile]:
    folder = tmp_path_factory.mktemp("families")
    return cache(lambda family: read_gguf(_write(folder / f"{family}.gguf", family)))


@pytest.mark.parametrize("family", FAMILIES)
def test_special_tokens_equal_llama_cpps(family: str, file_of: Callable[[str], GGUFFile]) -> None:
    native = FAMILIES[family]["native"]
    found = VocabularyFacts(file_of(family))
    ours = {"bos": found.beginning(), "eos": found.end(), "eot": found.turn_end()}
    for name, token in ours.items():
        assert token == (native[name] if native[name] >= 0 else None), name


def test_differences_between_families(file_of: Callable[[str], GGUFFile]) -> None:
    facts = {family: VocabularyFacts(file_of(family)) for family in FAMILIES}
    assert len(DIFFERS) == len(FAMILIES) * (len(FAMILIES) - 1) // 2
    for (a, b), token in DIFFERS.items():
        if token is None:
            continue  # placeholders would make these differ, or agree, for other reasons
        for mine, other in ((facts[a], facts[b]), (facts[b], facts[a])):
            different = compare(mine, other)
            assert different is not None, (a, b)
            assert different.target != different.draft, (a, b)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "family", [name for name, facts in FAMILIES.items() if "bert" not in facts["architecture"]]
)
def test_same_family_fits(family: str, tmp_path: Path, file_of: Callable[[str], GGUFFile]) -> None:
    large = read_gguf(_write(tmp_path / "large.gguf", family, width=128, layers=64))
    report = judge(large, file_of(family))
    wrong = {check.rule for check in report if check.verdict != "ok"}
    # Embeddings of a quarter of a million tokens dominate such small models.
    assert wrong <= {"smaller"}, report
    assert failure(report) is None

"""The catalogue that ships, and the user's own."""

import re
from pathlib import Path

import pytest

from localspec import UsageError
from localspec.errors import ModelNotFound
from localspec.gguf.names import is_repository
from localspec.hub import catalog
from localspec.hub.reference import CatalogName, Repository
from localspec.hub.resolution import identify
from tests.hub.conftest import entry
from tests.support import packages


def test_entries_are_plausible(monkeypatch: pytest.MonkeyPatch) -> None:
    packages.hide(monkeypatch)
    known = catalog.load()
    wanted = {"Qwen3", "Qwen3.5", "Qwen3.6", "Llama 3", "Gemma 3", "Gemma 4", "Mistral", "gpt-oss"}
    wanted |= {"GLM", "DeepSeek distills", "Phi", "SmolLM", "Granite"}
    assert {entry.family for entry in known.entries} >= wanted
    kinds = {head.kind for entry in known.entries for head in entry.heads}
    assert kinds >= {"EAGLE-3", "MTP", "DFlash"}
    drafted = 0
    for one in known.entries:
        assert identify(one.name) == Repository(one.repo, one.quant, one.file)
        assert all(is_repository(repo) for repo in one.repositories)
        assert one.source == f"https://huggingface.co/{one.repo}"
        checked = [one.checked, *(head.checked for head in one.heads)]
        assert all(day.startswith("2026-") for day in checked)
        for name in one.drafts:
            draft = known.find(name)
            assert draft is not None, f"{one.name}: {name}"
            assert draft.parameters < one.parameters / 2, f"{one.name}: {name}"
            drafted += 1
        if one.size is not None:
            # About 4 or 8 bits a weight; embeddings weigh more in small models, with more bits.
            low, high = (0.95, 1.3) if one.quant == "Q8_0" else (0.5, 0.85)
            high += 0.2 * (one.parameters < 1e9)
            assert low < one.size / one.parameters < high, one.name
    assert drafted > 40


@pytest.mark.parametrize(
    "reference", ["Qwen3-8B:Q8_0", "qwen/qwen3-8b-gguf", "hf.co/unsloth/Qwen3-8B-GGUF", "demo"]
)
def test_entry_for_a_reference(reference: str) -> None:
    found = catalog.load().entry_for(reference)
    assert (found and found.name) == ("qwen3-8b" if "wen3" in reference else None)


def test_user_entries_are_added_and_replace(user_catalogue: Path) -> None:
    user_catalogue.write_text(
        entry(drafts='["qwen3-0.6b", "user/draft:Q8_0"]') + entry(name='"qwen3-8b"', size="7")
    )
    known = catalog.load()
    mine, replaced = known.find("mine"), known.find("qwen3-8b")
    assert (mine and mine.drafts) == ["qwen3-0.6b", "user/draft:Q8_0"]
    assert replaced is not None
    assert (replaced.repo, replaced.size, replaced.heads) == ("user/repo", 7, [])
    assert known.find("qwen3-14b") is not None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[[model]]\nname = 'x'\nfamily = y", r"is not valid TOML: .*line 3"),
        ("\xff", r"is not valid TOML"),
        ("models = 3", r"unknown key 'models'; entries are \[\[model\]\] tables"),
        ("[model]\nname = 'x'", r"\[model\] as a table"),
        ("model = [3]", r"\[\[model\]\] number 1: entry: input should be"),
        (entry() + entry(name=None), r"\[\[model\]\] number 2: name: field required"),
        (entry(size='"5 GB"'), r"entry 'mine': size: input should be a valid integer"),
        (entry(colour='"red"'), r"entry 'mine': colour: extra inputs are not permitted"),
        (entry(name='"Mine!"'), r"entry 'Mine!': name: string should match"),
        (entry(repo='"../../etc"'), r"entry 'mine': repo: '../../etc' is not user/repo"),
        (entry(others='["x"]'), r"entry 'mine': others: 'x' is not user/repo"),
        (entry(file='"../x.gguf"'), r"entry 'mine': file: .* is not the name of a gguf file"),
        (entry(note='"a\\u001b[2J"'), r"entry 'mine': note: has control characters"),
        (entry(drafts='["qwen9"]'), r"entry 'mine': drafts: there is no entry 'qwen9'"),
        (entry(checked='"yesterday"'), r"entry 'mine': checked"),
        (entry() + entry(), r"has two entries 'mine'"),
    ],
)
def test_errors_are_located(user_catalogue: Path, text: str, why: str) -> None:
    user_catalogue.write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError, match=why) as refused:
        catalog.load()
    assert str(refused.value).startswith(f"The catalogue {user_catalogue} ")
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("qwen3:14", "Did you mean qwen3-14b"),
        ("deepseek-r1:7b", "Did you mean deepseek-r1-qwen-7b or "),
        ("qwen3-8:Q8_0", "Did you mean qwen3-8b or "),
        ("xyzzy", "catalogue. Give a path"),
    ],
)
def test_names_of_ollama_suggest_those_of_the_catalogue(typed: str, meant: str) -> None:
    with pytest.raises(ModelNotFound, match=re.escape(meant)):
        catalog.load().require(CatalogName(typed))


@pytest.mark.parametrize(
    ("typed", "entry"),
    [("qwen3:14b", "qwen3-14b"), ("gemma3:1b", "gemma-3-1b"), ("smollm2:135m", "smollm2-135m")],
)
def test_names_of_ollama_are_those_of_the_catalogue(typed: str, entry: str) -> None:
    name, known = CatalogName(typed), catalog.load()
    assert known.require(name).name == entry
    assert entry in [one.name for one in known.entries if one.matches([typed])]
    assert known.repository(name) == known.repository(CatalogName(entry))


def test_words_do_not_end_within_a_number() -> None:
    found = {one.name for one in catalog.load().entries if one.matches(["qwen3"])}
    assert found & {"qwen3-8b", "deepseek-r1-qwen-32b"} == {"qwen3-8b"}

"""What people type for a model, before anyone looks whether it is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec import UsageError
from localspec.hub.reference import CatalogName, Repository, parse


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("user/repo", Repository("user/repo")),
        ("user/repo:q8_0", Repository("user/repo", "q8_0")),
        ("user/repo:m.gguf", Repository("user/repo", file="m.gguf")),
        ("hf.co/user/repo", Repository("user/repo")),
        ("hf.co/user/repo:Q8_0", Repository("user/repo", "Q8_0")),
        ("HF.co/user/repo/m.gguf", Repository("user/repo", file="m.gguf")),
        ("huggingface.co/user/repo:Q8_0", Repository("user/repo", "Q8_0")),
        ("https://huggingface.co/user/repo/", Repository("user/repo")),
        ("https://huggingface.co/user/repo?library=x", Repository("user/repo")),
        ("https://hf.co/user/repo/tree/main", Repository("user/repo")),
        (
            "https://huggingface.co/user/repo/blob/main/Q4/m%20x.gguf",
            Repository("user/repo", file="Q4/m x.gguf"),
        ),
        (
            "https://huggingface.co/user/repo/resolve/v2/m.gguf?download=true",
            Repository("user/repo", file="m.gguf", revision="v2"),
        ),
        ("hf://user/repo", Repository("user/repo")),
    ],
)
def test_repositories(text: str, meant: Repository) -> None:
    assert parse(text) == meant


@pytest.mark.parametrize(
    "text",
    [
        *("user/repo:", "user/repo:../x", "user/repo:../x.gguf", "user/repo:/etc/x.gguf"),
        *("hf.co/../repo", "hf.co/user/..", "hf.co/user", "hf.co/", "hf.co/user/a--b", "a\0b"),
        *("hf.co/user/repo/../../x.gguf", "hf.co/user/repo/blob/../x.gguf", "user/repo:C:x.gguf"),
        *("https://huggingface.co/user/repo/blob/%2e%2e/x.gguf", "https://huggingface.co/"),
        *("https://example.com/user/repo", "ftp://user/repo", "user/repo\x1b[2J", "x\nfile"),
        *("hf.co/datasets/user/repo", "hf.co/user/repo%00x", "hf.co/user/repo/x%0a.gguf"),
    ],
)
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse(text)
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("qwen3-8b", CatalogName("qwen3-8b")),
        ("Qwen3-8B:Q8_0", CatalogName("Qwen3-8B", quant="Q8_0")),
        ("no-such-model", CatalogName("no-such-model")),
    ],
)
def test_what_only_the_catalogue_can_know(
    text: str, meant: CatalogName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert parse(text) == meant
    assert str(meant) == text
    monkeypatch.chdir(tmp_path)
    Path(text).touch()
    assert parse(text) == Path(text)

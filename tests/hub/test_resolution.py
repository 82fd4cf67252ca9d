"""From what people type, wherever it is, to the file that is meant."""

import os
from functools import partial
from pathlib import Path

import pytest
from huggingface_hub import constants

from localspec import ModelNotFound, UsageError, paths
from localspec.hub.reference import CatalogName, Repository, parse
from localspec.hub.resolution import find, resolve
from tests.history.histories import without_root
from tests.hub.conftest import COMMIT, OLDER, Cached, refusal

not_found = partial(refusal, resolve, kind=ModelNotFound)
PAGE = "https://huggingface.co/user/repo"


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("user/repo", Repository("user/repo")),
        ("user/repo:q8_0", Repository("user/repo", "q8_0")),
        ("user/repo:m.gguf", Repository("user/repo", file="m.gguf")),
        ("hf.co/user/repo:Q8_0", Repository("user/repo", "Q8_0")),
        ("HF.co/user/repo/m.gguf", Repository("user/repo", file="m.gguf")),
        (f"{PAGE}/", Repository("user/repo")),
        (f"{PAGE}?library=x", Repository("user/repo")),
        ("https://hf.co/user/repo/tree/main", Repository("user/repo")),
        (f"{PAGE}/blob/main/Q4/m%20x.gguf", Repository("user/repo", file="Q4/m x.gguf")),
        (
            f"{PAGE}/resolve/refs%2Fpr%2F1/m.gguf?download=true",
            Repository("user/repo", file="m.gguf", revision="refs/pr/1"),
        ),
        ("hf://user/repo", Repository("user/repo")),
        (" hf.co/user/repo:latest\n", Repository("user/repo")),
    ],
)
def test_repositories(text: str, meant: Repository) -> None:
    assert parse(text) == meant


@pytest.mark.parametrize("endpoint", ["http://mirror.lan:8080", "https://example.org/hub/hf"])
def test_addresses_of_a_mirror(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    assert parse(f"{endpoint}/user/repo/blob/main/m.gguf") == Repository("user/repo", file="m.gguf")
    refusal(parse, "https://example.org/user/repo", "not an address of Hugging Face", UsageError)


@pytest.mark.parametrize(
    "text",
    [
        *("user/repo:", "user/repo:../x", "user/repo:../x.gguf", "user/repo:/etc/x.gguf"),
        *("hf.co/../repo", "hf.co/user/..", "hf.co/user", "hf.co/", "hf.co/user/a--b", "a\0b"),
        *("hf.co/user/repo/../../x.gguf", "hf.co/user/repo/blob/../x.gguf", "user/repo:C:x.gguf"),
        *("https://huggingface.co/user/repo/blob/%2e%2e/x.gguf", "https://huggingface.co/"),
        *("https://example.com/user/repo", "ftp://user/repo", "user/repo\x1b[2J", "x\nfile"),
        *("hf.co/datasets/user/repo", "hf.co/user/repo%00x", "hf.co/user/repo/x%0a.gguf"),
        *("hf.co/user/a..b", "hf.co/-u/repo", "hf.co/user/repo.git", "hf.co/usér/repo"),
        *("hf.co/user/re po", "hf.co//repo", "hf.co/user\n/repo"),
    ],
)
def test_invalid_names_are_refused(text: str) -> None:
    assert str(refusal(parse, text, ".", UsageError)).isprintable()


def test_catalogue_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, quant in (("qwen3-8b", None), ("Qwen3-8B", "Q8_0"), ("no-such-model", None)):
        text = f"{name}:{quant}" if quant else name
        assert parse(text) == CatalogName(name, quant=quant)
        assert str(parse(text)) == text
        Path(text).touch()
        assert parse(text) == Path(text)


def test_the_embedded_pair() -> None:
    target, draft = paths.EMBEDDED_TARGET, paths.EMBEDDED_DRAFT
    assert resolve(None) == resolve("demo") == paths.embedded(target)
    assert find("demo", embedded=draft).path == paths.embedded(draft)


def test_path_to_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (file := tmp_path / "a model.gguf").touch()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve(file) == resolve(str(file)) == resolve("~/a model.gguf") == file
    assert resolve(file.as_uri()) == file


def test_missing_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [tmp_path / "x.gguf", f"{tmp_path}/x", "./x", "file:///x y", "dir/x.gguf", "C:\\x"]
    for missing in [*files, "x.gguf"]:
        not_found(missing, r"There is no file .*Check the path")
    not_found(str(tmp_path), r"is a folder\. It has no GGUF file: .* convert_hf")
    (tmp_path / "b.gguf").touch()
    not_found(str(tmp_path), r"is a folder\. Name a file in it: .*/b\.gguf\.$")
    (tmp_path / "b.gguf").unlink()
    for target in ("../blobs/gone", "link.gguf"):
        (tmp_path / "link.gguf").unlink(missing_ok=True)
        (tmp_path / "link.gguf").symlink_to(target)
        not_found(tmp_path / "link.gguf", rf"is a link to {target}, which leads to no file\. Down")
    monkeypatch.setenv("LOCALSPEC_HOME", "/nonexistent")  # the test's own would be closed, too
    (tmp_path / "closed").mkdir(mode=0)
    with without_root():
        not_found(str(tmp_path / "closed/m.gguf"), r"m\.gguf cannot be read: Permission denied\.")


def test_file_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cached: Cached) -> None:
    cached("user/repo", "m-Q4_K_M.gguf")
    monkeypatch.chdir(tmp_path)
    Path("user").mkdir()
    Path("user/repo").touch()
    assert resolve("user/repo") == Path("user/repo")
    Path("user/repo").unlink()
    assert resolve("user/repo").name == "m-Q4_K_M.gguf"
    Path("user/else").mkdir()
    not_found("user/else", "user/else is a folder")


def test_any_part_names_the_model(tmp_path: Path) -> None:
    parts = [tmp_path / f"m-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    for part in parts:
        part.touch()
    (link := tmp_path / "latest.gguf").symlink_to(parts[1])
    assert [resolve(part) for part in (*parts, link)] == [parts[0]] * 4
    parts[1].unlink()
    assert resolve(str(parts[1])) == parts[0], "also the one that is not there"


def test_cached_file(cached: Cached) -> None:
    snapshot = cached("user/repo", "m-Q8_0.gguf", "m-Q4_K_M.gguf", "sub/m-Q2_K.gguf")
    assert find("user/repo").path == snapshot / "m-Q4_K_M.gguf"
    assert find("user/repo").notices == ()
    assert resolve("user/repo:q8_0") == resolve("hf.co/user/repo:Q8_0") == snapshot / "m-Q8_0.gguf"
    assert resolve("user/repo:sub/m-Q2_K.gguf") == snapshot / "sub/m-Q2_K.gguf"


def test_other_quantization_is_reported(cached: Cached) -> None:
    snapshot = cached("user/repo", "m-Q8_0.gguf", "m-Q6_K.gguf", "mmproj.gguf")
    found = find("user/repo")
    assert found.path == snapshot / "m-Q6_K.gguf"
    assert found.notices == ("Q4_K_M of user/repo is not in the cache; using m-Q6_K.gguf.",)


def test_older_revision_is_reported(cached: Cached) -> None:
    older = cached("user/repo", "m-Q4_K_M.gguf", commit=OLDER)
    cached("user/repo", "m-Q8_0.gguf", commit=COMMIT)
    found = find("user/repo")
    assert found.path == older / "m-Q4_K_M.gguf"
    assert found.notices == ("m-Q4_K_M.gguf is from an older revision of user/repo.",)
    assert find("user/repo:Q8_0").notices == ()


def test_split_model_in_the_cache(cached: Cached) -> None:
    parts = [f"m-Q4_K_M-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    snapshot = cached("user/repo", *parts)
    assert resolve("user/repo") == snapshot / parts[0]
    assert resolve(f"user/repo:{parts[2]}") == snapshot / parts[0]
    os.remove((snapshot / parts[1]).resolve())  # the link stays, and leads nowhere
    not_found("user/repo", r"m-Q4_K_M-00002-of-00003.gguf of user/repo is missing")


def test_missing_model_suggests_pull(cache: Path, cached: Cached) -> None:
    told = f"user/repo:Q8_0 is not here (in {cache}). Get it with 'localspec pull user/repo:Q8_0'."
    assert str(not_found("user/repo:Q8_0", ".", offline=False)) == told
    cached("user/repo", "m-Q4_K_M.gguf", "m-Q6_K.gguf")
    not_found("user/repo:Q8_0", r"; the cache has Q4_K_M and Q6_K of it. Get it with")


def test_invalid_ref_is_ignored(cache: Path, cached: Cached) -> None:
    cached("user/repo", "m-Q4_K_M.gguf")
    (cache / "models--user--repo/refs/main").write_text("../../../elsewhere")
    assert resolve("user/repo").parent.name == COMMIT


def test_catalogue_name_resolves(cached: Cached) -> None:
    snapshot = cached("Qwen/Qwen3-0.6B-GGUF", "Qwen3-0.6B-Q8_0.gguf", "Qwen3-0.6B-Q4_K_M.gguf")
    assert resolve("Qwen3-0.6b") == snapshot / "Qwen3-0.6B-Q8_0.gguf"
    assert resolve("qwen3-0.6b:q4_k_m") == snapshot / "Qwen3-0.6B-Q4_K_M.gguf"

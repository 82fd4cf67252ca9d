"""What `rm` removes, and everything that it must leave alone."""

import errno
import os
from pathlib import Path

import pytest

from localspec import LocalspecError, ModelNotFound, UsageError, paths
from localspec.hub.removal import plan
from tests.hub.conftest import OLDER, Cached, refusal
from tests.support.patches import fail_with


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


def test_remove_one_quantization(cached: Cached, cache: Path) -> None:
    snapshot = cached("user/repo", "m-Q4_K_M.gguf", "sub/m-Q8_0.gguf", "README.md")
    blob = (snapshot / "sub/m-Q8_0.gguf").resolve()
    planned = plan("user/repo:q8_0")
    assert (planned.files, planned.freed) == ((snapshot / "sub/m-Q8_0.gguf",), blob.stat().st_size)
    assert blob.exists()
    planned.execute()
    assert not blob.exists()
    assert sorted(path.name for path in snapshot.iterdir()) == ["README.md", "m-Q4_K_M.gguf"]
    refusal(plan, "user/repo:q8_0", r"The cache has no q8_0 of user/repo", ModelNotFound)


def test_remove_a_repository_with_partial_files(cached: Cached, cache: Path) -> None:
    snapshot = cached("user/repo", "m-Q4_K_M.gguf", "README.md")
    for number in range(20):  # at the same commit, as copies of it would be
        cached(f"user/copy{number}", "m-Q4_K_M.gguf")
    blobs = snapshot.parents[1] / "blobs"
    (blobs / "abc.incomplete").write_bytes(bytes(1000))
    size = sum(path.stat().st_size for path in blobs.iterdir())
    planned = plan("user/repo")
    assert planned.freed == size
    planned.execute()
    left = {f"models--user--copy{number}" for number in range(20)}
    assert {path.name for path in cache.iterdir()} == left


def test_remove_all_parts(cached: Cached) -> None:
    parts = [f"m-Q8_0-0000{number}-of-00002.gguf" for number in (1, 2)]
    snapshot = cached("user/repo", *parts, "m-Q4_K_M.gguf")
    planned = plan(f"user/repo:{parts[1]}")
    assert planned.files == tuple(snapshot / part for part in parts)
    planned.execute()
    assert files_below(snapshot) == {"m-Q4_K_M.gguf"}


def test_blob_of_two_revisions(cached: Cached, cache: Path) -> None:
    older = cached("user/repo", "m-Q4_K_M.gguf", "old.gguf", commit=OLDER)
    newer = cached("user/repo", "m-Q4_K_M.gguf")
    size = (newer / "m-Q4_K_M.gguf").stat().st_size
    planned = plan("user/repo:Q4_K_M")
    assert set(planned.files) == {older / "m-Q4_K_M.gguf", newer / "m-Q4_K_M.gguf"}
    assert planned.freed == size  # it is there once
    planned.execute()
    assert files_below(older) == {"old.gguf"}


def test_shared_blob_stays(cached: Cached) -> None:
    snapshot = cached("user/repo", "m-Q4_K_M.gguf")
    blob = (snapshot / "m-Q4_K_M.gguf").resolve()
    (snapshot / "also.gguf").symlink_to(os.path.relpath(blob, snapshot))
    planned = plan("user/repo:Q4_K_M")
    planned.execute()
    assert (planned.freed, blob.exists()) == (0, True)
    assert files_below(snapshot) == {"also.gguf"}


def test_remove_by_path(cached: Cached, tmp_path: Path) -> None:
    snapshot = cached("user/repo", "sub/m-Q4_K_M.gguf", "other.gguf")
    (tmp_path / "link").symlink_to(snapshot)
    plan(str(tmp_path / "link/sub/m-Q4_K_M.gguf")).execute()
    assert files_below(snapshot) == {"other.gguf"}


def test_remove_a_file_made_by_localspec() -> None:
    own = paths.cache_folder() / "drafts" / "copy.gguf"
    own.parent.mkdir(parents=True, exist_ok=True)
    own.write_bytes(bytes(10))
    planned = plan(str(own))
    planned.execute()
    assert (planned.freed, own.exists()) == (10, False)


@pytest.mark.parametrize("place", ["models", ".ollama/models/blobs", ".cache/llama.cpp"])
def test_files_of_other_programs_are_refused(tmp_path: Path, place: str) -> None:
    file = tmp_path / place / "m.gguf"
    file.parent.mkdir(parents=True)
    file.touch()
    refusal(plan, str(file), r"is not in a cache of localspec's .* 'ollama rm'", UsageError)
    assert file.exists()


def test_invalid_references(cache: Path, cached: Cached) -> None:
    refusal(plan, "demo", "built-in pair is a part of localspec", UsageError)
    refusal(plan, str(paths.embedded(paths.EMBEDDED_TARGET)), "not in a cache", UsageError)
    cached("user/other", "m.gguf")
    refusal(plan, "user/repo", "user/repo is not in", ModelNotFound)
    none = str(cache / "models--user--other/snapshots/x/none.gguf")
    refusal(plan, none, "There is no file", ModelNotFound)


@pytest.mark.parametrize("reference", ["user/repo:Q4_K_M", "user/repo"])
def test_links_out_of_the_cache_are_refused(cached: Cached, tmp_path: Path, reference: str) -> None:
    precious = tmp_path / "precious.gguf"
    precious.write_bytes(b"mine")
    snapshot = cached("user/repo", "m-Q8_0.gguf")
    (snapshot / "m-Q4_K_M.gguf").symlink_to(precious)
    refusal(plan, reference, r"is a link to .*precious\.gguf, which is not in the cac", UsageError)
    plan("user/repo:Q8_0").execute()
    assert precious.read_bytes() == b"mine"


def test_linked_repository_is_refused(cached: Cached, cache: Path, tmp_path: Path) -> None:
    cached("user/repo", "m-Q8_0.gguf")
    (cache / "models--user--repo").rename(tmp_path / "big disk")
    (cache / "models--user--repo").symlink_to(tmp_path / "big disk")
    refusal(plan, "user/repo", "is a link to another place", UsageError)
    assert any((tmp_path / "big disk").iterdir())


def test_damaged_cache_is_removed(cached: Cached) -> None:
    snapshot = cached("user/repo", "sub/in/m-Q8_0.gguf", "other.gguf")
    (snapshot / "sub/in/m-Q8_0.gguf").resolve().unlink()
    plan("user/repo:Q8_0").execute()
    assert [*snapshot.iterdir()] == [snapshot / "other.gguf"]


def test_failed_removal_is_reported(cached: Cached, monkeypatch: pytest.MonkeyPatch) -> None:
    cached("user/repo", "m-Q8_0.gguf")
    refuse = fail_with(PermissionError(errno.EACCES, "Permission denied", "user/repo"))
    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", refuse)
        with pytest.raises(LocalspecError, match="cannot be removed: Permission denied"):
            plan("user/repo").execute()
        patch.setattr("shutil.rmtree", fail_with(FileNotFoundError(errno.ENOENT, "Gone", "x")))
        plan("user/repo").execute()  # another process was faster

"""Files in Xet storage, by the real hf-xet and by plain HTTP."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import (
    constants,
)

from localspec import LocalspecError
from localspec.hub.download import PullProgress, pull
from tests.hub.pulled import SIZE, finished_files, unfinished
from tests.hub.server import Hub, Repo

pytestmark = pytest.mark.nightly


def test_chunks_from_xet_storage(
    hub: Hub, model: bytes, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The real hf-xet, with a folder for its store, for those who want it and for huge files."""
    store_in_xet(hub.repos["user/repo"], tmp_path / "store")
    seen: list[PullProgress] = []
    with monkeypatch.context() as patch:
        patch.setattr(constants, "MAX_HTTP_DOWNLOAD_SIZE", SIZE - 1)
        done = pull("user/repo", progress=seen.append)
    assert done.path.read_bytes() == model
    assert done.downloaded == SIZE
    assert hub.downloads() == []
    assert seen[-1].done == SIZE
    assert unfinished(cache) == []


def test_xet_storage_that_lacks_it(
    hub: Hub, model: bytes, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store_in_xet(hub.repos["user/repo"], tmp_path / "store")
    hub.repos["user/repo"].xet_hashes = dict.fromkeys(hub.repos["user/repo"].files, "0" * 64)
    monkeypatch.setattr(constants, "HF_XET_HIGH_PERFORMANCE", True)
    with pytest.raises(LocalspecError, match=r"did not come from Xet storage"):
        pull("user/repo")
    assert finished_files(cache) == unfinished(cache) == []


def store_in_xet(repo: Repo, store: Path) -> None:
    import hf_xet  # type: ignore[import-untyped]

    repo.xet = f"local://{store}"
    with hf_xet.XetSession().new_upload_commit(endpoint=repo.xet) as commit:
        uploads = {name: commit.start_upload_bytes(data) for name, data in repo.files.items()}
    repo.xet_hashes = {name: upload.result().xet_info.hash for name, upload in uploads.items()}

"""Pulling from a hub that behaves."""

import errno
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import constants, hf_hub_download, scan_cache_dir, try_to_load_from_cache

from localspec import LocalspecError, ModelNotFound
from localspec.hub import removal
from localspec.hub.download import PullProgress, pull
from localspec.hub.resolution import resolve
from tests.cli.process import environment, finished
from tests.hub.conftest import SIZE, complete_files, content, partial_files, refusal
from tests.hub.server import COMMIT, TOKEN, Hub, Repo
from tests.support.patches import fail_with

pytestmark = pytest.mark.nightly


def test_pulled_model_is_in_the_shared_cache(hub: Hub, model: bytes, cache: Path) -> None:
    done = pull("user/repo")
    assert done.path == cache / f"models--user--repo/snapshots/{COMMIT}/m-Q4_K_M.gguf"
    assert done.path.read_bytes() == model
    assert (done.reference, done.size, done.downloaded) == ("user/repo:Q4_K_M", SIZE, SIZE)
    assert resolve("user/repo") == done.path
    assert try_to_load_from_cache("user/repo", "m-Q4_K_M.gguf", cache_dir=cache) == str(done.path)
    again = hf_hub_download("user/repo", "m-Q4_K_M.gguf", cache_dir=cache, local_files_only=True)
    assert again == str(done.path)
    (found,) = scan_cache_dir(cache).repos
    assert (found.repo_id, found.size_on_disk, list(found.refs)) == ("user/repo", SIZE, ["main"])
    assert partial_files(cache) == []
    assert pull("hf.co/user/repo/blob/refs%2Fpr%2F1/m-Q4_K_M.gguf").downloaded == 0
    assert len(hub.downloads()) == 1


def test_shared_cache(hub: Hub, model: bytes, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = pull("user/repo")
    (lock,) = cache.rglob("*.lock")
    assert lock.stat().st_mode & 0o777 == 0o664
    monkeypatch.setattr("localspec.files.replacing", fail_with(PermissionError(13, "No")))
    assert (pull("user/repo").path, pull("user/repo").downloaded) == (first.path, 0)


def test_repository_names_ignore_case(hub: Hub, model: bytes, cache: Path) -> None:
    done = pull("USER/Repo")
    assert (done.repository, done.reference) == ("user/repo", "user/repo:Q4_K_M")
    assert [path.name for path in cache.glob("models--*")] == ["models--user--repo"]
    assert resolve("User/REPO") == resolve("user/repo") == done.path


def test_references_are_unambiguous(hub: Hub, cache: Path) -> None:
    hub.repos["user/repo"] = Repo({"a-Q8_0.gguf": b"a", "b-Q8_0.gguf": b"b", "plain.gguf": b"p"})
    for name, reference in (("a-Q8_0", "Q8_0"), ("b-Q8_0", "b-Q8_0.gguf"), ("plain", "plain.gguf")):
        done = pull(f"user/repo:{name}.gguf")
        assert done.reference == f"user/repo:{reference}"
        assert resolve(done.reference) == done.path


def test_damaged_file_is_downloaded_again(hub: Hub, model: bytes) -> None:
    path = pull("user/repo").path
    path.resolve().write_bytes(model[:1000])
    assert pull("user/repo").downloaded == SIZE
    assert path.read_bytes() == model


def test_all_parts_are_downloaded(hub: Hub, cache: Path) -> None:
    names = [f"Q4_K_M/m-Q4_K_M-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    hub.repos["user/repo"] = Repo({name: content(i) for i, name in enumerate(names)})
    seen: list[PullProgress] = []
    done = pull("user/repo", progress=seen.append)
    assert [path.read_bytes() for path in done.files] == [content(i) for i in range(3)]
    assert done.path == done.files[0] == resolve("user/repo")
    assert {(p.number, p.of, p.doing) for p in seen} == {
        (number, 3, doing) for number in (1, 2, 3) for doing in ("download", "check")
    }
    assert {p.done for p in seen if p.number == 2} >= {0, SIZE}


def test_file_selection(hub: Hub) -> None:
    files = {"a-Q8_0.gguf": b"8", "b-Q6_K.gguf": b"6", "mmproj-F16.gguf": b"no"}
    hub.repos["user/repo"] = Repo(files)
    told: list[str] = []
    assert pull("user/repo", notify=told.append).path.name == "b-Q6_K.gguf"
    assert told == [
        "user/repo has no Q4_K_M; using b-Q6_K.gguf.",
        "Its projector, for images, is downloaded with 'localspec pull user/repo:mmproj-F16.gguf'.",
    ]
    assert pull("user/repo:mmproj-F16.gguf").reference == "user/repo:mmproj-F16.gguf"
    assert resolve("user/repo:mmproj-F16.gguf").read_bytes() == b"no"
    removal.plan("user/repo:mmproj-F16.gguf").execute()
    assert pull("user/repo:q6_k").path.name == "b-Q6_K.gguf"
    assert pull("user/repo:b-Q6_K.gguf").path.name == "b-Q6_K.gguf"
    why = r"user/repo has no Q2_K\. It has Q8_0 and Q6_K\."
    refusal(pull, "user/repo:Q2_K", why, ModelNotFound)
    hub.repos["user/repo"] = Repo({"MMPROJ-F16.gguf": b"", "a.gguf.part1of2": b""})
    refusal(pull, "user/repo", r"no model, only MMPROJ-F16\.gguf and a.* pull user/repo:MMPROJ-F16")


OUTSIDE = ["../../../evil.gguf", "/tmp/evil.gguf", "C:\\evil.gguf", "a\\..\\evil.gguf", "x\0.gguf"]
OUTSIDE += ("a//x.gguf", "a/C:/x.gguf", "\\\\host\\x.gguf", "x\u202e.gguf", f"{'é' * 200}.gguf")
CHECKSUMS = ("../../../../evil", "/tmp/evil", "short", "A" * 64)
"""The cache names blobs after what the server gives as ETag."""
FILE = {"m-Q4_K_M.gguf": b"evil"}


@pytest.mark.parametrize(
    ("repo", "error", "why"),
    [
        *(
            (Repo({name: b"evil"}), ModelNotFound, "as their names lead out of the cache: 1")
            for name in OUTSIDE
        ),
        *(
            (Repo(FILE, checksums=dict.fromkeys(FILE, each)), LocalspecError, "no usable checksum")
            for each in CHECKSUMS
        ),
        (Repo(FILE, commit="../../../../evil"), LocalspecError, "not a list of files"),
    ],
)
def test_paths_outside_the_cache_are_refused(
    hub: Hub, tmp_path: Path, repo: Repo, error: type[LocalspecError], why: str
) -> None:
    hub.repos["user/repo"] = repo
    refusal(pull, "user/repo", why, error)
    assert hub.downloads() == []
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_hub_alone_gets_the_token(hub: Hub, model: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repos["user/repo"].private = True
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    pull("user/repo")
    seen = {(request.server, request.authorization) for request in hub.requests}
    assert seen == {("hub", f"Bearer {TOKEN}"), ("cdn", None)}


def test_full_disk_is_reported_before_the_download(
    hub: Hub, model: bytes, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = SimpleNamespace(total=1_000_000, free=1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: sizes)
    refusal(pull, "user/repo", r"There is not enough disk space: 67\.4 MB .*HF_HUB_CACHE")
    assert hub.downloads() == []
    assert complete_files(cache) == []
    sizes.total = sizes.free = 0  # a file system that does not tell
    assert pull("user/repo").downloaded == SIZE
    monkeypatch.setattr(shutil, "disk_usage", fail_with(OSError(errno.EOPNOTSUPP, "No")))
    assert pull("user/repo").downloaded == 0


def test_file_too_large_for_http(hub: Hub, model: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "MAX_HTTP_DOWNLOAD_SIZE", SIZE - 1)
    refusal(pull, "user/repo", r"hf download user/repo m-Q4_K_M\.gguf")
    assert hub.downloads() == []


def test_disk_that_fills_up_keeps_the_part(
    hub: Hub, model: bytes, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = fail_with(OSError(errno.ENOSPC, "No space left on device"))
    with monkeypatch.context() as patch:
        patch.setattr("localspec.hub.download.os.fsync", full)
        refusal(pull, "user/repo", "The disk is full")
    assert complete_files(cache) == []
    assert pull("user/repo").downloaded == 0


def test_partial_file_is_removed(hub: Hub, model: bytes, cache: Path) -> None:
    def remove(_: PullProgress) -> None:
        for path in partial_files(cache):
            path.unlink()

    told = r"was removed during the download\. 'localspec pull user/repo' starts it again"
    refusal(pull, "user/repo", told, progress=remove)


def test_unwritable_cache(hub: Hub, model: bytes, cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    refusal(pull, "user/repo", r"cannot be written: Not a directory")


@pytest.mark.parametrize(
    ("name", "value", "code", "why"),
    [
        ("HF_HUB_DOWNLOAD_TIMEOUT", "soon", 2, "huggingface-hub does not start: HF_HUB_DOWNLOAD_T"),
        ("HF_HUB_ETAG_TIMEOUT", "9" * 20, 2, "huggingface-hub does not start: HF_HUB_ETAG_TIME"),
        ("HF_ENDPOINT", "http://h:80 ", 2, "huggingface-hub does not start: Port could not"),
        ("ALL_PROXY", "socks5://127.0.0.1:9", 1, "huggingface-hub cannot query 127.0.0.1:9: Using"),
        ("HF_TOKEN_PATH", "/dev/zero", 2, "huggingface-hub does not start: HF_TOKEN_PATH is /dev/"),
        ("SSL_CERT_FILE", "/nonexistent", 1, "huggingface-hub cannot query 127.0.0.1:9: "),
        ("HOME", __file__, 1, "huggingface-hub cannot query 127.0.0.1:9: "),
        ("HF_TOKEN", "hf\u00e9", 1, "huggingface-hub cannot query 127.0.0.1:9: 'ascii' codec"),
    ],
)
def test_invalid_client_variables(name: str, value: str, code: int, why: str) -> None:
    variables = {"HF_ENDPOINT": "http://127.0.0.1:9", name: value}
    done = finished("pull", "user/repo", env=environment(**variables))
    assert done.code == code
    assert done.sentence().startswith(why)
    assert "Check the variables that begin with HF_" in done.err
    assert done.err.endswith("and HOME.\n") == (code == 1)


def test_empty_and_old_client_variables() -> None:
    names = ("HF_ENDPOINT", "HF_HUB_DOWNLOAD_TIMEOUT", "HF_HOME", "HF_TOKEN_PATH")
    variables = dict.fromkeys(names, "") | {"HF_HUB_ENABLE_HF_TRANSFER": "1"}
    done = finished("pull", "user/repo", env=environment(**variables, ALL_PROXY="http://h:x"))
    assert done.sentence().startswith("https://huggingface.co is not a valid address")
    assert done.sentence().endswith("Check HF_ENDPOINT and the proxy.")
    assert "Warning" not in done.err


def test_offline_uses_the_cache(hub: Hub, model: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    refusal(pull, "user/repo", "user/repo is not here", ModelNotFound, offline=True)
    done = pull("user/repo")
    before = len(hub.requests)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    here = pull("user/repo")
    assert (here.path, here.downloaded, here.size) == (done.path, 0, SIZE)
    assert len(hub.requests) == before

"""Connections that end, servers that err: what looks complete is complete."""

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from localspec import LocalspecError
from localspec.hub.download import pull
from tests.hub.conftest import SIZE, complete_files, content, partial_files, refusal
from tests.hub.server import Fault, Hub, Repo, sha256

pytestmark = pytest.mark.nightly


def test_wrong_checksum_leaves_nothing(hub: Hub, model: bytes, cache: Path) -> None:
    hub.faults = [Fault(corrupt=True)]
    refusal(pull, "user/repo", r"m-Q4_K_M\.gguf arrived damaged.*pull it again")
    assert complete_files(cache) == partial_files(cache) == []
    assert pull("user/repo").path.read_bytes() == model


@pytest.mark.parametrize(
    "make",
    [lambda part: part.write_bytes(bytes(SIZE + 1)), lambda part: part.symlink_to(os.devnull)],
)
def test_partial_file_that_cannot_be_continued(
    hub: Hub, model: bytes, cache: Path, make: Callable[[Path], object]
) -> None:
    part = cache / f"models--user--repo/blobs/{sha256(model)}.incomplete"
    part.parent.mkdir(parents=True)
    make(part)
    assert pull("user/repo").path.read_bytes() == model


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (Fault(cut=0, unframed=True), r"broke \(0 of 300000 bytes arrived\)"),
        (Fault(cut=9_000, whole=True), "broke"),
    ],
)
def test_stalled_downloads_are_given_up(hub: Hub, model: bytes, fault: Fault, why: str) -> None:
    hub.faults = [fault] * 100
    refusal(pull, "user/repo", why)
    assert len(hub.faults) == 94  # the first attempt, and one after each wait


@pytest.mark.parametrize(
    "faults", [[Fault(extra=5)], [Fault(extra=5, unframed=True)], [Fault(status=206, body="other")]]
)
def test_wrong_sizes_and_ranges(hub: Hub, model: bytes, cache: Path, faults: list[Fault]) -> None:
    hub.faults = faults
    refusal(pull, "user/repo", "in a different size")
    assert complete_files(cache) == []
    assert pull("user/repo").path.read_bytes() == model


@pytest.mark.parametrize("fault", [Fault(shift=1), Fault(status=416), Fault(status=206)])
def test_a_proxy_that_cannot_continue(hub: Hub, model: bytes, fault: Fault) -> None:
    hub.faults = [Fault(cut=9_000), fault]
    assert pull("user/repo").path.read_bytes() == model


def test_silent_server(hub: Hub, model: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 1.0)  # a busy machine takes 0.2
    hub.faults = [Fault(cut=70_000, stall=True)]
    assert pull("user/repo").path.read_bytes() == model
    assert hub.sent == SIZE


@pytest.mark.parametrize("seed", range(50))
def test_random_cuts(hub: Hub, cache: Path, seed: int) -> None:
    """Files that look complete are complete, and no byte is fetched twice."""
    rng = random.Random(seed)
    size = rng.randrange(1, 1_000_000)
    files = {"m-Q4_K_M.gguf": content(seed, size)}
    if rng.random() < 0.3:
        parts = [f"m-Q4_K_M-0000{number}-of-00002.gguf" for number in (1, 2)]
        files = {part: content(seed + i, size) for i, part in enumerate(parts)}
    hub.repos["user/repo"] = Repo(files)
    gentle = rng.random() < 0.5
    hub.faults = [_random_fault(rng, size, gentle=gentle) for _ in range(rng.randrange(1, 9))]
    if rng.random() < 0.4:  # more than is put up with
        hub.faults += [Fault(cut=0)] * 6
    told: list[str] = []
    while len(told) < 12:
        try:
            done = pull("user/repo")
            break
        except LocalspecError as error:
            told.append(str(error))
        finally:
            for path in complete_files(cache):
                assert sha256(path.read_bytes()) in map(sha256, files.values())
    assert [path.read_bytes() for path in done.files] == list(files.values())
    assert partial_files(cache) == []
    assert all("'localspec pull user/repo'" in why or "pull it again" in why for why in told)
    if gentle:
        assert hub.sent == len(files) * size


def _random_fault(rng: random.Random, size: int, *, gentle: bool) -> Fault:
    """A cut at a random byte; unless `gentle`, possibly a fault that discards received bytes."""
    cut = rng.choice((0, 1, rng.randrange(size + 1), rng.randrange(size + 1)))
    if gentle:
        return Fault(cut=cut, unframed=rng.random() < 0.3)
    more: Any = rng.choice(({}, {"reset": True}, {"whole": True}, {"corrupt": True}, None))
    return Fault(status=rng.choice((500, 503, 429))) if more is None else Fault(cut=cut, **more)

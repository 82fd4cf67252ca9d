"""Connections that end, servers that err: what looks complete is complete."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from huggingface_hub import constants

from localspec import LocalspecError
from localspec.hub.download import pull
from tests.hub.conftest import SIZE, content, finished_files, unfinished
from tests.hub.server import Fault, Hub, Repo, sha256

pytestmark = pytest.mark.nightly


def test_a_wrong_checksum_leaves_nothing(hub: Hub, model: bytes, cache: Path) -> None:
    hub.faults = [Fault(corrupt=True)]
    with pytest.raises(LocalspecError, match=r"m-Q4_K_M\.gguf arrived damaged.*pull it again"):
        pull("user/repo")
    assert finished_files(cache) == unfinished(cache) == []
    assert pull("user/repo").path.read_bytes() == model


def test_an_unfinished_file_that_is_too_long_is_begun_anew(
    hub: Hub, model: bytes, cache: Path
) -> None:
    part = cache / f"models--user--repo/blobs/{sha256(model)}.incomplete"
    part.parent.mkdir(parents=True)
    part.write_bytes(bytes(SIZE + 1))
    assert pull("user/repo").path.read_bytes() == model


def test_a_cut_connection_goes_on_where_it_was(hub: Hub, model: bytes) -> None:
    hub.faults = [Fault(cut=100_000), Fault(cut=50_000), Fault(cut=1)]
    done = pull("user/repo")
    assert done.path.read_bytes() == model
    assert [request.range for request in hub.downloads()] == [
        None,
        "bytes=100000-",
        "bytes=150000-",
        "bytes=150001-",
    ]
    assert hub.sent == done.downloaded == SIZE


def test_a_second_pull_goes_on_where_the_first_gave_up(hub: Hub, model: bytes, cache: Path) -> None:
    hub.faults = [Fault(cut=120_000), *[Fault(cut=0)] * 5]
    with pytest.raises(LocalspecError, match=r"broke .*'localspec pull user/repo' continues"):
        pull("user/repo")
    assert finished_files(cache) == []
    assert [path.stat().st_size for path in unfinished(cache)] == [120_000]
    assert hub.faults == []
    assert pull("user/repo").downloaded == SIZE - 120_000
    assert hub.sent == SIZE


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (Fault(cut=0, unframed=True), r"broke \(0 of 300000 bytes came\)"),
        (Fault(cut=9_000, whole=True), "broke"),
    ],
    ids=["nothing", "anew"],
)
def test_a_server_that_gets_nowhere_is_given_up(
    hub: Hub, model: bytes, fault: Fault, why: str
) -> None:
    hub.faults = [fault] * 100
    with pytest.raises(LocalspecError, match=why):
        pull("user/repo")
    assert len(hub.faults) == 94  # the first attempt, and one after each wait


@pytest.mark.parametrize(
    "faults",
    [[Fault(extra=5)], [Fault(extra=5, unframed=True)], [Fault(cut=9_000), Fault(shift=1)]],
    ids=["too much", "too much without a length", "another range"],
)
def test_a_server_that_sends_something_else(
    hub: Hub, model: bytes, cache: Path, faults: list[Fault]
) -> None:
    hub.faults = faults
    with pytest.raises(LocalspecError, match="not of the size"):
        pull("user/repo")
    assert finished_files(cache) == []
    assert pull("user/repo").path.read_bytes() == model


def test_a_server_that_falls_silent(
    hub: Hub, model: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.2)
    hub.faults = [Fault(cut=70_000, stall=True)]
    assert pull("user/repo").path.read_bytes() == model
    assert hub.sent == SIZE


@pytest.mark.parametrize("seed", range(50))
def test_random_cuts(hub: Hub, cache: Path, seed: int) -> None:
    """Whatever is cut, what looks complete is complete, and the rest is not fetched twice."""
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
            for path in finished_files(cache):
                assert sha256(path.read_bytes()) in map(sha256, files.values())
    assert [path.read_bytes() for path in done.files] == list(files.values())
    assert unfinished(cache) == []
    assert all("'localspec pull user/repo'" in why or "pull it again" in why for why in told)
    if gentle:
        assert hub.sent == len(files) * size


def _random_fault(rng: random.Random, size: int, *, gentle: bool) -> Fault:
    """A cut anywhere; unless gentle, possibly one that costs what has arrived."""
    cut = rng.choice((0, 1, rng.randrange(size + 1), rng.randrange(size + 1)))
    if gentle:
        return Fault(cut=cut, unframed=rng.random() < 0.3)
    return rng.choice(
        (
            Fault(cut=cut),
            Fault(cut=cut, reset=True),
            Fault(cut=cut, whole=True),
            Fault(cut=cut, corrupt=True),
            Fault(status=rng.choice((500, 503, 429))),
        )
    )

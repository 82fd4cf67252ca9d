"""What the hub refuses, and what is said about it."""

from __future__ import annotations

import pytest
from huggingface_hub import constants

from localspec import LocalspecError, ModelNotFound
from localspec.hub.download import pull
from tests.hub.server import TOKEN, Fault, Hub


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_what_may_pass_is_tried_again(hub: Hub, model: bytes, status: int) -> None:
    hub.api_faults = [Fault(status=status)] * 2
    hub.faults = [Fault(status=status)] * 3
    assert pull("user/repo").path.read_bytes() == model
    assert hub.faults == hub.api_faults == []


def test_the_server_may_name_the_wait(
    hub: Hub, model: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr("localspec.hub.remote.time.sleep", waited.append)
    told: list[str] = []
    hub.api_faults = [
        Fault(status=429, headers={"Retry-After": "7"}),
        Fault(status=429, headers={"RateLimit": '"api";r=0;t=30'}),
        Fault(status=503, headers={"Retry-After": "soon"}),
    ]
    pull("user/repo", notify=told.append)
    assert waited == [7, 30, 0]
    assert told[0].endswith("allows no more requests for now (429); trying again in 7 s.")


def test_a_wait_that_is_too_long_is_told_instead(
    hub: Hub, model: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localspec.hub.remote.time.sleep", lambda _: pytest.fail("it waits"))
    hub.api_faults = [Fault(status=429, headers={"Retry-After": "3600"})]
    with pytest.raises(LocalspecError, match=r"\(429\)\. Try again in 3600 s, or log in"):
        pull("user/repo")


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (500, r"fails \(500\)\. Try again later; .*continues"),
        (418, r"fails \(418: a \ufffd\[31mteapot\)\. Check HF_ENDPOINT"),
        (403, r"refuses user/repo \(403.*\. Set HF_TOKEN to a token"),
    ],
)
def test_what_does_not_pass_is_told(hub: Hub, model: bytes, status: int, why: str) -> None:
    hub.faults = [Fault(status=status, body="a \x1b[31mteapot" if status == 418 else "")] * 10
    with pytest.raises(LocalspecError, match=why) as refused:
        pull("user/repo")
    assert str(refused.value).isprintable()
    assert len(hub.faults) == (4 if status == 500 else 9)


def test_a_repository_that_is_none(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    why = r"has no repository user/repo, or it is private\. .* a private one, set HF_TOKEN to"
    with pytest.raises(ModelNotFound, match=why):
        pull("user/repo")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with pytest.raises(ModelNotFound, match=r"or it is private\. .* check that the token"):
        pull("user/repo")


def test_a_gated_repository(hub: Hub, model: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repos["user/repo"].gated = True
    page = f"{hub.url}/user/repo"
    with pytest.raises(LocalspecError, match=rf"gated\. Accept its conditions at {page}, and set"):
        pull("user/repo")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with pytest.raises(LocalspecError, match="and check that the token in HF_TOKEN"):
        pull("user/repo")


def test_a_bad_token(hub: Hub, model: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_bad")
    with pytest.raises(LocalspecError, match=r"\(401: Invalid credentials.*Check that the token"):
        pull("user/repo")


def test_nobody_answers(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    for address in ("http://127.0.0.1:9", "http://no-such-host.invalid"):
        monkeypatch.setattr(constants, "ENDPOINT", address)
        with pytest.raises(LocalspecError, match=r"cannot be reached .*Check the network, the pro"):
            pull("user/repo")


@pytest.mark.parametrize("address", ["nonsense", "http://x:y/", "ftp://x", '"https://x"'])
def test_an_endpoint_that_is_none(hub: Hub, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", address)
    with pytest.raises(LocalspecError, match=f"^{address} is not .* address.*Check HF_ENDPOINT"):
        pull("user/repo")


@pytest.mark.parametrize("body", ["<html>", "[]", "{}", '{"id": "user/repo", "siblings": [3]}'])
def test_an_answer_that_is_no_listing(hub: Hub, body: str) -> None:
    hub.api_faults = [Fault(status=200, body=body)]
    with pytest.raises(LocalspecError, match="not a list of files"):
        pull("user/repo")

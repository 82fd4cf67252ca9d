"""What the hub refuses, and what is said about it."""

from dataclasses import replace

import pytest
from huggingface_hub import constants

from localspec import ModelNotFound
from localspec.hub.download import pull
from tests.hub.conftest import refusal
from tests.hub.server import TOKEN, Fault, Hub


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_temporary_errors_are_retried(hub: Hub, model: bytes, status: int) -> None:
    hub.api_faults = [Fault(status=status)] * 2
    hub.faults = [Fault(status=status)] * 3
    assert pull("user/repo").path.read_bytes() == model
    assert hub.faults == hub.api_faults == []


def test_retry_after_is_respected(hub: Hub, model: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert told[0].endswith("accepts no more requests for now (429); trying again in 7 s.")


def test_long_waits_are_refused(hub: Hub, model: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localspec.hub.remote.time.sleep", lambda _: pytest.fail("it waits"))
    hub.api_faults = [Fault(status=429, headers={"Retry-After": "3600"})]
    refusal(pull, "user/repo", r"\(429\)\. Try again in 3600 s, or set HF_TOKEN")


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (500, "", r"fails \(500\)\. Try again later; .*continues"),
        (418, "a \x1b[31mteapot", r"fails \(418: a \ufffd\[31mteapot\)\. Check HF_ENDPOINT"),
        # The hub refuses tokens, and says which; other hosts know none.
        (403, '<?xml version="1.0"?><Error>', r"fails \(403\)\. Check HF_ENDPOINT and the proxy"),
    ],
)
def test_permanent_errors(hub: Hub, model: bytes, status: int, body: str, why: str) -> None:
    hub.faults = [Fault(status=status, body=body)] * 10
    assert str(refusal(pull, "user/repo", why)).isprintable()
    assert len(hub.faults) == (4 if status == 500 else 9)


@pytest.mark.parametrize(
    ("name", "token", "why"),
    [
        ("user/none", None, r"no repository user/none, or it is private\. .* one, set HF_TOKEN to"),
        ("user/none", TOKEN, r"or it is private\. .* check that the token"),
        ("user/gated", None, r"gated\. Accept its conditions at http:.*/user/gated, and set"),
        ("user/gated", TOKEN, "and check that the token in HF_TOKEN"),
        ("user/repo", "hf_bad", r"\(401: Invalid credentials.*Check that the token"),
    ],
)
def test_missing_gated_and_refused_repositories(
    hub: Hub, model: bytes, monkeypatch: pytest.MonkeyPatch, name: str, token: str | None, why: str
) -> None:
    hub.repos["user/gated"] = replace(hub.repos["user/repo"], gated=True)
    if token is not None:
        monkeypatch.setenv("HF_TOKEN", token)
    assert isinstance(refusal(pull, name, why), ModelNotFound) == (name == "user/none")


@pytest.mark.parametrize("address", ["http://127.0.0.1:9", "http://no-such-host.invalid"])
def test_unreachable_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", address)
    refusal(pull, "user/repo", r"cannot be reached .*Check the network, the pro")


@pytest.mark.parametrize("address", ["nonsense", "http://x:y/", "ftp://x", '"https://x"'])
def test_invalid_addresses(hub: Hub, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", address)
    refusal(pull, "user/repo", f"^{address} is not .* address.*Check HF_ENDPOINT")


def test_errors_name_the_host_that_failed(hub: Hub, model: bytes) -> None:
    """The one that downloads are redirected to may be blocked, and the hub itself not."""
    address, hub.cdn_url = hub.cdn_url.partition("://")[2], "http://127.0.0.1:9"
    refusal(pull, "user/repo", r"^127\.0\.0\.1:9 cannot be reached")
    hub.cdn_url, hub.faults = f"http://{address}", [Fault(status=410)]
    refusal(pull, "user/repo", f"^{address} fails")


@pytest.mark.parametrize(
    "body", ["[" * 200_000, "<html>", "[]", "{}", '{"id": "user/repo", "siblings": [3]}']
)
def test_invalid_listing(hub: Hub, body: str) -> None:
    hub.api_faults = [Fault(status=200, body=body)]
    refusal(pull, "user/repo", "not a list of files")

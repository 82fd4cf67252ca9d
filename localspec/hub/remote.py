"""What Hugging Face has: lists of files, their bytes, and errors."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from huggingface_hub import (
    HfApi,
    constants,
    get_session,
    get_token,
    hf_hub_url,
    hf_raise_for_status,
)
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

# httpx's or httpx2's, by the version of the client, which does not declare it as its own.
from huggingface_hub.errors import HTTPError as HTTPError  # type: ignore[attr-defined]
from huggingface_hub.utils import (  # type: ignore[attr-defined]
    build_hf_headers,
    parse_ratelimit_headers,
)

from localspec.errors import LocalspecError, ModelNotFound
from localspec.gguf.names import is_repository, stays_inside
from localspec.hub.cache import COMMIT
from localspec.hub.reference import Repository
from localspec.text import printable

WAITS: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0, 15.0)
"""Seconds between attempts that bring nothing; after the last one it is given up."""
LONGEST_WAIT = 90.0
"""A longer one that the server names is reported instead."""

_CHECKSUM = re.compile(r"[0-9a-f]{64}|[0-9a-f]{40}")
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")
_TRANSIENT = (408, 429, 500, 502, 503, 504)
_TRANSIENT_FAULTS = {"TimeoutException", "NetworkError", "RemoteProtocolError"}
"""Base classes of faults of the connection, in httpx and httpx2 alike."""

Answer = TypeVar("Answer")


class ConnectionCut(HTTPError):
    """An answer that ended early, unnoticed by the connection."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository at one commit. `checksum`: SHA-256, or for small files git's SHA-1;
    also the blob's name in the cache; `url`: pinned to the commit."""

    name: str
    size: int
    checksum: str
    url: str


@dataclass(frozen=True, slots=True)
class Listing:
    """What a repository has at one commit; `refused` counts names that no file can have."""

    repository: Repository
    commit: str
    names: tuple[str, ...]
    refused: int
    _facts: Mapping[str, tuple[object, object]]

    def file(self, name: str) -> RemoteFile:
        """One of them; raises a LocalspecError where it could not be checked."""
        size, checksum = self._facts[name]
        # The name of a file in the cache is made of it, and nothing else proves what arrives.
        if not isinstance(size, int) or size < 0 or not _CHECKSUM.fullmatch(str(checksum)):
            raise LocalspecError(
                f"{host()} gives no usable checksum and size for {printable(name)}, so it could "
                "not be checked. Unset HF_ENDPOINT, or download the file yourself."
            )
        url = hf_hub_url(
            self.repository.id, name, revision=self.commit, endpoint=constants.ENDPOINT
        )
        return RemoteFile(name, size, str(checksum), url)


def listing(repository: Repository) -> Listing:
    """Ask what a repository has. An HTTPError if it cannot be had, or not now; a LocalspecError if
    the answer is no listing."""
    try:
        info = HfApi(endpoint=constants.ENDPOINT).model_info(
            repository.id,
            revision=repository.revision,
            files_metadata=True,
            timeout=constants.HF_HUB_ETAG_TIMEOUT,
        )
        commit = info.sha or ""
        facts: dict[str, tuple[object, object]] = {
            str(file.rfilename): (
                (file.lfs.size, file.lfs.sha256) if file.lfs else (file.size, file.blob_id)
            )
            for file in info.siblings or ()
        }
    except (HTTPError, UnicodeEncodeError):  # of a token in other letters
        raise
    except (ValueError, KeyError, TypeError, AttributeError):
        commit = ""
    if not COMMIT.fullmatch(commit):
        raise LocalspecError(
            f"{host()} answers with something that is not a list of files. "
            "Check HF_ENDPOINT and the proxy."
        )
    names = tuple(name for name in facts if stays_inside(name))
    if info.id.casefold() == repository.id.casefold() and is_repository(info.id):
        # One folder in the cache, however the name was typed.
        repository = replace(repository, id=info.id)
    return Listing(repository, commit, names, len(facts) - len(names), facts)


def stream(file: RemoteFile, part: Path, have: int) -> Iterator[tuple[int, int]]:
    """Fetch what `part` lacks, which has `have` bytes; yields bytes that came now, and all. An
    HTTPError if it did not come, or not all of it; a LocalspecError if something else came."""
    headers = build_hf_headers() | {"Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    request = get_session().stream(
        "GET",
        file.url,
        headers=headers,
        timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT,
        follow_redirects=True,  # a credential is not sent along to another host
    )
    with request as response:
        if response.status_code == 416 and have:  # what is there is no beginning of it
            part.unlink()
            return
        hf_raise_for_status(response)
        done = _start(response, file, have)
        with part.open("r+b" if done else "wb") as grown:
            grown.seek(done)
            grown.truncate()
            for chunk in response.iter_bytes():
                if done + len(chunk) > file.size:
                    raise _another(file)
                grown.write(chunk)
                done += len(chunk)
                yield len(chunk), done
    if done < file.size:
        raise ConnectionCut(f"{done} of {file.size} bytes came")


def _start(response: Any, file: RemoteFile, have: int) -> int:
    """Where the answer begins in the file: after what was there, or at nothing again."""
    if response.status_code != 206:
        length = response.headers.get("Content-Length", "")
        if length.isdecimal() and int(length) != file.size:
            raise _another(file)
        return 0
    found = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
    if not found or int(found[1]) != have or found[2] not in ("*", str(file.size)):
        raise _another(file)
    return have


def _another(file: RemoteFile) -> LocalspecError:
    return LocalspecError(
        f"What the server sends for {file.name} is not of the size it announced. "
        "Pull it again later; check the proxy if it stays so."
    )


def host() -> str:
    return printable(constants.ENDPOINT.partition("://")[2].partition("/")[0] or constants.ENDPOINT)


class Retries:
    """Repeats, with growing waits, what may succeed a little later; `notify` gets a sentence."""

    def __init__(self, notify: Callable[[str], None]) -> None:
        self._notify = notify
        self._failures = 0
        self._reached = False

    def progressed(self) -> None:
        """Something has arrived: the next fault is the first one again."""
        self._failures, self._reached = 0, True

    def call(self, ask: Callable[[], Answer]) -> Answer:
        """Ask until there is an answer; raises HTTPError where it was given up."""
        while True:
            try:
                answer = ask()
            except HTTPError as error:  # noqa: PERF203
                self.wait(error)
            else:
                self.progressed()
                return answer

    def wait(self, error: HTTPError) -> None:
        """Wait before the next attempt, or raise the error where there is none."""
        # A server that could never be reached is no transient fault: the cable is out.
        hopeless = not is_transient(error) or (_is(error, "ConnectError") and not self._reached)
        if hopeless or self._failures >= len(WAITS):
            raise error
        named = _named_wait(error)
        seconds = WAITS[self._failures] if named is None else named
        if seconds > LONGEST_WAIT:
            raise error
        self._failures += 1
        if seconds >= 1:
            self._notify(f"{_what_happened(error)}; trying again in {seconds:.0f} s.")
        time.sleep(seconds)


@contextmanager
def explained(repository: Repository, typed: str) -> Iterator[None]:
    """Turn what the client raises into sentences with a next step."""
    try:
        yield
    except OfflineModeIsEnabled:
        raise LocalspecError(
            f"HF_HUB_OFFLINE forbids the network. Unset it to pull {printable(typed)}."
        ) from None
    except LocalspecError:
        raise
    except Exception as error:
        said = printable(str(error), 300).rstrip(".")
        if type(error).__name__ in ("InvalidURL", "UnsupportedProtocol"):  # httpx's
            raise LocalspecError(
                f"{printable(constants.ENDPOINT)} is not a valid address, or leads to one: {said}. "
                "Check HF_ENDPOINT."
            ) from None
        if isinstance(error, HTTPError):
            raise _explanation(error, repository, typed) from None
        if not isinstance(error, ValueError | ImportError | OSError):
            raise
        # A proxy, a certificate, a token or a timeout that is none.
        raise LocalspecError(
            f"huggingface-hub cannot ask {host()}: {said}. Check the variables that begin with "
            "HF_, SSL_CERT_ and NETRC, and those that end with _PROXY."
        ) from None


def is_transient(error: HTTPError) -> bool:
    status = _status(error)
    if status is not None:
        return status in _TRANSIENT
    return isinstance(error, ConnectionCut) or any(_is(error, name) for name in _TRANSIENT_FAULTS)


def _is(error: HTTPError, name: str) -> bool:
    return any(base.__name__ == name for base in type(error).__mro__)


def _status(error: HTTPError) -> int | None:
    response: Any = getattr(error, "response", None)
    return None if response is None else int(response.status_code)


def _named_wait(error: HTTPError) -> float | None:
    if not isinstance(error, HfHubHTTPError):
        return None
    limit = parse_ratelimit_headers(error.response.headers)
    if limit is not None and limit.remaining == 0:
        return float(limit.reset_in_seconds)
    named = error.response.headers.get("Retry-After", "").strip()
    return float(named) if named.isdecimal() else None


def _what_happened(error: HTTPError) -> str:
    status = _status(error)
    if status == 429:
        return f"{host()} allows no more requests for now (429)"
    if status is not None:
        return f"{host()} fails ({status}{_said(error)})"
    if _is(error, "TimeoutException"):
        return f"{host()} does not answer"
    if _is(error, "ConnectError"):
        return f"{host()} cannot be reached ({printable(str(error)) or 'no connection'})"
    return f"The connection to {host()} broke ({printable(str(error)) or type(error).__name__})"


def _explanation(error: HTTPError, repository: Repository, typed: str) -> LocalspecError:
    name, status = repository.id, _status(error)
    page = f"{constants.ENDPOINT}/{name}"
    if isinstance(error, GatedRepoError):
        return LocalspecError(f"{name} is gated. Accept its conditions at {page}, and {_token()}.")
    if isinstance(error, RepositoryNotFoundError):
        return ModelNotFound(
            f"{host()} has no repository {name}, or it is private. "
            f"Check the name; for a private one, {_token()}."
        )
    if isinstance(error, RevisionNotFoundError):
        return ModelNotFound(
            f"{name} has no revision '{printable(repository.revision)}'. Leave it out, or look at "
            f"{page}."
        )
    if isinstance(error, RemoteEntryNotFoundError):
        return ModelNotFound(f"The file is no longer in {name}. Look at {page}.")
    if status == 404:
        return ModelNotFound(f"{host()} has no {name} (404). Check the name and HF_ENDPOINT.")
    if status in (401, 403):
        advice = _token()
        return LocalspecError(
            f"{host()} refuses {name} ({status}{_said(error)}). {advice[0].upper()}{advice[1:]}."
        )
    if status == 429:
        wait = _named_wait(error)
        when = f"in {wait:.0f} s" if wait is not None else "later"
        step = f"Try again {when}, or log in with HF_TOKEN, which is allowed more"
    elif status is None:
        step = "Check the network, the proxy and HF_ENDPOINT"
    elif is_transient(error):
        step = "Try again later"
    else:
        step = "Check HF_ENDPOINT and the proxy"
    again = f"the part so far is kept, and 'localspec pull {printable(typed)}' continues"
    return LocalspecError(f"{_what_happened(error)}. {step}; {again}.")


def _token() -> str:
    if get_token() is None:
        return (
            "set HF_TOKEN to a token from https://huggingface.co/settings/tokens "
            "(or run 'hf auth login')"
        )
    return "check that the token in HF_TOKEN (or of 'hf auth login') is valid and may read it"


def _said(error: HTTPError) -> str:
    text = printable(getattr(error, "server_message", None) or "")
    return f": {text.rstrip('.')}" if text else ""

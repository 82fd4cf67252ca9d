"""Requests to Hugging Face: file listings, downloads, retries, and error messages."""

import errno
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import httpx2
from httpx2 import HTTPError
from huggingface_hub import constants, get_session, get_token, hf_hub_url, hf_raise_for_status
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import HfApi, RepoSibling
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
"""Seconds between attempts without progress; after the last one, give up."""
LONGEST_WAIT = 90.0
"""If the server asks for a longer wait, report the error instead."""

_CHECKSUM = re.compile(r"[0-9a-f]{64}|[0-9a-f]{40}")
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")
_TRANSIENT = (408, 429, 500, 502, 503, 504)
_TRANSIENT_FAULTS = (httpx2.TimeoutException, httpx2.NetworkError, httpx2.RemoteProtocolError)

Result = TypeVar("Result")


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
    """The files of a repository at one commit; `refused` counts invalid file names."""

    repository: Repository
    commit: str
    names: tuple[str, ...]
    refused: int
    _siblings: Mapping[str, RepoSibling]

    def file(self, name: str) -> RemoteFile:
        """Facts of a file; raises LocalspecError if its checksum or size is not usable."""
        known = self._siblings[name]
        lfs, git = known.lfs, (known.size, known.blob_id)
        size, checksum = git if lfs is None else (lfs.size, lfs.sha256)
        # The checksum names the cached blob, and is the only proof of what was downloaded.
        if type(size) is not int or size < 0 or not _CHECKSUM.fullmatch(str(checksum)):
            raise LocalspecError(
                f"{host()} reports no usable checksum and size for {printable(name)}, so it could "
                "not be checked. Unset HF_ENDPOINT, or download the file yourself."
            )
        url = hf_hub_url(
            self.repository.id, name, revision=self.commit, endpoint=constants.ENDPOINT
        )
        return RemoteFile(name, size, str(checksum), url)


def listing(repository: Repository) -> Listing:
    """Fetch a repository's file listing. Raises HTTPError for a failed request, and LocalspecError
    if the response is not a listing."""
    get_session(), build_hf_headers()  # raises errors about proxies and tokens
    try:
        info = HfApi(endpoint=constants.ENDPOINT).model_info(
            repository.id,
            revision=repository.revision,
            files_metadata=True,
            timeout=constants.HF_HUB_ETAG_TIMEOUT,
        )
        commit = info.sha or ""
        siblings = {str(file.rfilename): file for file in info.siblings or ()}
    except (HTTPError, UnicodeEncodeError):  # a token with non-ASCII characters
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        commit = ""
    if not COMMIT.fullmatch(commit):
        raise LocalspecError(
            f"{host()} returned something that is not a list of files. "
            "Check HF_ENDPOINT and the proxy."
        )
    names = tuple(name for name in siblings if stays_inside(name))
    if info.id.casefold() == repository.id.casefold() and is_repository(info.id):
        # Use the canonical spelling, so that the cache has one folder for it.
        repository = replace(repository, id=info.id)
    return Listing(repository, commit, names, len(siblings) - len(names), siblings)


def stream(file: RemoteFile, part: Path, have: int) -> Iterator[tuple[int, int]]:
    """Download the rest of `part`, which has `have` bytes; yields (new bytes, total bytes). Raises
    HTTPError if the transfer fails or is cut off, or cannot be continued, when `part` is removed,
    and LocalspecError for a wrong size."""
    headers = build_hf_headers() | {"Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    request = get_session().stream(
        "GET",
        file.url,
        headers=headers,
        timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT,
        follow_redirects=True,  # the client does not send credentials to another host
    )
    with request as response:
        if have and _is_wrong_range(response, file, have):
            part.unlink(missing_ok=True)  # otherwise every attempt would fail
            raise httpx2.RemoteProtocolError("the server cannot continue, so it starts over")
        hf_raise_for_status(response)
        done = _start_offset(response, file, have)
        with part.open("r+b" if done else "wb") as output:
            output.seek(done)
            output.truncate()
            for chunk in response.iter_bytes():
                if done + len(chunk) > file.size:
                    raise _wrong_size(file)
                output.write(chunk)
                if not part.exists():  # `localspec rm`, which ends the download
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(part))
                done += len(chunk)
                yield len(chunk), done
    if done < file.size:
        raise httpx2.RemoteProtocolError(f"{done} of {file.size} bytes arrived")


def _start_offset(response: httpx2.Response, file: RemoteFile, have: int) -> int:
    """Offset at which the response starts: after the existing bytes, or 0."""
    if response.status_code == 206 and have:
        return have
    length = response.headers.get("Content-Length", "")
    if response.status_code == 206 or (length.isdecimal() and int(length) != file.size):
        raise _wrong_size(file)
    return 0


def _is_wrong_range(response: httpx2.Response, file: RemoteFile, have: int) -> bool:
    """Whether this refuses the range that was asked for, or is another one."""
    found = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
    right = found and int(found[1]) == have and found[2] in ("*", str(file.size))
    return response.status_code == 416 or (response.status_code == 206 and not right)


def _wrong_size(file: RemoteFile) -> LocalspecError:
    return LocalspecError(
        f"The server sent {file.name} in a different size than announced. Pull it again later. If "
        "that does not help, check the proxy."
    )


def host() -> str:
    return printable(constants.ENDPOINT.partition("://")[2].partition("/")[0] or constants.ENDPOINT)


class Retries:
    """Retries transient failures with growing waits, and reports each wait to `notify`."""

    def __init__(self, notify: Callable[[str], None]) -> None:
        self._notify = notify
        self._failures = 0
        self._reached = False

    def progressed(self) -> None:
        """Reset the count of failures after progress."""
        self._failures, self._reached = 0, True

    def call(self, request: Callable[[], Result]) -> Result:
        """Call `request` until it succeeds; raises HTTPError when it gives up."""
        while True:
            try:
                answer = request()
            except HTTPError as error:  # noqa: PERF203
                self.wait(error)
            else:
                self.progressed()
                return answer

    def wait(self, error: HTTPError) -> None:
        """Wait before the next attempt, or raise the error if there is none left."""
        # A server that was never reached is most likely not a transient failure.
        hopeless = not is_transient(error) or (
            isinstance(error, httpx2.ConnectError) and not self._reached
        )
        if hopeless or self._failures >= len(WAITS):
            raise error
        requested = _requested_wait(error)
        seconds = WAITS[self._failures] if requested is None else requested
        if seconds > LONGEST_WAIT:
            raise error
        self._failures += 1
        if seconds >= 1:
            self._notify(f"{_describe(error)}; trying again in {seconds:.0f} s.")
        time.sleep(seconds)


@contextmanager
def explain_errors(repository: Repository, again: str) -> Iterator[None]:
    """Turn the client's exceptions into messages with a next step; `again`: the command."""
    try:
        yield
    except LocalspecError:
        raise
    except (httpx2.InvalidURL, httpx2.UnsupportedProtocol) as error:
        raise LocalspecError(
            f"{printable(constants.ENDPOINT)} is not a valid address, or redirects to an invalid "
            f"one: {printable(str(error), 300).rstrip('.')}. Check HF_ENDPOINT and the proxy."
        ) from None
    except HTTPError as error:
        raise _explain(error, repository, again) from None
    except (ValueError, ImportError, OSError) as error:
        # An invalid proxy, certificate, token or timeout.
        raise LocalspecError(
            f"huggingface-hub cannot query {host()}: {printable(str(error), 300).rstrip('.')}. "
            "Check the variables that begin with HF_, SSL_CERT_ and NETRC, those that end with "
            "_PROXY, and HOME."
        ) from None


def is_transient(error: HTTPError) -> bool:
    status = _status(error)
    return isinstance(error, _TRANSIENT_FAULTS) if status is None else status in _TRANSIENT


def _status(error: HTTPError) -> int | None:
    response = getattr(error, "response", None)
    return None if response is None else int(response.status_code)


def _requested_wait(error: HTTPError) -> float | None:
    if not isinstance(error, HfHubHTTPError):
        return None
    limit = parse_ratelimit_headers(error.response.headers)
    if limit is not None and limit.remaining == 0:
        return float(limit.reset_in_seconds)
    seconds = error.response.headers.get("Retry-After", "").strip()
    return float(seconds) if seconds.isdecimal() else None


def _describe(error: HTTPError) -> str:
    status, message = _status(error), printable(str(error)).rstrip(".")
    asked = _asked(error)
    if status == 429:
        return f"{asked} accepts no more requests for now (429)"
    if status is not None:
        return f"{asked} fails ({status}{_server_message(error)})"
    if isinstance(error, httpx2.TimeoutException):
        return f"{asked} does not answer"
    if isinstance(error, httpx2.ConnectError):
        return f"{asked} cannot be reached ({message or 'no connection'})"
    return f"The connection to {asked} broke ({message or type(error).__name__})"


def _asked(error: HTTPError) -> str:
    """The host that the failed request went to, maybe by a redirect."""
    with suppress(RuntimeError):  # errors before a request have none
        last = getattr(error, "response", error).request
        return printable(last.url.netloc.decode()) or host()
    return host()


def _explain(error: HTTPError, repository: Repository, again: str) -> LocalspecError:
    name, status = repository.id, _status(error)
    page = f"{constants.ENDPOINT}/{name}"
    if isinstance(error, GatedRepoError):
        return LocalspecError(
            f"{name} is gated. Accept its conditions at {page}, and {_token_advice()}."
        )
    if isinstance(error, RepositoryNotFoundError):
        return ModelNotFound(
            f"{host()} has no repository {name}, or it is private. "
            f"Check the name; for a private one, {_token_advice()}."
        )
    if isinstance(error, RevisionNotFoundError):
        return ModelNotFound(
            f"{name} has no revision '{printable(repository.revision)}'. Leave it out, or look at "
            f"{page}."
        )
    if status == 404:
        return ModelNotFound(f"{host()} has no {name} (404). Check the name and HF_ENDPOINT.")
    if status in (401, 403) and _asked(error) == host():  # other hosts know no tokens
        advice, message = _token_advice(), _server_message(error)
        return LocalspecError(
            f"{host()} refuses {name} ({status}{message}). {advice[0].upper()}{advice[1:]}."
        )
    if status == 429:
        wait = _requested_wait(error)
        when = f"in {wait:.0f} s" if wait is not None else "later"
        step = f"Try again {when}, or set HF_TOKEN: with a token, more requests are allowed"
    elif status is None:
        step = "Check the network, the proxy and HF_ENDPOINT"
    elif is_transient(error):
        step = "Try again later"
    else:
        step = "Check HF_ENDPOINT and the proxy"
    return LocalspecError(f"{_describe(error)}. {step}; '{again}' continues a partial download.")


def _token_advice() -> str:
    if get_token() is None:
        return (
            "set HF_TOKEN to a token from https://huggingface.co/settings/tokens "
            "(or run 'hf auth login')"
        )
    return "check that the token in HF_TOKEN (or of 'hf auth login') is valid and may read it"


def _server_message(error: HTTPError) -> str:
    text = printable(getattr(error, "server_message", None) or "")
    return f": {text.rstrip('.')}" if text and not text.startswith("<") else ""  # a page, or XML

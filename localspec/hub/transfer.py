"""Bytes from Hugging Face to the end of an unfinished file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from huggingface_hub import constants, get_session, hf_raise_for_status
from huggingface_hub.file_download import xet_get
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

from localspec.errors import LocalspecError
from localspec.hub.remote import Cut, HTTPError, RemoteFile
from localspec.text import printable

_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


def stream(file: RemoteFile, part: Path, have: int) -> Iterator[tuple[int, int]]:
    """Fetch what is missing.

    Args:
        file: what to fetch.
        part: where to put it; it has its first `have` bytes.

    Yields:
        Bytes that came now, and those that are there in all.

    Raises:
        HTTPError: it did not come, or not all of it.
        LocalspecError: something else came.
    """
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
        start = _start(response, file, have)
        with part.open("r+b" if start else "wb") as grown:
            grown.seek(start)
            grown.truncate()
            done = start
            for chunk in response.iter_bytes():
                if done + len(chunk) > file.size:
                    raise _another(file)
                grown.write(chunk)
                done += len(chunk)
                yield len(chunk), done
    if done < file.size:
        raise Cut(f"{done} of {file.size} bytes came")


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


def goes_by_xet(file: RemoteFile) -> bool:
    """Whether to fetch it in chunks from Xet storage, where it is stored in that.

    That is quicker on a fast line, but cannot go on after an interruption, so it is left to files
    too large for plain HTTP and to users who ask for it.
    """
    return (
        file.xet is not None
        and find_spec("hf_xet") is not None
        and not constants.HF_HUB_DISABLE_XET
        and (file.size > constants.MAX_HTTP_DOWNLOAD_SIZE or constants.HF_XET_HIGH_PERFORMANCE)
    )


def by_xet(file: RemoteFile, part: Path, tell: Callable[[int], None]) -> None:
    """Fetch the whole file through hf-xet.

    Args:
        part: what it is called once it has its full size.
        tell: told how many bytes are there.

    Raises:
        HTTPError, LocalspecError: it did not come.
    """
    bar = type("Bar", (_Bar,), {"tell": staticmethod(tell)})
    # Chunks are not written in order, so that of an unfinished file nothing can be used again.
    unordered = part.with_name(f"{part.stem}.xet.incomplete")
    try:
        xet_get(
            incomplete_path=unordered,
            xet_file_data=file.xet,
            headers=build_hf_headers(),
            expected_size=file.size,
            tqdm_class=bar,
        )
        unordered.replace(part)
    except (HTTPError, OSError):
        raise
    except Exception as error:  # hf-xet's own, and bare RuntimeErrors
        raise LocalspecError(
            f"{file.name} did not come from Xet storage: {printable(str(error))}. Try again later, "
            "or without HF_XET_HIGH_PERFORMANCE."
        ) from None
    finally:
        unordered.unlink(missing_ok=True)


class _Bar:
    """What hf-xet's reporter takes for a tqdm."""

    tell: Callable[[int], None]

    def __init__(self, *_: Any, total: int | None = None, **__: Any) -> None:
        self.n, self.total, self.format_dict = 0, total, {"rate": None}

    def update(self, count: float | None = 1) -> None:
        self.n += int(count or 0)
        self.tell(self.n)

    def update_transfer(self, count: int) -> None:
        """Bytes that came, before they are written; told apart so that they are not added."""

    def set_postfix_str(self, *_: Any, **__: Any) -> None:
        """Speeds are worked out elsewhere."""

    set_transfer_postfix_str = set_postfix_str

    def refresh(self) -> None:
        """Nothing is drawn here."""

    close = refresh

"""`localspec pull`: from Hugging Face into its cache, whole and checked, or not at all.

Lists, credentials, redirects and errors are huggingface-hub's. The bytes are fetched here, through
its session, because from version 2 on its own download starts from nothing after every
interruption. A file grows as `blobs/<checksum>.incomplete`, which is what that client names its
own, and gets the name that tools look for only when its checksum is right.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from localspec.errors import LocalspecError, ModelNotFound
from localspec.files import write_atomically
from localspec.gguf.names import DEFAULT_QUANT, ModelFiles, choose, models_among, parts_of
from localspec.hub import cache
from localspec.hub.reference import Repository
from localspec.hub.resolution import find, identify, packaged_model
from localspec.text import gigabytes, listed, printable

if TYPE_CHECKING:
    from localspec.hub.remote import Listing, RemoteFile, Retries

_BLOCK = 1 << 20
"""Bytes hashed at a time."""
_SPARE = 64 << 20
"""Bytes to leave free on the disk."""


@dataclass(frozen=True, slots=True)
class PullProgress:
    """Where a pull is.

    Attributes:
        file: name of the file; number, of: which one it is of how many.
        done, total: its bytes.
        doing: "download", or "check" while its checksum is computed.
    """

    file: str
    number: int
    of: int
    done: int
    total: int
    doing: Literal["download", "check"]


@dataclass(frozen=True, slots=True)
class Pulled:
    """A model that is here now.

    Attributes:
        reference: what to type for exactly this one.
        repository: `user/repo`, None for a plain file.
        commit: which state of the repository, None for a plain file or where unknown.
        path: the file to open; files: all parts.
        size: their bytes; downloaded: those that were fetched just now.
    """

    reference: str
    repository: str | None
    commit: str | None
    path: Path
    files: tuple[Path, ...]
    size: int
    downloaded: int


def pull(
    reference: str,
    *,
    offline: bool | None = None,
    progress: Callable[[PullProgress], None] = lambda _: None,
    notify: Callable[[str], None] = lambda _: None,
) -> Pulled:
    """Fetch a model, or what is missing of it.

    It may be interrupted by any exception, at any place: what has arrived is kept, and another
    call goes on from there.

    Args:
        reference: see `localspec.hub.reference`.
        offline: look at the cache alone; None asks HF_HUB_OFFLINE.
        progress: told how far it is, many times a second.
        notify: told, in sentences, what the user did not ask for.

    Raises:
        ModelNotFound: no such repository, file or quantization.
        UsageError: the reference names nothing.
        LocalspecError: no permission, no network, no room on the disk, or what arrived is not what
            was announced and is removed.
    """
    wanted = identify(reference)
    offline = cache.offline_by_environment() if offline is None else offline
    packaged = packaged_model(reference)
    if packaged is not None and packaged.path is not None:
        notify(f"{packaged.name} is installed, in the Python package {packaged.distribution}.")
        return _already_here(reference, notify, offline=offline)
    if not isinstance(wanted, Repository) or offline:
        return _already_here(reference, notify, offline=offline)

    cache.require_client()
    from localspec.hub import remote

    retries = remote.Retries(notify)
    with remote.explained(wanted, reference):
        found = retries.call(lambda: remote.listing(wanted))
        chosen = _chosen(wanted, found, notify)
        files = [retries.call(partial(found.file, name)) for name in chosen.files]
        with _disk_errors():
            folder = cache.repository_folder(found.repository.id)
            _require_room(folder, files)
            arrived = 0
            for number, file in enumerate(files, start=1):
                tell = _teller(progress, file, number, len(files))
                arrived += _fetch(folder, found.commit, file, retries, tell, notify)
            # Last: what a reader finds behind the ref is complete.
            _write_ref(folder, wanted.revision, found.commit)
    snapshot = folder / "snapshots" / found.commit
    return Pulled(
        reference=_exactly(found, chosen),
        repository=found.repository.id,
        commit=found.commit,
        path=snapshot / chosen.name,
        files=tuple(snapshot / name for name in chosen.files),
        size=sum(file.size for file in files),
        downloaded=arrived,
    )


def _already_here(reference: str, notify: Callable[[str], None], *, offline: bool) -> Pulled:
    found = find(reference, offline=offline)
    for notice in found.notices:
        notify(notice)
    parts = [found.path.with_name(name) for name in parts_of(found.path.name)]
    return Pulled(
        reference=reference,
        repository=None if found.repository is None else found.repository.id,
        commit=None,
        path=found.path,
        files=tuple(parts),
        size=sum(part.stat().st_size for part in parts),
        downloaded=0,
    )


def _chosen(wanted: Repository, found: Listing, notify: Callable[[str], None]) -> ModelFiles:
    """Which of the repository's models the reference means."""
    models = models_among(found.names)
    chosen = choose(models, quant=wanted.quant, file=wanted.file)
    if chosen is None:
        has = list(dict.fromkeys(model.quant or model.name for model in models))
        if has:
            raise ModelNotFound(
                f"{wanted.id} has no {printable(wanted.file or wanted.quant or '')}. "
                f"It has {listed(has)}."
            )
        strange = (
            f" ({found.refused} files have names that lead out of the cache, and are refused)"
            if found.refused
            else ""
        )
        raise ModelNotFound(
            f"{wanted.id} has no GGUF file{strange}. "
            "Look for a repository of that model with GGUF in its name."
        )
    if chosen.missing:
        raise ModelNotFound(
            f"{wanted.id} has not all parts of {chosen.name}: no {listed(chosen.missing)}. "
            "Choose another quantization."
        )
    if wanted.file is None and wanted.quant is None and chosen.quant != DEFAULT_QUANT:
        notify(f"{wanted.id} has no {DEFAULT_QUANT}; {chosen.name} is taken.")
    return chosen


def _exactly(found: Listing, chosen: ModelFiles) -> str:
    """The shortest reference to this model and no other one of the repository."""
    if chosen.quant:
        models = models_among(found.names)
        same = choose(models, quant=chosen.quant, file=None)
        if same is not None and same.name == chosen.name:
            return f"{found.repository.id}:{chosen.quant}"
    return f"{found.repository.id}:{chosen.name}"


def _teller(
    progress: Callable[[PullProgress], None], file: RemoteFile, number: int, of: int
) -> Callable[[int, Literal["download", "check"]], None]:
    return lambda done, doing: progress(PullProgress(file.name, number, of, done, file.size, doing))


Tell = Callable[[int, Literal["download", "check"]], None]


def _fetch(
    folder: Path,
    commit: str,
    file: RemoteFile,
    retries: Retries,
    tell: Tell,
    notify: Callable[[str], None],
) -> int:
    """Bring one file into the cache; return how many bytes came over the network."""
    blob = folder / "blobs" / file.checksum
    pointer = folder / "snapshots" / commit / file.name
    if _is_whole(pointer, file):
        return 0
    for place in (blob, pointer):
        place.parent.mkdir(parents=True, exist_ok=True)
    arrived = 0
    with _alone(folder, file, notify):
        if not _is_whole(blob, file):
            part = blob.with_name(f"{blob.name}.incomplete")
            arrived = _download(file, part, retries, tell)
            _check(file, part, tell)
            part.replace(blob)
        if not _is_whole(pointer, file):  # another process may have been quicker
            _point(pointer, blob)
    return arrived


def _is_whole(path: Path, file: RemoteFile) -> bool:
    """Whether the finished file is there. A blob of another size was damaged by someone since."""
    try:
        return path.stat().st_size == file.size
    except OSError:
        return False


def _download(file: RemoteFile, part: Path, retries: Retries, tell: Tell) -> int:
    """Let the unfinished file grow to its full size; return how many bytes came."""
    from localspec.hub import transfer
    from localspec.hub.remote import HTTPError

    arrived = most = 0
    while True:
        have = part.stat().st_size if part.exists() else 0
        most = max(most, have)
        if have > file.size:
            part.unlink()
            have = 0
        tell(have, "download")
        if have == file.size and part.exists():
            return arrived
        try:
            if transfer.goes_by_xet(file):
                transfer.by_xet(file, part, lambda done: tell(done, "download"))
                return file.size
            for count, done in transfer.stream(file, part, have):
                arrived += count
                if done > most:  # a server that begins anew each time brings nothing
                    retries.progressed()
                    most = done
                tell(done, "download")
        except HTTPError as error:
            retries.wait(error)


def _check(file: RemoteFile, part: Path, tell: Tell) -> None:
    """Compare the checksum with the announced one, of what is on the disk.

    Raises:
        LocalspecError: it differs; the file is removed.
    """
    git = len(file.checksum) == 40  # small files are git's own, with a header
    digest = hashlib.sha1(f"blob {file.size}\0".encode()) if git else hashlib.sha256()
    done = 0
    with part.open("r+b") as content:  # Windows flushes only what may be written
        os.fsync(content.fileno())
        while block := content.read(_BLOCK):
            digest.update(block)
            done += len(block)
            tell(done, "check")
    if digest.hexdigest() != file.checksum:
        part.unlink()
        raise LocalspecError(
            f"{file.name} arrived damaged: its checksum is {digest.hexdigest()[:12]}…, not "
            f"{file.checksum[:12]}…. It was removed; pull it again."
        )


@contextmanager
def _alone(folder: Path, file: RemoteFile, notify: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock that huggingface-hub takes for the same file."""
    from filelock import Timeout
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

    path = folder.parent / ".locks" / folder.name / f"{file.checksum}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    timeout, told = 1.0, False
    while True:
        lock = WeakFileLock(path, timeout=timeout)
        try:
            lock.__enter__()
            break
        except Timeout:
            if not told:
                notify(f"{file.name} is being downloaded by another process; waiting for it.")
            timeout, told = 10.0, True
    try:
        yield
    finally:
        lock.__exit__(None, None, None)


def _point(pointer: Path, blob: Path) -> None:
    """Give the blob its name in the snapshot, as a link where the system has links."""
    with suppress(FileNotFoundError):
        pointer.unlink()
    try:
        pointer.symlink_to(os.path.relpath(blob, pointer.parent))
    except OSError:
        # Windows without developer mode: huggingface-hub moves the file there too.
        shutil.move(blob, pointer)


def _write_ref(folder: Path, revision: str, commit: str) -> None:
    if revision == commit:
        return
    write_atomically(folder / "refs" / revision, commit)


def _require_room(folder: Path, files: list[RemoteFile]) -> None:
    """Refuse to begin what the disk has no room for."""
    needed = 0
    for file in files:
        blob = folder / "blobs" / file.checksum
        if not _is_whole(blob, file):
            part = blob.with_name(f"{blob.name}.incomplete")
            needed += max(0, file.size - (part.stat().st_size if part.exists() else 0))
    place = folder
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if needed and needed + _SPARE > free:
        raise LocalspecError(
            f"There is no room: {gigabytes(needed)} are needed, and {place} has "
            f"{gigabytes(free)} left. Make room, or set HF_HUB_CACHE to another disk."
        )


@contextmanager
def _disk_errors() -> Iterator[None]:
    from localspec.hub.remote import HTTPError

    try:
        yield
    except HTTPError:  # some of which are OSErrors
        raise
    except OSError as error:
        where = printable(str(error.filename or cache.cache_folder()), 1000)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise LocalspecError(
                f"The disk is full: {where}. Make room, or set HF_HUB_CACHE to another disk; what "
                "has arrived is kept."
            ) from None
        raise LocalspecError(
            f"{where} cannot be written: {error.strerror or error}. Check its permissions, or set "
            "HF_HUB_CACHE to another folder."
        ) from None

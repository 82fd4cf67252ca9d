"""`localspec pull`: download models from Hugging Face into its cache, and verify checksums.

Uses huggingface-hub's session but not its download, which starts over after every interruption.
`blobs/<checksum>.incomplete` is renamed once its checksum is verified.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from localspec.errors import LocalspecError, ModelNotFound
from localspec.files import free_space, locked, size_and_time, write_atomically
from localspec.gguf import names
from localspec.gguf.names import DEFAULT_QUANT, ModelFiles, choose, models_among, parts_of
from localspec.hub import cache, packages
from localspec.hub.reference import Repository
from localspec.hub.resolution import find, identify
from localspec.text import gigabytes, listed, printable

if TYPE_CHECKING:
    from localspec.hub.remote import Listing, RemoteFile, Retries

_SPARE = 64 << 20


@dataclass(frozen=True, slots=True)
class PullProgress:
    """Progress in file `number` of `of`; `done` and `total` are bytes."""

    file: str
    number: int
    of: int
    done: int
    total: int
    doing: Literal["download", "check"]


@dataclass(frozen=True, slots=True)
class PulledModel:
    """A model that is now on this machine. `reference`: the shortest unambiguous one; `repository`:
    None for a plain file; `path`: the file to open; `files`: all parts; `size`: total bytes;
    `downloaded`: bytes fetched by this call."""

    reference: str
    repository: str | None
    commit: str | None
    path: Path
    files: tuple[Path, ...]
    size: int
    downloaded: int


Notify = Callable[[str], None]


def pull(
    reference: str,
    *,
    offline: bool | None = None,
    progress: Callable[[PullProgress], None] = lambda _: None,
    notify: Notify = lambda _: None,
    command: str | None = None,
) -> PulledModel:
    """Download a model, or its missing parts. After any exception the partial download is kept, and
    another call resumes it.

    Args:
        offline: use only the cache; None reads HF_HUB_OFFLINE.
        progress: called many times per second.
        notify: receives sentences about choices made for the user.
        command: what errors advise to type again; None: `localspec pull`, with the reference.

    Raises:
        ModelNotFound: there is no such repository, file or quantization.
        UsageError: the reference is invalid.
        LocalspecError: no permission, network or disk space, or a wrong checksum (the file is
            deleted).
    """
    wanted = identify(reference)
    if wanted is not None and wanted == packages.installed():
        notify(f"{packages.NAME} is installed, in the Python package {packages.DISTRIBUTION}.")
    offline = cache.offline_by_environment() if offline is None else offline
    if not isinstance(wanted, Repository) or offline:
        return _already_here(reference, notify, offline=offline)

    cache.require_client()
    from localspec.hub import remote

    retries = remote.Retries(notify)
    again = command or f"localspec pull {printable(reference)}"
    with remote.explain_errors(wanted, again):
        found = retries.call(lambda: remote.listing(wanted))
        chosen = _choose_model(wanted, found, notify)
        files = [found.file(name) for name in chosen.files]
        with _disk_errors(again):
            folder = cache.repository_folder(found.repository.id)
            _require_disk_space(folder, found.repository.id, files)
            arrived = 0
            for number, file in enumerate(files, start=1):
                report = _reporter(progress, file, number, len(files))
                arrived += _FileDownload(folder, found, file, report).fetch(retries, notify)
            # Last, as a ref points to a complete snapshot; only if new, in other users' caches.
            if cache.cached_commit(found.repository.id, wanted.revision) != found.commit:
                write_atomically(folder / "refs" / wanted.revision, found.commit)
    snapshot = folder / "snapshots" / found.commit
    return PulledModel(
        reference=f"{found.repository.id}:{chosen.name_among(models_among(found.names))}",
        repository=found.repository.id,
        commit=found.commit,
        path=snapshot / chosen.name,
        files=tuple(snapshot / name for name in chosen.files),
        size=sum(file.size for file in files),
        downloaded=arrived,
    )


def _already_here(reference: str, notify: Notify, *, offline: bool = False) -> PulledModel:
    found = find(reference, offline=offline)
    for notice in found.notices:
        notify(notice)
    parts = tuple(found.path.with_name(name) for name in parts_of(found.path.name))
    repository = None if found.repository is None else found.repository.id
    size = sum(part.stat().st_size for part in parts)
    return PulledModel(reference, repository, None, found.path, parts, size, downloaded=0)


def _choose_model(wanted: Repository, found: Listing, notify: Notify) -> ModelFiles:
    """Choose the repository's model that the reference names."""
    models = models_among(found.names, named=wanted.file)
    chosen = choose(models, quant=wanted.quant, file=wanted.file)
    if chosen is None:
        has = list(dict.fromkeys(model.quant or model.name for model in models))
        if has:
            raise ModelNotFound(
                f"{wanted.id} has no {printable(wanted.file or wanted.quant or '')}. "
                f"It has {listed(has)}."
            )
        lacks = "no GGUF file"
        if found.refused:
            lacks += f" (refused, as their names lead out of the cache: {found.refused})"
        if beside := [name for name in found.names if ".gguf" in name.lower()]:
            lacks = f"no model, only {listed(beside)}"
        raise ModelNotFound(
            f"{wanted.id} has {lacks}. Look for a repository of that model with GGUF in its name."
            f"{_projector_advice(wanted, found)}"
        )
    if chosen.missing:
        raise ModelNotFound(
            f"{wanted.id} lacks parts of {chosen.name}: {listed(chosen.missing)}. "
            "Choose another quantization."
        )
    if wanted.file is None and wanted.quant is None and chosen.quant != DEFAULT_QUANT:
        notify(f"{wanted.id} has no {DEFAULT_QUANT}; using {chosen.name}.")
    if wanted.file is None and (advice := _projector_advice(wanted, found)):
        notify(advice.strip())
    return chosen


def _projector_advice(wanted: Repository, found: Listing) -> str:
    """How to get a repository's projector, after a blank; "" if it has none."""
    projector = next((name for name in found.names if names.PROJECTOR in name.lower()), None)
    if projector is None:
        return ""
    command = shlex.join(["localspec", "pull", f"{wanted.id}:{projector}"])
    return f" Its projector, for images, is downloaded with '{command}'."


Report = Callable[[int, Literal["download", "check"]], None]


def _reporter(
    progress: Callable[[PullProgress], None], file: RemoteFile, number: int, of: int
) -> Report:
    return lambda done, doing: progress(PullProgress(file.name, number, of, done, file.size, doing))


class _FileDownload:
    def __init__(self, folder: Path, found: Listing, file: RemoteFile, report: Report) -> None:
        self._folder, self._found, self._file, self._report = folder, found, file, report
        self._blob = folder / "blobs" / file.checksum
        self._partial = _partial_path(self._blob)
        self._pointer = folder / "snapshots" / found.commit / file.name
        self._arrived = self._most = 0  # bytes received, and of the longest partial file

    def fetch(self, retries: Retries, notify: Notify) -> int:
        """Download and verify the file; returns the bytes that were transferred."""
        if _is_whole(self._pointer, self._file):
            return 0
        for place in (self._blob, self._pointer):
            place.parent.mkdir(parents=True, exist_ok=True)
        with self._locked(notify):
            if not _is_whole(self._blob, self._file):
                retries.call(lambda: self._download(retries))
                self._check(self._partial)
                self._partial.replace(self._blob)
            if not _is_whole(self._pointer, self._file):  # another process may have linked it
                self._link()
        return self._arrived

    def _download(self, retries: Retries) -> None:
        """Resume the partial file until it has its full size, or an HTTPError."""
        from localspec.hub.remote import stream

        part, size = self._partial, self._file.size
        have = size_and_time(part)[0]
        if part.is_symlink() or have > size or (part.exists() and not part.is_file()):
            part.unlink()  # also a pipe, which would wait for a reader
            have = 0
        self._report(have, "download")
        if have == size and part.exists():
            return
        self._most = max(self._most, have)
        for count, done in stream(self._file, part, have):
            self._arrived += count
            if done > self._most:  # a server that always restarts makes no progress
                retries.progressed()
                self._most = done
            self._report(done, "download")

    def _check(self, path: Path) -> None:
        file, done = self._file, 0
        git = len(file.checksum) == 40  # small files have git's own hash, which covers a header
        digest = hashlib.sha1(f"blob {file.size}\0".encode()) if git else hashlib.sha256()
        with path.open("r+b") as content:  # Windows can only flush a writable file
            os.fsync(content.fileno())
            while block := content.read(1 << 20):
                digest.update(block)
                done += len(block)
                self._report(done, "check")
        if digest.hexdigest() != file.checksum:
            path.unlink()
            raise LocalspecError(
                f"{file.name} arrived damaged: its checksum is {digest.hexdigest()[:12]}…, not "
                f"{file.checksum[:12]}…. It was removed; pull it again."
            )

    @contextmanager
    def _locked(self, notify: Notify) -> Iterator[None]:
        """Hold the lock that huggingface-hub takes for the same file."""
        from filelock import Timeout

        path = self._folder.parent / ".locks" / self._folder.name / f"{self._file.checksum}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        waiting = False
        with ExitStack() as held:
            while True:
                try:
                    held.enter_context(locked(path, 1.0))
                    break
                except Timeout:
                    if not waiting:
                        notify(f"{self._file.name} is downloaded by another process; waiting.")
                    waiting = True
                    self._report(size_and_time(self._partial)[0], "download")
            yield

    def _link(self) -> None:
        """Link the blob into the snapshot, or move it there where links are not available."""
        self._pointer.unlink(missing_ok=True)
        try:
            self._pointer.symlink_to(os.path.relpath(self._blob, self._pointer.parent))
        except OSError:
            # Windows without developer mode; huggingface-hub moves the file, too.
            shutil.move(self._blob, self._pointer)


def _partial_path(blob: Path) -> Path:
    return blob.with_name(f"{blob.name}.incomplete")


def _is_whole(path: Path, file: RemoteFile) -> bool:
    """Whether the file has its full size; a blob of any other size is damaged."""
    return os.path.isfile(path) and size_and_time(path)[0] == file.size


def _require_disk_space(folder: Path, repository: str, files: list[RemoteFile]) -> None:
    from huggingface_hub import constants

    needed = 0
    for file in files:
        if file.size > constants.MAX_HTTP_DOWNLOAD_SIZE:
            raise LocalspecError(
                f"{file.name} has {gigabytes(file.size)}, more than HTTP downloads allow. Get "
                f"it with: hf download {repository} {file.name}"
            )
        blob = folder / "blobs" / file.checksum
        if not _is_whole(blob, file):
            needed += max(0, file.size - size_and_time(_partial_path(blob))[0])
    place = next(path for path in (folder, *folder.parents) if path.exists())
    free = free_space(place)
    if needed and (needed := needed + _SPARE) > free:
        raise LocalspecError(
            f"There is not enough disk space: {gigabytes(needed)} are needed, and {place} has "
            f"{gigabytes(int(free))} left. Make room, or set HF_HUB_CACHE to another disk."
        )


@contextmanager
def _disk_errors(again: str) -> Iterator[None]:
    from httpx2 import HTTPError

    try:
        yield
    except HTTPError:  # some of them are OSErrors
        raise
    except OSError as error:
        where = printable(str(error.filename or cache.cache_folder()), 1000)
        why = f"{where} cannot be written: {error.strerror or error}"
        advice = "Check its permissions, or set HF_HUB_CACHE to another folder."
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            why = f"The disk is full: {where}"
            advice = "Make room, or set HF_HUB_CACHE to another disk; "
            advice += f"'{again}' continues a partial download."
        elif error.errno == errno.ENOENT:
            why, advice = f"{where} was removed during the download", f"'{again}' starts it again."
        raise LocalspecError(f"{why}. {advice}") from None

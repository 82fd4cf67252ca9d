"""What people type for a model, and which file on this machine it means.

    model.gguf, any part of a split one       a file
    user/repo, user/repo:Q8_0                 a repository of Hugging Face, in the cache
    user/repo:name.gguf                       one file of it
    hf.co/user/repo:Q8_0, https://…           the same, as copied from elsewhere
    qwen3-8b, qwen3-8b:Q8_0                   a name in the catalogue
    demo                                      the embedded pair

Nothing here asks the network: `localspec.hub.download` does.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from localspec import paths
from localspec.errors import ModelNotFound, UsageError
from localspec.gguf.names import (
    DEFAULT_QUANT,
    Weights,
    choose,
    is_repository,
    listed,
    parts_of,
    printable,
    stays_inside,
    weights_among,
)
from localspec.hub import cache

DEMO = "demo"

_PREFIX = re.compile(r"(?:https?://)?(?:www\.)?(?:hf\.co|huggingface\.co)/|hf://", re.IGNORECASE)
_PATH_LIKE = re.compile(r"[~/\\.]|[A-Za-z]:[\\/]")
_QUANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class Repository:
    """A model on Hugging Face.

    Attributes:
        id: `user/repo`.
        quant: quantization as typed, None for the usual one.
        file: name of the file in the repository, where that was named.
        revision: branch, tag or commit.
    """

    id: str
    quant: str | None = None
    file: str | None = None
    revision: str = "main"

    def __str__(self) -> str:
        which = self.file or self.quant
        return f"{self.id}:{which}" if which else self.id


@dataclass(frozen=True, slots=True)
class Found:
    """What a reference means here.

    Attributes:
        path: the file to open; the first part of a split model.
        repository: where it comes from, None for a plain file.
        notices: what the user should know about the choice, sentences.
    """

    path: Path
    repository: Repository | None = None
    notices: tuple[str, ...] = ()


def resolve(
    reference: str | os.PathLike[str] | None,
    *,
    offline: bool | None = None,
    embedded: str = paths.EMBEDDED_TARGET,
) -> Path:
    """The file that a reference means.

    Args:
        reference: see above; None is the embedded model.
        offline: whether advice to download would be of no use; None asks HF_HUB_OFFLINE.
        embedded: which of the embedded pair `demo` and None mean.

    Raises:
        ModelNotFound: no such file, or not in the cache; the message says how to get it.
        UsageError: nothing that could name a model.
    """
    return find(reference, offline=offline, embedded=embedded).path


def find(
    reference: str | os.PathLike[str] | None,
    *,
    offline: bool | None = None,
    embedded: str = paths.EMBEDDED_TARGET,
) -> Found:
    """As `resolve`, with where the file comes from and what there is to say about it."""
    meant = parse(reference)
    if meant is None:
        return Found(paths.embedded(embedded))
    if isinstance(meant, Path):
        return Found(_whole(meant))
    if offline is None:
        offline = cache.offline_by_environment()
    return _cached(meant, str(reference), offline)


def parse(reference: str | os.PathLike[str] | None) -> Path | Repository | None:
    """What kind of reference it is: a path, a repository, or (None) the embedded model.

    A file that exists wins over everything that its name could mean otherwise.

    Raises:
        ModelNotFound: neither a file nor a name in the catalogue.
        UsageError: nothing that could name a model.
    """
    if not reference or reference == DEMO:
        return None
    if not isinstance(reference, str):
        return Path(reference)
    text, path = reference, _expanded(reference)
    if path.is_file():
        return path
    if not text.isprintable():
        raise _nonsense(text)
    prefix = _PREFIX.match(text)
    if prefix:
        return _address(text[prefix.end() :], text)
    if "://" in text:
        return _address_of_endpoint(text)
    if _PATH_LIKE.match(text) or "\\" in text:
        return path
    name, colon, which = text.partition(":")
    if is_repository(name) and not name.lower().endswith(".gguf"):
        return _repository(name, which if colon else None, text)
    if "/" in text or text.lower().endswith(".gguf") or path.exists():
        return path
    return _catalogued(name, which if colon else None, text)


def _expanded(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError:  # "~nobody": no such user
        return Path(text)


def _address(rest: str, text: str) -> Repository:
    """What follows hf.co/: `user/repo`, with :quant, /file.gguf or /blob/main/file.gguf."""
    rest = unquote(rest.split("?")[0].split("#")[0]).strip("/")
    pieces = rest.split("/")
    if pieces[0] in ("datasets", "spaces", "kernels", "buckets", "api"):
        raise _nonsense(text)
    if len(pieces) > 2:
        name, inside = "/".join(pieces[:2]), pieces[2:]
        revision = "main"
        if inside[0] in ("blob", "resolve", "raw", "tree") and len(inside) > 1:
            revision, inside = inside[1], inside[2:]
        file = "/".join(inside)
        found = _repository(name, file if file.lower().endswith(".gguf") else None, text)
        if not stays_inside(revision):
            raise _nonsense(text)
        return Repository(found.id, found.quant, found.file, revision)
    name, colon, which = rest.partition(":")
    return _repository(name, which if colon else None, text)


def _address_of_endpoint(text: str) -> Repository:
    """A web address that is not Hugging Face's own: the endpoint's that the user has set."""
    from huggingface_hub import constants

    host = urlsplit(text).netloc
    if host and host == urlsplit(constants.ENDPOINT).netloc:
        return _address(text.partition("://")[2].partition("/")[2], text)
    raise UsageError(
        f"'{printable(text)}' is not an address of Hugging Face, the only place that models are "
        "fetched from. Download the file yourself and give its path."
    )


def _repository(name: str, which: str | None, text: str) -> Repository:
    if not is_repository(name):
        raise _nonsense(text)
    if which is None:
        return Repository(name)
    if which.lower().endswith(".gguf"):
        if not stays_inside(which):
            raise _nonsense(text)
        return Repository(name, file=which)
    if not _QUANT.fullmatch(which):
        raise _nonsense(text)
    return Repository(name, quant=which)


def _nonsense(text: str) -> UsageError:
    return UsageError(
        f"'{printable(text)}' names no model. Give a path, user/repo with or without :quant, "
        "or a name that 'localspec models' lists."
    )


def _catalogued(name: str, which: str | None, text: str) -> Repository:
    from localspec.hub import catalog

    entry = catalog.load().find(name)
    if entry is None:
        close = catalog.load().similar(name)
        hint = f" Did you mean {' or '.join(close)}?" if close else ""
        raise ModelNotFound(
            f"There is no file '{text}', and no model of that name in the catalogue.{hint} "
            "Give a path or user/repo, or look at 'localspec models'."
        )
    if which is None:
        return Repository(entry.repo, quant=entry.quant, file=entry.file)
    return _repository(entry.repo, which, text)


def _whole(path: Path) -> Path:
    """The file to open for a path: the first part, if all the others are beside it."""
    if path.is_dir():
        raise ModelNotFound(f"{_shown(path)} is a folder. Name the .gguf file in it.")
    parts = [path.with_name(name) for name in parts_of(path.name)]
    if len(parts) == 1:
        if not path.exists():
            raise ModelNotFound(
                f"There is no file {_shown(path)}. Check the path, or leave out -m to use the "
                "embedded model."
            )
        return path
    missing = [part for part in parts if not part.is_file()]
    if len(missing) == len(parts):
        raise ModelNotFound(f"There is no file {_shown(path)}. Check the path.")
    if missing:
        raise ModelNotFound(
            f"Of the {len(parts)} parts of this model, {listed([p.name for p in missing])} "
            f"{'is' if len(missing) == 1 else 'are'} not in {_shown(path.parent)}. "
            "Put all parts into one folder."
        )
    return parts[0]


def _shown(path: Path) -> str:
    return printable(str(path), 1000)


def _cached(wanted: Repository, typed: str, offline: bool) -> Found:
    """The cached file of a repository."""
    folders = cache.snapshots(wanted.id, wanted.revision)
    models = [(folder, weights_among(cache.files_in(folder))) for folder in folders]
    # Exactly what was asked for in any revision comes before something else in the right one.
    strict = wanted if wanted.file else Repository(wanted.id, wanted.quant or DEFAULT_QUANT)
    broken: Weights | None = None
    for attempt in (strict, wanted):
        for folder, choice in models:
            chosen = choose(choice, quant=attempt.quant, file=attempt.file)
            if chosen is None:
                continue
            if chosen.missing:
                broken = broken or chosen
                continue
            commit = cache.cached_commit(wanted.id, wanted.revision)
            notices = _notices(wanted, chosen, older=commit not in (None, folder.name))
            return Found(folder / chosen.name, wanted, notices)
    raise _not_cached(wanted, typed, [m for _, ms in models for m in ms], broken, offline)


def _notices(wanted: Repository, chosen: Weights, *, older: bool) -> tuple[str, ...]:
    notices = []
    if wanted.file is None and wanted.quant is None and chosen.quant != DEFAULT_QUANT:
        notices.append(
            f"{DEFAULT_QUANT} of {wanted.id} is not in the cache; {chosen.name} is taken."
        )
    if older:
        notices.append(f"{chosen.name} is from an older revision of {wanted.id}.")
    return tuple(notices)


def _not_cached(
    wanted: Repository, typed: str, there: list[Weights], broken: Weights | None, offline: bool
) -> ModelNotFound:
    if broken is not None:
        missing = broken.missing
        what = f"{listed(missing)} of {wanted.id} {'is' if len(missing) == 1 else 'are'} missing"
    else:
        what = f"{wanted} is not here"
    has = list(dict.fromkeys(model.quant or model.name for model in there if not model.missing))
    instead = f"; the cache has {listed(has)} of it" if has and broken is None else ""
    get = "Get it with" if not offline else "Get it, without --offline and HF_HUB_OFFLINE, with"
    return ModelNotFound(
        f"{what} (in {_shown(cache.cache_folder())}){instead}. {get} 'localspec pull {typed}'."
    )

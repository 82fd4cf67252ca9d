"""References: the ways to name a model.

    model.gguf, any part of a split one       a file
    user/repo, user/repo:Q8_0                 a repository of Hugging Face, in the cache
    user/repo:name.gguf                       one file of it
    hf.co/user/repo:Q8_0, https://…           the same, as copied from elsewhere
    qwen3-8b, qwen3-8b:Q8_0                   a name in the catalogue
    smollm2                                   a model that a Python package may contain
    demo                                      the built-in pair

`localspec.hub.resolution` finds the file on this machine.
"""

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote

from localspec.errors import UsageError
from localspec.gguf.names import is_repository, stays_inside
from localspec.paths import expanded
from localspec.text import printable
from localspec.typed import convert

DEMO = "demo"

_PREFIX = re.compile(r"(?:https?://)?(?:www\.)?(?:hf\.co|huggingface\.co)/|hf://", re.IGNORECASE)
_PATH_LIKE = re.compile(r"[~/\\.]|[A-Za-z]:[\\/]|.*\\|file://")
_QUANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class CatalogName:
    """A name in the catalogue. `quant`: as typed; None for the entry's default."""

    name: str
    quant: str | None = None

    def __str__(self) -> str:
        return f"{self.name}:{self.quant}" if self.quant else self.name


@dataclass(frozen=True, slots=True)
class Repository:
    """A model on Hugging Face. `id`: `user/repo`; `quant`: as typed, None for the default; `file`:
    as typed; `revision`: branch, tag or commit."""

    id: str
    quant: str | None = None
    file: str | None = None
    revision: str = "main"


def parse(reference: str | os.PathLike[str] | None) -> Path | Repository | CatalogName | None:
    """Parse a reference; None is the built-in model. An existing file takes precedence. Raises
    UsageError if it cannot name a model."""
    if reference is None or reference == DEMO:
        return None
    if not reference:
        raise UsageError("The name of the model is empty. Give a path or user/repo.")
    if not isinstance(reference, str):
        return Path(convert("model", reference, str | os.PathLike[str]))
    text = reference
    path = expanded(text)
    try:
        if path.is_file():
            return path
    except PermissionError:  # of a folder; this may be another kind of name
        pass
    except (OSError, ValueError):  # too long for a file name, or a lone surrogate
        raise _invalid_reference(text) from None
    text = text.strip()  # as it was copied
    path = expanded(text)
    if not text or not text.isprintable():
        raise _invalid_reference(text)
    prefix = _PREFIX.match(text)
    if prefix:
        return _parse_url(text[prefix.end() :], text)
    if _PATH_LIKE.match(text):
        return path
    if "://" in text:
        return _parse_endpoint_url(text)
    name, colon, which = text.partition(":")
    if is_repository(name) and not name.lower().endswith(".gguf"):
        return _parse_repository(name, which if colon else None, text)
    if "/" in text or text.lower().endswith(".gguf") or os.path.exists(path):
        return path
    return CatalogName(name, _validate_quant(which, text) if colon else None)


def _parse_url(rest: str, text: str) -> Repository:
    """Parse the part after hf.co/: `user/repo`, with :quant, /file.gguf or /blob/main/file.gguf."""
    rest = rest.split("?")[0].split("#")[0].strip("/")
    user, *pieces = map(unquote, rest.split("/"))  # a revision's slashes are written as %2F
    if user in ("datasets", "spaces", "kernels", "buckets", "api"):
        raise _invalid_reference(text)
    if len(pieces) < 2:
        name, colon, which = "/".join((user, *pieces)).partition(":")
        return _parse_repository(name, which if colon else None, text)
    name, inside, revision = f"{user}/{pieces[0]}", pieces[1:], "main"
    if inside[0] in ("blob", "resolve", "raw", "tree") and len(inside) > 1:
        revision, inside = inside[1], inside[2:]
    file = "/".join(inside)
    if not stays_inside(revision):
        raise _invalid_reference(text)
    found = _parse_repository(name, file if file.lower().endswith(".gguf") else None, text)
    return replace(found, revision=revision)


def _parse_endpoint_url(text: str) -> Repository:
    """Parse a URL of the endpoint that the user has configured."""
    from huggingface_hub import constants

    prefix, address = (url.partition("://")[2] for url in (f"{constants.ENDPOINT}/", text))
    if prefix and address.startswith(prefix):
        return _parse_url(address[len(prefix) :], text)
    raise UsageError(
        f"'{printable(text)}' is not an address of Hugging Face, the only source that models are "
        "fetched from. Download the file yourself and give its path."
    )


def _parse_repository(name: str, which: str | None, text: str) -> Repository:
    if not is_repository(name):
        raise _invalid_reference(text)
    if which is None or which == "latest":  # as 'ollama list' shows it
        return Repository(name)
    if which.lower().endswith(".gguf"):
        if not stays_inside(which):
            raise _invalid_reference(text)
        return Repository(name, file=which)
    return Repository(name, quant=_validate_quant(which, text))


def _validate_quant(which: str, text: str) -> str:
    if not _QUANT.fullmatch(which):
        raise _invalid_reference(text)
    return which


def _invalid_reference(text: str) -> UsageError:
    return UsageError(
        f"'{printable(text)}' is not a model reference. Give a path, user/repo with or without "
        ":quant, or a name that 'localspec models' lists."
    )

"""The catalogue: recommended models and their drafts.

Read from `catalog.toml` in the package. One in the configuration folder adds entries, and replaces
those of the same name.
"""

import difflib
import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from localspec import paths
from localspec.errors import ModelNotFound, UsageError
from localspec.files import read_toml
from localspec.gguf.names import is_repository, stays_inside
from localspec.hub.reference import CatalogName, Repository, parse
from localspec.text import printable

FILE = "catalog.toml"


def _only(valid: Callable[[str], bool], why: str) -> AfterValidator:
    """Refuse other texts; `why`: with {} in place of the text."""

    def check(value: str) -> str:
        if not valid(value):
            raise ValueError(why.format(value))
        return value

    return AfterValidator(check)


_PRINTABLE = _only(str.isprintable, "has control characters")
_GGUF = _only(
    lambda name: stays_inside(name) and name.lower().endswith(".gguf"),
    "'{}' is not the name of a GGUF file in a repository",
)
_Line = Annotated[str, Field(min_length=1, max_length=300), _PRINTABLE]
_Repo = Annotated[str, _only(is_repository, "'{}' is not user/repo")]
_Url = Annotated[str, Field(pattern=r"^https://\S+$", max_length=300), _PRINTABLE]
_Checked = Annotated[_Line, Field(pattern=r"^\d{4}-\d{2}-\d{2}(: .+)?$", max_length=100)]
_Count = Annotated[int, Field(gt=0)]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class CatalogHead(_Record):
    """A draft head trained on a model's hidden states; not every kind is supported."""

    kind: Literal["EAGLE-3", "EAGLE-2", "MTP", "DFlash", "DFlash2", "DSpark", "Medusa"]
    repo: _Repo
    """Its own repository, or that of the model whose file contains it."""
    gguf: bool = False
    size: _Count | None = None
    licence: _Line | None = None
    """Licence of the weights; None if the source names none."""
    source: _Url
    checked: _Checked
    """Date of the last check, and how it was checked if not at the source."""


class Entry(_Record):
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]*$", max_length=60)]
    family: _Line
    parameters: _Count
    """Total number of weights, including all experts."""
    active: _Count | None = None
    """Weights used per token in a mixture of experts."""
    repo: _Repo
    quant: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")] | None = None
    """None for the default quantization."""
    file: Annotated[_Line, _GGUF] | None = None
    """Set where file names contain no quantization."""
    others: list[_Repo] = []
    """Further repositories with GGUFs of the same model."""
    size: _Count | None = None
    """Download size in bytes."""
    context: _Count | None = None
    """Trained context length in tokens."""
    licence: _Line
    drafts: list[_Line] = []
    """Drafts, best first: names in this catalogue, or user/repo:quant."""
    heads: list[CatalogHead] = []
    note: _Line | None = None
    source: _Url
    checked: _Checked

    @property
    def repositories(self) -> tuple[str, ...]:
        return (self.repo, *self.others)

    def matches(self, words: Iterable[str]) -> bool:
        """Whether each word occurs in the name, family, licence, repository, draft or head, and
        does not end within a number."""
        heads = [text for head in self.heads for text in (head.kind, head.repo)]
        known = [self.name, self.family, self.licence, *self.repositories, *self.drafts, *heads]
        text = _plain(" ".join(known))
        return all(re.search(rf"{re.escape(_plain(word))}(?!(?<=\d)\d)", text) for word in words)


def _plain(name: str) -> str:
    """A name regardless of ollama's spelling: `qwen3:8b` and `qwen3-8b` become `qwen38b`."""
    return re.sub("[:-]", "", name.casefold())


class Catalog:
    def __init__(self, entries: Iterable[Entry]) -> None:
        self._entries = {entry.name: entry for entry in entries}

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries, by family and size."""
        known = self._entries.values()
        return tuple(sorted(known, key=lambda e: (e.family.casefold(), e.parameters, e.name)))

    def find(self, name: str) -> Entry | None:
        return self._entries.get(name.casefold())

    def require(self, name: CatalogName) -> Entry:
        """The entry of that name, also in ollama's spelling, `qwen3:8b` for `qwen3-8b`. Raises
        ModelNotFound, with close matches, if there is none."""
        same = [one for one in self._entries.values() if _plain(one.name) == _plain(str(name))]
        entry = same[0] if same else self.find(name.name)
        if entry is None:
            close = self.similar(name)
            hint = f" Did you mean {' or '.join(close)}?" if close else ""
            raise ModelNotFound(
                f"There is no file '{name}', and no model of that name in the catalogue.{hint} "
                "Give a path or user/repo, or look at 'localspec list' and 'localspec models'."
            )
        return entry

    def similar(self, name: CatalogName) -> list[str]:
        """Names like an unknown one, the most similar first; `qwen3-8b` for ollama's `qwen3:8b`."""
        close = partial(difflib.get_close_matches, possibilities=self._entries)
        whole = str(name).casefold().replace(":", "-")
        return close(whole, cutoff=0.75) or close(name.name.casefold())

    def repository(self, name: CatalogName) -> Repository:
        """The repository and file of the model of that name; raises as `require`."""
        entry = self.require(name)
        if name.quant is None or entry.name != name.name.casefold():
            return Repository(entry.repo, entry.quant, entry.file)
        return Repository(entry.repo, name.quant)

    def entry_for(self, reference: str) -> Entry | None:
        """The entry for a reference by name or repository; raises as `parse` and `require`."""
        parsed = parse(reference)
        if isinstance(parsed, CatalogName):
            return self.require(parsed)
        wanted = parsed.id.casefold() if isinstance(parsed, Repository) else ""
        known = self._entries.values()
        return next((one for one in known if wanted in map(str.casefold, one.repositories)), None)


def user_file() -> Path:
    return paths.config_file().with_name(FILE)


def load() -> Catalog:
    """Read both catalogues. Raises UsageError that names the invalid file, and its line or key."""
    path = user_file()
    additions = read(path) if path.exists() else []
    catalog = Catalog([*read(paths.embedded(FILE)), *additions])
    for entry in additions:
        for draft in entry.drafts:
            if "/" not in draft and catalog.find(draft.partition(":")[0]) is None:
                raise _invalid_catalog(
                    path, f"entry '{entry.name}': drafts: there is no entry '{draft}'"
                )
    return catalog


def read(path: Path) -> list[Entry]:
    """Read the entries of one file; raises as `load`."""
    content = read_toml(path, "catalogue")
    unknown = sorted(set(content) - {"model"})
    if unknown:
        raise _invalid_catalog(
            path, f"has an unknown key '{unknown[0]}'; entries are [[model]] tables"
        )
    tables = content.get("model", [])
    if not isinstance(tables, list):
        raise _invalid_catalog(path, "has [model] as a table; entries are [[model]] tables")
    entries: dict[str, Entry] = {}
    for number, table in enumerate(tables, start=1):
        entry = _entry(path, number, table)
        if entry.name in entries:
            raise _invalid_catalog(path, f"has two entries '{entry.name}'")
        entries[entry.name] = entry
    return list(entries.values())


def _entry(path: Path, number: int, table: Any) -> Entry:
    try:
        return Entry.model_validate(table)
    except ValidationError as error:
        first = error.errors()[0]
        name = table.get("name") if isinstance(table, dict) else None
        which = f"entry '{name}'" if isinstance(name, str) else f"[[model]] number {number}"
        key = ".".join(str(part) for part in first["loc"]).rstrip(".0123456789") or "entry"
        why = str(first.get("ctx", {}).get("error", first["msg"])).lower()
        raise _invalid_catalog(path, f"{which}: {key}: {why}") from None


def _invalid_catalog(path: Path, why: str) -> UsageError:
    return UsageError(f"The catalogue {path} {printable(why, 300)}. Correct it, or move it away.")

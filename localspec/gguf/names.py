"""Names of files and repositories: quantization, parts of split models, safety."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

DEFAULT_QUANT = "Q4_K_M"
"""The default of llama.cpp and ollama."""

_REPOSITORY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}/[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}")
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<total>\d{5})\.gguf", re.IGNORECASE)
_QUANT = re.compile(
    r"(?<![A-Za-z0-9])(?:UD-)?(?:"
    r"I?Q\d_K(?:_(?:XXS|XS|S|M|L|XL))?|I?Q\d_(?:XXS|XS|NL|XL|S|M|L)|T?Q\d_[01](?:_\d_\d)?"
    r"|MXFP4(?:_MOE)?|NVFP4|BF16|FP?16|FP?32)(?![A-Za-z0-9])",
    re.IGNORECASE,
)
_DRIVE = re.compile(r"[A-Za-z]:")
PROJECTOR = "mmproj"
_OTHER_FILES = (PROJECTOR, "imatrix")
"""Words in the names of .gguf files that are not models: image encoders, statistics."""


def is_repository(text: str) -> bool:
    """Whether this is `user/repo`, as Hugging Face allows it."""
    if ".." in text or "--" in text or text.endswith((".git", ".ipynb", "-", ".")):
        return False
    return bool(_REPOSITORY.fullmatch(text))


def stays_inside(name: str) -> bool:
    """Whether a repository's file name, joined to a folder, stays in it on every system."""
    return all(
        part not in ("", ".", "..")
        and len(part.encode("utf-8", "surrogatepass")) <= 255
        and part.isprintable()
        and "\\" not in part
        and not _DRIVE.match(part)
        for part in name.split("/")
    )


def quant_of(name: str) -> str:
    """The quantization in a file name, in capitals; "" without one."""
    folder, _, file = name.rpartition("/")
    for text in (file, folder):
        found = _QUANT.findall(text)
        if found:
            return str(found[-1]).upper().replace("FP16", "F16").replace("FP32", "F32")
    return ""


def parts_of(name: str) -> tuple[str, ...]:
    """The names of all parts of a split model, from one of them; otherwise the name itself.
    llama.cpp's scheme: `<stem>-00001-of-00003.gguf`."""
    folder, slash, file = name.rpartition("/")
    found = _PART.fullmatch(file)
    if not found or not 1 <= int(found["number"]) <= int(found["total"]):
        return (name,)
    before, after = file[: found.start("number")], file[found.end("number") :]
    return tuple(
        f"{folder}{slash}{before}{number:05}{after}" for number in range(1, int(found["total"]) + 1)
    )


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """One model of a repository: its files in order, and their quantization."""

    files: tuple[str, ...]
    quant: str

    @property
    def name(self) -> str:
        return parts_of(self.files[0])[0]

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(part for part in parts_of(self.files[0]) if part not in self.files)

    def name_among(self, models: "Sequence[ModelFiles]") -> str:
        """The quantization, or the file if that would name another one of these models."""
        named = choose(models, quant=self.quant, file=None) if self.quant else None
        return self.quant if named == self else self.name


def models_among(names: Iterable[str], *, named: str | None = None) -> list[ModelFiles]:
    """The models among a repository's files, sorted by name, and the file `named` of any kind."""
    sets: dict[tuple[str, str], list[str]] = {}
    for name in sorted(names):
        file = name.rpartition("/")[2]
        beside = name != named and any(word in file.lower() for word in _OTHER_FILES)
        if file.lower().endswith(".gguf") and not beside:
            part = _PART.fullmatch(name)
            sets.setdefault((part["stem"], part["total"]) if part else (name, ""), []).append(name)
    return [ModelFiles(tuple(files), quant_of(files[0])) for files in sets.values()]


def choose(
    models: Sequence[ModelFiles], *, quant: str | None, file: str | None
) -> ModelFiles | None:
    """The model that a reference names, or None. `quant`: as typed; None means the default one,
    otherwise the nearest to 4 bits. `file`: any of the model's files, which overrides `quant`. If
    several have one quantization, the shortest name is the model; others are heads or drafts."""
    if file is not None:
        wanted = parts_of(file)
        return next((m for m in models if parts_of(m.files[0]) == wanted), None)
    models = sorted(models, key=lambda model: len(model.name))
    found = _with_quant(models, quant or DEFAULT_QUANT)
    if found is not None or quant is not None:
        return found
    return min(models, key=_distance, default=None)


def _distance(model: ModelFiles) -> float:
    """Distance from 4 bits; of two equal ones, the larger counts as nearer."""
    found = re.search(r"\d+", model.quant)
    return abs((int(found[0]) if found else 8) - 4.1)


def _with_quant(models: Sequence[ModelFiles], quant: str) -> ModelFiles | None:
    wanted = quant.upper().replace("FP16", "F16").replace("FP32", "F32")
    # Unsloth's dynamic ones come second; their prefix may be left out if that is unambiguous.
    for name in (wanted, f"UD-{wanted}"):
        for model in models:
            if model.quant == name:
                return model
    # Other words between dots and dashes: "8bit", "imat" …
    pattern = re.compile(rf"(?<![A-Za-z0-9_]){re.escape(quant)}(?![A-Za-z0-9_])", re.IGNORECASE)
    return next((model for model in models if pattern.search(model.name)), None)

"""Properties of a GGUF file for users, and the reason if it cannot be used."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from localspec.errors import LocalspecError, ModelInvalid
from localspec.files import size_and_time
from localspec.gguf.architectures import EMBEDDERS, KNOWN, OTHERS
from localspec.gguf.damage import damage, unwritten
from localspec.gguf.file import GGUFFile
from localspec.gguf.mtp import is_mtp_only
from localspec.gguf.reader import read_gguf, readable
from localspec.llama.options import HEADS
from localspec.llama.types import FILE_TYPES
from localspec.text import printable


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The contents of a file, safe for a terminal; `architecture` is empty if it cannot be read.
    `trained_context`: tokens; `size`: bytes of all parts; `problem`: a sentence on why it cannot
    generate text, or None; `chat`: whether it has a chat template."""

    architecture: str
    parameters: int | None
    quantization: str
    trained_context: int | None
    size: int
    problem: str | None
    chat: bool


def describe(path: Path) -> ModelFacts:
    """Read a file; faults are reported in `problem`, not raised."""
    try:
        file = read_gguf(path)
    except LocalspecError as error:
        size, problem = size_and_time(path)[0], printable(str(error), 400)
        return ModelFacts("", None, "", None, size, problem, chat=False)
    return facts_of(file)


def facts_of(file: GGUFFile) -> ModelFacts:
    """As `describe`, for a file that was read."""
    context = file.own_integer("context_length")
    return ModelFacts(
        printable(file.architecture, 40),
        file.n_parameters,
        quantization(file),
        context if context is not None and context > 0 else None,
        file.size,
        why_not(file),
        chat=bool(file.text("tokenizer.chat_template")),
    )


def quantization(file: GGUFFile) -> str:
    """The quantization by the file's metadata, otherwise the type of most bytes."""
    if not file.tensors:
        return ""
    named = FILE_TYPES.get(file.integer("general.file_type") or 0)
    sizes: Counter[str] = Counter()
    for tensor in file.tensors:
        sizes[tensor.type] += tensor.size
    most = max(sizes, key=sizes.__getitem__)
    # Zero is F32, and also the value of writers that do not know the type.
    if "general.file_type" in file.metadata and named and not (named == "F32" and most != "F32"):
        return named
    return most


def why_not(file: GGUFFile) -> str | None:
    """A sentence on why a file cannot generate text, None if it can."""
    architecture = file.architecture
    kind = file.text("general.type")
    if kind == "adapter":
        what = "It is an adapter (LoRA), which changes another model"
    elif architecture == "controlvector":
        what = "It is a control vector, which changes another model"
    elif kind == "imatrix" or architecture == "imatrix" or "imatrix.datasets" in file.metadata:
        what = "It holds statistics for quantizing (imatrix), not a model"
    elif kind == "mmproj" or architecture == "clip":
        what = "It is the projector of a multimodal model (mmproj), not a language model"
    elif "general.architecture" not in file.metadata:
        what = "It does not name its architecture"
    elif _is_head(file):
        name = architecture if architecture in HEADS else "MTP layers"
        what = f"It is a trained head ({name}), which drafts for its own target only"
    elif architecture not in KNOWN:
        what = (
            f"The architecture {printable(architecture, 40)} is not known to the llama.cpp here; "
            "it may be newer"
        )
    elif architecture in EMBEDDERS or _embeds(file):
        what = f"It is an embedding model (architecture {architecture})"
    elif architecture in OTHERS:
        what = f"It is {OTHERS[architecture]} (architecture {architecture})"
    elif file.text("tokenizer.ggml.model") in (None, "none", "no_vocab"):
        what = "It has no vocabulary"
    elif not file.tensors:
        what = "It has only a vocabulary, no weights"
    else:
        return damage(file)
    return f"{what}."


def require_usable(path: Path, *, head: bool = False) -> None:
    """Raise ModelNotFound or ModelInvalid for a file that llama.cpp cannot open, or that would
    crash it; unless a trained `head` is expected, also for one that cannot generate text."""
    file = read_gguf(path)
    found = damage(file) if head else why_not(file) or unwritten(file)
    if found is None:
        return
    step = "Choose a GGUF of a chat or completion model."
    if found.startswith("It is damaged"):
        step = "Download it again, or choose another model."
    elif _is_head(file):
        step = "Name a model instead; 'localspec run' takes a head with --draft."
    raise ModelInvalid(f"{path.name} cannot be used: {found[:1].lower()}{found[1:]} {step}")


def is_embedding_model(path: Path) -> bool:
    """Whether a file is an undamaged embedding model."""
    if (file := readable(path)) is None:
        return False
    found = file.architecture in EMBEDDERS or _embeds(file)
    return found and file.architecture in KNOWN - HEADS and damage(file) is None


def _is_head(file: GGUFFile) -> bool:
    return file.architecture in HEADS or is_mtp_only(file)


def _embeds(file: GGUFFile) -> bool:
    return file.own("attention.causal") is False or file.own("pooling_type") is not None

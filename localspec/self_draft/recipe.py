"""Options for drafts from the target's own file: quantization and layers."""

from __future__ import annotations

from dataclasses import dataclass

from localspec.errors import UsageError
from localspec.gguf.architectures import ALIKE
from localspec.gguf.description import quantization
from localspec.gguf.file import Array, GGUFFile
from localspec.text import listed, printable

SELF = "self"


def is_self(reference: object) -> bool:
    return str(reference).partition(":")[0] == SELF


@dataclass(frozen=True, slots=True)
class SelfDraftRequest:
    """`self`, `self:Q4_0` or `self:4`: the quantization, or how many layers to leave out."""

    quant: str | None = None
    count: int | None = None

    @classmethod
    def parse(cls, reference: object) -> SelfDraftRequest | None:
        """Parse a reference; None if it is not a `self` draft, a UsageError if it is malformed."""
        if not is_self(reference):
            return None
        _, colon, what = str(reference).partition(":")
        if not colon:
            return cls()
        if what.isdecimal() and len(what) < 10 and int(what):
            return cls(count=int(what))
        from localspec.llama.quantize import file_type

        try:
            file_type(what)
        except UsageError:
            raise UsageError(
                f"'{printable(str(reference))}' is not a draft. Write self for the best, self:Q4_0"
                " for the model in another quantization, or self:4 for it without four layers."
            ) from None
        return cls(quant=what.upper())


@dataclass(frozen=True, slots=True)
class Recipe:
    """The quantization of a draft, None for the target's, and the layers that it lacks, from 0."""

    quant: str | None = None
    left_out: tuple[int, ...] = ()

    @property
    def description(self) -> str:
        """A phrase to follow "the model": "in Q4_0 without layers 3 and 4"."""
        parts = [f"in {self.quant}"] if self.quant is not None else []
        if self.left_out:
            noun = "layer" if len(self.left_out) == 1 else "layers"
            parts.append(f"without {noun} {listed([str(layer) for layer in self.left_out])}")
        return " ".join(parts)

    @property
    def label(self) -> str:
        parts = [self.quant] if self.quant is not None else []
        if self.left_out:
            parts.append(f"without-{len(self.left_out)}")
        return "-".join(parts)


def smaller_quantizations(file: GGUFFile) -> tuple[str, ...]:
    """Quantizations worth trying, the smallest first; Q4_0 needs no importance matrix."""
    now = quantization(file)
    if now in ("F32", "F16", "BF16"):
        return ("Q4_0", "Q8_0")
    return ("Q4_0",) if now in ("Q8_0", "Q6_K", "Q5_K_M", "Q5_K_S") else ("Q2_K",)


def can_leave_out_layers(file: GGUFFile) -> bool:
    """Whether the layers of a model are enough, alike, and independent of their numbers."""
    architecture, layers = file.architecture, file.own_integer("block_count") or 0
    prefix = f"{architecture}."
    per_layer = any(file.own_integer(key) for key in _PER_LAYER) or any(
        key.startswith(prefix) and isinstance(value, Array) and len(value) == layers
        for key, value in file.metadata.items()
    )
    return architecture in ALIKE and layers >= _MIN_LAYERS and not per_layer


_MIN_LAYERS = 4
_PER_LAYER = ("attention.sliding_window", "leading_dense_block_count")

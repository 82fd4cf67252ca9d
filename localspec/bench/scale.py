"""Models of realistic size that compute the same as a small one.

A small llama model is made wider and deeper: with zero-padded heads and neurons, layers of zeros,
which add nothing to the residual stream, and norm weights scaled for the padded mean square.
"""

from dataclasses import dataclass
from pathlib import Path

from localspec import paths
from localspec.bench.machine import file_facts
from localspec.bench.scaled_gguf import ModelShape, write_f16
from localspec.errors import UsageError
from localspec.gguf.writer import writing
from localspec.hub.packages import NAME as SMOLLM2
from localspec.hub.resolution import resolve
from localspec.llama import quantize
from localspec.llama.quantize import file_type
from localspec.text import printable


@dataclass(frozen=True, slots=True)
class ScaledPair:
    """Target and draft of a pair. `draft`: None for the unscaled file; `real`: made from SmolLM2
    instead of the built-in pair; `disk`: GB needed while writing; at most half of it stays."""

    target: ModelShape
    draft: ModelShape | None
    real: bool = False
    disk: float = 2


_DRAFT_25M = ModelShape(384, 8, 1024, "Q8_0")
_DRAFT_100M = ModelShape(640, 12, 1792, "Q8_0")
_TARGET_Q4_0 = ModelShape(2048, 16, 8192, "Q4_0")
_TARGET_Q4_K_M = ModelShape(2048, 16, 8192, "Q4_K_M")

PAIRS = {
    "A": ScaledPair(_TARGET_Q4_0, _DRAFT_25M),
    "B": ScaledPair(_TARGET_Q4_0, _DRAFT_100M),
    "C": ScaledPair(_TARGET_Q4_K_M, _DRAFT_25M),
}
for _name, _quant in (("R0", "Q4_0"), ("RK", "Q4_K_M"), ("RN", "IQ4_NL")):
    _shape = ModelShape(2304, 30, 4608, _quant)
    PAIRS[_name] = ScaledPair(_shape, None, real=True, disk=4)
PAIRS["R-long"] = ScaledPair(ModelShape(2304, 60, 4608, "IQ4_NL"), None, real=True, disk=8)
_ALIASES = {"1b": "A"}


def find_pair(name: str) -> ScaledPair:
    """The pair with this name, a key of PAIRS or an alias, ignoring case. Raises UsageError: an
    unknown name."""
    by_name = {known.casefold(): pair for known, pair in PAIRS.items()}
    by_name |= {alias: PAIRS[known] for alias, known in _ALIASES.items()}
    pair = by_name.get(name.casefold())
    if pair is None:
        known = ", ".join([*_ALIASES, *PAIRS])
        raise UsageError(f"There is no scaled pair '{printable(name)}'. Choose from {known}.")
    return pair


def scaled_pair(name: str, *, offline: bool | None = None) -> tuple[Path, Path]:
    """Paths of a pair's target and draft, written on first use into the cache folder. Raises
    LocalspecError."""
    pair = find_pair(name)
    if pair.real:
        target = draft = resolve(SMOLLM2, offline=offline)
    else:
        target = paths.embedded(paths.EMBEDDED_TARGET)
        draft = paths.embedded(paths.EMBEDDED_DRAFT)
    return scaled_model(target, pair.target), draft if pair.draft is None else scaled_model(
        draft, pair.draft
    )


def scaled_model(source: Path, shape: ModelShape) -> Path:
    """A model in another shape, written on first use; errors as `scale_model`."""
    size = f"{shape.dim}x{shape.layers}-ff{shape.feed_forward}-{shape.quant}"
    # The source may change with a release, so its digest is in the name.
    digest = file_facts(source).sha256[:8]
    stem = source.stem.rsplit("-", 1)[0]
    path = paths.cache_folder() / "scale" / f"{stem}-{size}-{digest}.gguf"
    if not path.exists():
        scale_model(source, path, shape)
    return path


def scale_model(source: Path, destination: Path, shape: ModelShape) -> None:
    """Write a GGUF of llama architecture in a larger shape; `destination` appears when complete.
    Raises LocalspecError."""
    file_type(shape.quant)
    with writing(destination) as done:
        whole = done.with_name(f"f16-{done.name}")
        try:
            write_f16(source, whole, destination.stem, shape)
            if shape.quant.upper() == "F16":
                whole.replace(done)
            else:
                quantize.quantize(whole, done, shape.quant)
        finally:
            whole.unlink(missing_ok=True)

"""A requantized copy of a draft model, where this machine reads it faster.

What a draft model says changes how often it is right, never the answer, so its weights may be of
any type. A pass over one token takes as long as the weights take to read: in Q4_0 about 0.6 times
as long as in Q8_0 on a CPU, and 0.7 times as long as in Q4_1, for which llama.cpp has no repacked
kernels. So a draft model of more bits gets a copy in the cache folder, and both are timed once.

A copy is also right less often, by how much depends on the target: two models that were rounded in
the same way agree more often. So whether it is used is decided for each pair
(`localspec.loading.copy_choice`), and kept here, beside the copy. Where none uses it, it is
removed, and only what is known of it stays.
"""

from __future__ import annotations

import json
import logging
import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import llama_cpp

from localspec import paths
from localspec.errors import LocalspecError
from localspec.files import remove_abandoned, replacing, write_atomically
from localspec.identity import file_identity, fingerprint, machine
from localspec.llama import library
from localspec.llama.model import Model
from localspec.llama.options import ModelOptions
from localspec.llama.quantize import quantize
from localspec.llama.time_ratio import time_ratio

QUANT = "Q4_0"
SLOWER = frozenset(
    {"F16", "BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q5_K_S", "Q5_0", "Q5_1", "Q4_K_M", "Q4_K_S", "Q4_1"}
)
"""Types of whole files that may take longer than QUANT, and F32; the others are as small."""
SMALLEST, LARGEST = 16 << 20, 2 << 30
"""Bytes. A smaller file's passes are over before reading the weights matters; a larger one takes
too long to rewrite unasked."""
WORTHWHILE = 0.95
"""A copy that takes more of the original's time is not worth comparing: it is right less often."""

logger = logging.getLogger("localspec.llama")


class Pair(NamedTuple):
    """With which target a draft model is used, and how.

    Attributes:
        target: its file.
        key: a name for everything that the worth of a copy depends on but the draft model's file,
            the machine and the library.
    """

    target: Path
    key: str


class Copy(NamedTuple):
    """A copy that is there.

    Attributes:
        path: its file.
        ratio: seconds of its passes over one token ÷ the original's.
    """

    path: Path
    ratio: float


@dataclass(frozen=True, slots=True)
class CopyVerdict:
    """What is known of a copy for one pair.

    Attributes:
        copy: what to use instead of the original; None to stay with it.
        acceptance: chance that a token of the original is accepted, and one of the copy; None
            where they were not compared.
    """

    copy: Copy | None
    acceptance: tuple[float, float] | None = None


def known_verdict(path: Path, pair: Pair, options: ModelOptions) -> CopyVerdict | None:
    """What an earlier session found out about the copy of a file; None where nothing is known."""
    if not _applies(options):
        return None
    try:
        copy = _copy_of(path)
        record = _Record.read(copy)
        if record.ratio is None:
            return None
        if record.ratio > WORTHWHILE:
            return CopyVerdict(None)
        use = record.pairs.get(pair.key)
        if use is None or (use.copy and not copy.exists()):
            return None
        return CopyVerdict(Copy(copy, record.ratio) if use.copy else None, use.acceptance)
    except OSError:
        return None


def faster_copy(
    model: Model, options: ModelOptions, calm: Callable[[], bool] = lambda: True
) -> Copy | None:
    """A copy of this model whose passes are faster, None without one; made and timed if need be.

    Never raises over the copy: without room for it, or with weights that cannot be rewritten, the
    model is used as it is.

    Args:
        calm: whether other processes leave the machine alone. If not, nothing is timed, or what was
            is not believed, and another session tries again.
    """
    try:
        size = model.path.stat().st_size
        if not _applies(options) or not SMALLEST <= size <= LARGEST or not _slower(model):
            return None
        copy = _copy_of(model.path)
        record = _Record.read(copy)
        ratio = record.ratio
        if ratio is None or ratio <= WORTHWHILE:
            if not (copy.exists() or _make(model.path, copy, options, calm)):
                return None
            if ratio is None:
                ratio = _timed(model, copy, options, calm)
                _Record(_source(model.path), ratio, record.pairs).write(copy)
        if ratio is None or ratio <= WORTHWHILE:
            return None if ratio is None else Copy(copy, ratio)
        copy.unlink(missing_ok=True)
    except (OSError, LocalspecError) as error:
        logger.warning("the draft model is used as it is: %s", error)
    return None


def _make(path: Path, copy: Path, options: ModelOptions, calm: Callable[[], bool]) -> bool:
    """Write a copy, where there is room for it and the time is right.

    Raises:
        OSError, NativeError: it cannot be written.
    """
    if not calm():
        logger.info("other processes compute: a copy of %s is tried another time", path.name)
        return False
    copy.parent.mkdir(parents=True, exist_ok=True)
    _remove_older(path, copy)
    if shutil.disk_usage(copy.parent).free < 4 * path.stat().st_size:
        return False
    logger.info("making a %s copy of the draft model %s", QUANT, path.name)
    with replacing(copy) as partial:
        quantize(path, partial, QUANT, options.fixed_threads, again=True)
    return True


def _timed(
    model: Model, copy: Path, options: ModelOptions, calm: Callable[[], bool]
) -> float | None:
    """Of `Copy`; None where other processes disturbed.

    Raises:
        LocalspecError: the copy cannot be opened; it is gone.
    """
    try:
        ratio = time_ratio(model, copy, options)
    except LocalspecError:
        copy.unlink(missing_ok=True)
        raise
    if not calm():
        logger.info("other processes compute: %s is timed another time", copy.name)
        return None
    logger.info("the copy takes %.2f of the original's time", ratio)
    return ratio


def keep_verdict(copy: Path, pair: Pair, verdict: CopyVerdict) -> None:
    """Remember whether a pair uses a copy, and remove the copy if none does. Never raises."""
    try:
        record = _Record.read(copy)
        # A target that is gone, or another file by now, uses nothing.
        pairs = {key: use for key, use in record.pairs.items() if use.target_is_there()}
        target = str(pair.target.resolve())
        pairs[pair.key] = _Use(
            target, file_identity(pair.target), verdict.copy is not None, verdict.acceptance
        )
        _Record(record.source, record.ratio, pairs).write(copy)
        if not any(use.copy for use in pairs.values()):
            copy.unlink(missing_ok=True)
    except OSError as error:
        logger.warning("what was found out about %s is not kept: %s", copy, error)


def discard(copy: Path, why: Exception) -> None:
    """Remove a copy that cannot be used, so that another session makes it anew."""
    logger.warning("the copy of the draft model is removed, the original is used: %s", why)
    _remove(copy)


@dataclass(frozen=True, slots=True)
class _Use:
    """Of a copy by one pair: the target, and what was found.

    Attributes:
        target: where its file is.
        file: by what that is known again.
    """

    target: str
    file: Mapping[str, Any]
    copy: bool
    acceptance: tuple[float, float] | None

    @classmethod
    def read(cls, stored: Any) -> _Use | None:
        """What `as_dict` gave; None for anything else."""
        try:
            target, file, copy = stored["target"], stored["file"], stored["copy"]
            acceptance = stored["acceptance"]
            if acceptance is not None:
                original, requantized = map(float, acceptance)
                acceptance = original, requantized
            if not (isinstance(target, str) and isinstance(file, dict) and isinstance(copy, bool)):
                return None
        except (KeyError, TypeError, ValueError, OverflowError):
            return None
        return cls(target, file, copy, acceptance)

    def as_dict(self) -> dict[str, Any]:
        """For the file."""
        return {
            "target": self.target,
            "file": dict(self.file),
            "copy": self.copy,
            "acceptance": self.acceptance,
        }

    def target_is_there(self) -> bool:
        """Whether the target is still the file that it was."""
        try:
            return file_identity(Path(self.target)) == self.file
        except (OSError, ValueError):
            return False


@dataclass(frozen=True, slots=True)
class _Record:
    """What is known of a copy, in a file beside it.

    Attributes:
        source: where the original is.
        ratio: of `Copy`; None where that is not known.
        pairs: what was found for each, by `Pair.key`.
    """

    source: str | None
    ratio: float | None
    pairs: Mapping[str, _Use]

    @classmethod
    def of_file(cls, path: Path) -> _Record:
        """That of a file; empty where it cannot be read."""
        try:
            known = json.loads(path.read_text(encoding="utf-8"))
            source, ratio = known.get("source"), known.get("ratio")
            ratio = None if ratio is None else float(ratio)
            pairs = {key: _Use.read(use) for key, use in dict(known.get("pairs") or {}).items()}
        except (OSError, ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            return cls(None, None, {})
        if ratio is not None and not (math.isfinite(ratio) and ratio > 0):
            ratio = None
        whole = {key: use for key, use in pairs.items() if use is not None}
        return cls(source if isinstance(source, str) else None, ratio, whole)

    @classmethod
    def read(cls, copy: Path) -> _Record:
        """That of a copy."""
        return cls.of_file(copy.with_suffix(".json"))

    def write(self, copy: Path) -> None:
        """Keep it.

        Raises:
            OSError: no room, no permission …
        """
        known = {
            "source": self.source,
            "ratio": self.ratio,
            "pairs": {key: use.as_dict() for key, use in self.pairs.items()},
        }
        write_atomically(copy.with_suffix(".json"), json.dumps(known))


def _remove(copy: Path) -> None:
    try:
        copy.with_suffix(".json").unlink(missing_ok=True)  # without it the copy is not used
        copy.unlink(missing_ok=True)
    except OSError as error:
        logger.warning("%s cannot be removed: %s", copy, error)


def _remove_older(path: Path, copy: Path) -> None:
    """Remove what was made of earlier versions of a file, by other libraries or for other machines.

    Another file of the same name, elsewhere, keeps its copy.
    """
    source = _source(path)
    for record in copy.parent.glob("*.json"):
        if record.stem != copy.stem and _Record.of_file(record).source == source:
            logger.info("removing an older copy of the draft model %s", path.name)
            _remove(record.with_suffix(".gguf"))
    remove_abandoned(copy.parent)


def _source(path: Path) -> str:
    return str(path.resolve())


def _applies(options: ModelOptions) -> bool:
    return options.requantize_draft and (options.gpu_layers == 0 or not library.accelerated())


def _slower(model: Model) -> bool:
    kinds = {int(getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{name}")) for name in SLOWER}
    return int(model.metadata.get("general.file_type", -1)) in kinds | {0}  # F32


def _copy_of(path: Path) -> Path:
    """Named after the file, and after everything that could make it another one."""
    name = fingerprint(
        {"file": file_identity(path), "machine": machine(), "library": library.version()}
    )
    return paths.cache_folder() / "drafts" / f"{path.stem}-{QUANT}-{name[:12]}.gguf"

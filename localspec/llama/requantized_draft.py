"""A requantized copy of a draft model, where this machine reads it faster.

What a draft model says changes how often it is right, never the answer, so its weights may be of
any type. A pass over one token takes as long as the weights take to read: in Q4_0 about 0.6 times
as long as in Q8_0 on a CPU, and the kernels for batches of Q4_0 are better besides. So a draft
model of eight bits or more gets a copy in the cache folder, both are timed once, and the faster
one is used from then on.
"""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

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
HEAVY = ("F32", "F16", "BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q5_K_S", "Q5_0", "Q5_1")
"""Types of whole files that are worth rewriting."""
SMALLEST, LARGEST = 16 << 20, 2 << 30
"""Bytes. A smaller file's passes are over before reading the weights matters; a larger one takes
too long to rewrite unasked."""
WORTHWHILE = 0.88
"""The copy has to take at most so much of the original's time: it is right a little less often."""

logger = logging.getLogger("localspec.llama")


def known_copy(path: Path, options: ModelOptions) -> Path | None:
    """The copy that an earlier session made of this file and found faster."""
    if not _applies(options):
        return None
    try:
        copy = _copy_of(path)
        return copy if _verdict(copy) and copy.exists() else None
    except OSError:
        return None


def faster_copy(model: Model, options: ModelOptions) -> Path | None:
    """The copy to use instead of this model, None to stay with it; made and timed if need be.

    Never raises over the copy: without room for it, or with weights that cannot be rewritten, the
    model is used as it is.
    """
    try:
        size = model.path.stat().st_size
        if not _applies(options) or not SMALLEST <= size <= LARGEST or not _heavy(model):
            return None
        copy = _copy_of(model.path)
        known = _verdict(copy)
        if known is False or (known and copy.exists()):
            return copy if known else None
        copy.parent.mkdir(parents=True, exist_ok=True)
        _remove_older(model.path, copy)
        if shutil.disk_usage(copy.parent).free < 4 * size:
            return None
        logger.info("making a %s copy of the draft model %s", QUANT, model.path.name)
        with replacing(copy) as partial:
            quantize(model.path, partial, QUANT, options.fixed_threads, again=True)
        ratio = time_ratio(model, copy, options)
        faster = ratio <= WORTHWHILE
        verdict = json.dumps({"faster": faster, "ratio": ratio, "source": _source(model.path)})
        logger.info("the copy takes %.2f of the original's time", ratio)
        write_atomically(copy.with_suffix(".json"), verdict)
        if not faster:
            copy.unlink()
        return copy if faster else None
    except (OSError, LocalspecError) as error:
        logger.warning("the draft model is used as it is: %s", error)
        return None


def discard(copy: Path, why: Exception) -> None:
    """Remove a copy that cannot be used, so that another session makes it anew."""
    logger.warning("the copy of the draft model is removed, the original is used: %s", why)
    _remove(copy)


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
        if record.stem != copy.stem and _record(record).get("source") == source:
            logger.info("removing an older copy of the draft model %s", path.name)
            _remove(record.with_suffix(".gguf"))
    remove_abandoned(copy.parent)


def _source(path: Path) -> str:
    return str(path.resolve())


def _record(path: Path) -> dict[str, Any]:
    """What is known of a copy; empty where that cannot be read."""
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _verdict(copy: Path) -> bool | None:
    """Whether the copy was found faster; None where that is not known."""
    faster = _record(copy.with_suffix(".json")).get("faster")
    return None if faster is None else bool(faster)


def _applies(options: ModelOptions) -> bool:
    return options.requantize_draft and (options.gpu_layers == 0 or not library.accelerated())


def _heavy(model: Model) -> bool:
    kinds = {int(getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{name}", -1)) for name in HEAVY} | {0}
    return int(model.metadata.get("general.file_type", -1)) in kinds


def _copy_of(path: Path) -> Path:
    """Named after the file, and after everything that could make it another one."""
    name = fingerprint(
        {"file": file_identity(path), "machine": machine(), "library": library.version()}
    )
    return paths.cache_folder() / "drafts" / f"{path.stem}-{QUANT}-{name[:12]}.gguf"

"""How fast models would answer here in other quantizations, as `localspec doctor` found out."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from localspec import paths
from localspec.files import write_atomically
from localspec.identity import fingerprint, machine

FORMAT = 1
MOST_FILES = 2_000
ALIKE = 0.9
"""A file of so much of another's size counts as equally large; smaller ones say less exactly."""
EQUALLY_FAST = 0.97
"""Of the fastest: the measurement is no better than that, and the larger file is taken."""
WORTH_A_DOWNLOAD = 1.05

logger = logging.getLogger("localspec.pairing")


@dataclass(frozen=True, slots=True)
class TypeForecast:
    """One quantization.

    Attributes:
        quant: "Q4_K_M" …
        size: bytes of the file.
        own: whether the file at hand has it.
        plain: tokens per second without drafts.
        drafting: the same with the draft model; None without one.
    """

    quant: str
    size: int
    own: bool
    plain: float
    drafting: float | None

    @property
    def speed(self) -> float:
        """With drafts where there are any: the planner drafts only where that gains."""
        return self.plain if self.drafting is None else max(self.plain, self.drafting)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A model in several quantizations, on this machine.

    Attributes:
        target: the file that was at hand.
        repository: `user/repo` where it is from; None where that is not known.
        architecture, parameters, quant: of that file. The first two tell a model's shape.
        draft: name of the draft model's file; None without one.
        types: the file at hand first.
        when: date, ISO.
    """

    target: Path
    repository: str | None
    architecture: str
    parameters: int
    quant: str
    draft: str | None
    types: tuple[TypeForecast, ...]
    when: str

    def of(self, quant: str) -> TypeForecast | None:
        """What was found of a quantization."""
        return next((kind for kind in self.types if kind.quant == quant), None)

    def faster_than(self, quant: str) -> TypeForecast | None:
        """The fastest of at least about the same size, if that is worth a download."""
        present = self.of(quant)
        if present is None:
            return None
        alike = [kind for kind in self.types if kind.size >= ALIKE * present.size]
        most = max(kind.speed for kind in alike)
        chosen = max(
            (kind for kind in alike if kind.speed >= EQUALLY_FAST * most),
            key=lambda kind: kind.size,
        )
        return chosen if chosen.speed >= WORTH_A_DOWNLOAD * present.speed else None

    def fastest(self) -> TypeForecast:
        """Of all sizes."""
        return max(self.types, key=lambda kind: kind.speed)


def store(found: Advice) -> None:
    """Keep it, replacing what was found of this shape before."""
    identity = {
        "machine": machine(),
        "architecture": found.architecture,
        "parameters": found.parameters,
    }
    record = {
        "format": FORMAT,
        "identity": identity,
        **asdict(found),
        "target": str(found.target),
    }
    path = folder() / f"{fingerprint(identity)[:24]}.json"
    try:
        write_atomically(path, json.dumps(record))
    except OSError as error:
        logger.warning("what quantizations cost cannot be kept in %s: %s", path, error)


def known() -> list[Advice]:
    """All that was found on this machine."""
    here = machine()
    try:
        files = sorted(folder().glob("*.json"))[:MOST_FILES]
    except OSError:
        return []
    return [one for one in (_read(path, here) for path in files) if one is not None]


def of_shape(advices: Iterable[Advice], architecture: str, parameters: int | None) -> Advice | None:
    """What is known of models of that shape."""
    return next(
        (
            one
            for one in advices
            if (one.architecture, one.parameters) == (architecture, parameters)
        ),
        None,
    )


def folder() -> Path:
    """Where they are."""
    return paths.cache_folder() / "quantizations"


def _read(path: Path, here: dict[str, Any]) -> Advice | None:
    """A stored one; None where it is of another machine, or damaged."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored["format"] != FORMAT or stored["identity"]["machine"] != here:
            return None
        types = tuple(_type(one) for one in stored["types"])
        if not types:
            return None
        texts = {name: _text(stored[name]) for name in ("architecture", "quant", "when")}
        maybe = {
            name: None if stored[name] is None else _text(stored[name])
            for name in ("repository", "draft")
        }
        return Advice(
            target=Path(_text(stored["target"])),
            repository=maybe["repository"],
            architecture=texts["architecture"],
            parameters=int(stored["parameters"]),
            quant=texts["quant"],
            draft=maybe["draft"],
            types=types,
            when=texts["when"][:10],
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        logger.info("what %s says of quantizations cannot be used: %s", path, error)
        return None


def _type(stored: Any) -> TypeForecast:
    if set(stored) != {field.name for field in fields(TypeForecast)}:
        raise ValueError("no such record")
    plain = float(stored["plain"])
    drafting = None if stored["drafting"] is None else float(stored["drafting"])
    size = int(stored["size"])
    if not all(math.isfinite(number) and number > 0 for number in (plain, drafting or 1.0, size)):
        raise ValueError("a speed that is none")
    return TypeForecast(_text(stored["quant"]), size, bool(stored["own"]), plain, drafting)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value

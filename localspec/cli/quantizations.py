"""Which quantization would be faster here, as a table, in a sentence and as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from localspec.cli.tables import table
from localspec.text import gigabytes, printable

if TYPE_CHECKING:
    from localspec.pairing.quantizations import Advice, TypeForecast

CAVEAT = "Types differ in quality too, also those of equal size; that was not measured."


def types_table(advice: Advice) -> str:
    """All of them, from the smallest file to the largest."""
    own = advice.types[0]
    drafts = own.drafting is not None
    header = ["QUANT", "SIZE", "PLAIN TOK/S", "WITH DRAFTING", "× THIS FILE"]
    rows = [
        [
            kind.quant + (" (this file)" if kind.own else ""),
            gigabytes(kind.size),
            f"{kind.plain:.3g}",
            "" if kind.drafting is None else f"{kind.drafting:.3g}",
            f"{kind.speed / own.speed:.2f}",
        ]
        for kind in sorted(advice.types, key=lambda kind: kind.size)
    ]
    if not drafts:
        header.pop(3)
        for row in rows:
            row.pop(3)
    return table(header, rows, right=header[1:])


def sentence(advice: Advice) -> str:
    """What to take, and what it means in tokens per second."""
    own = advice.types[0]
    faster = advice.faster_than(own.quant)
    draft = "without drafts" if own.drafting is None else "with this draft"
    if faster is None:
        text = (
            f"No other type of about this size would be faster here {draft} than yours "
            f"({own.quant}), at {own.speed:.3g} tok/s."
        )
        smaller = advice.fastest()
        if smaller.speed > own.speed and smaller.size < own.size:
            text += f" A smaller file would: {smaller.quant} at {smaller.speed:.3g}."
    else:
        text = (
            f"{faster.quant} of this model would answer at {faster.speed:.3g} tok/s {draft}, "
            f"yours ({own.quant}) at {own.speed:.3g}; {_get(advice, faster)}."
        )
    return f"{text} {CAVEAT}"


def note(advice: Advice, quant: str, name: str) -> str | None:
    """The same of a file that is here, in a line; None where there is nothing better."""
    faster, present = advice.faster_than(quant), advice.of(quant)
    if faster is None or present is None:
        return None
    draft = "" if advice.draft is None else f" drafted by {printable(advice.draft)}"
    return (
        f"{printable(name)} ({quant}): {faster.quant} would answer at {faster.speed:.3g} tok/s "
        f"instead of {present.speed:.3g}{draft}; {_get(advice, faster)}."
    )


def as_json(advice: Advice) -> dict[str, Any]:
    """All of it, as JSON values."""
    own = advice.types[0]
    faster = advice.faster_than(own.quant)
    return {
        "target": str(advice.target),
        "repository": advice.repository,
        "quantization": advice.quant,
        "draft": advice.draft,
        "when": advice.when,
        "types": [
            dataclasses.asdict(kind) | {"times": kind.speed / own.speed} for kind in advice.types
        ],
        "faster": None if faster is None else faster.quant,
        "sentence": sentence(advice),
    }


def of_file(
    advices: Sequence[Advice], architecture: str, parameters: int | None, quant: str
) -> tuple[Advice, TypeForecast] | None:
    """What would be faster than a file; None where nothing is known to be."""
    from localspec.pairing.quantizations import of_shape

    advice = of_shape(advices, architecture, parameters)
    faster = None if advice is None else advice.faster_than(quant)
    return None if advice is None or faster is None else (advice, faster)


def _get(advice: Advice, kind: TypeForecast) -> str:
    if advice.repository is not None:
        return f"`localspec pull {printable(advice.repository)}:{kind.quant}`"
    return "look for it where this file is from, or make it of the original with llama-quantize"

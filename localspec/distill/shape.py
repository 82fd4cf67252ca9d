"""The shape of a draft: given, or chosen for a target by the cost of passes."""

import re
from collections.abc import Iterator, Sequence
from math import log10

from localspec.bench.scaled_gguf import Shape
from localspec.errors import UsageError
from localspec.pairing.forecast import Forecast, best
from localspec.text import printable

LAYERS = (1, 2, 3, 4, 6, 8)
PARTS = (1.0, 0.75, 0.5, 1 / 3, 0.25)
"""Widths to try, ÷ the target's."""
BYTES = 34 / 32
BLOCK = 32
"""Weights of a quantization block, of which every width is a multiple."""
_SHAPE = re.compile(r"(\d{1,5})x(\d{1,3})x(\d{1,6})", re.IGNORECASE)


def parse(text: str, target: Shape) -> Shape:
    """Parse "192x3x512": width x layers x feed-forward; a UsageError if it is not a shape."""
    found = _SHAPE.fullmatch(text)
    if found is None:
        raise UsageError(
            f"'{printable(text)}' is not a shape. Write width x layers x feed-forward, as "
            "192x3x512."
        )
    width, layers, feed_forward = (int(part) for part in found.groups())
    step = max(BLOCK, target.head_width)
    if not width or width % step or not layers or not feed_forward or feed_forward % BLOCK:
        raise UsageError(
            f"A draft of {width}x{layers}x{feed_forward} is not possible. Give a width that is a "
            f"multiple of {step} (a head of the target), and a feed-forward width that is one of "
            f"{BLOCK}."
        )
    return _draft_shape(target, width, layers, feed_forward)


def choose(target: Shape, size: int, curve: Sequence[float]) -> tuple[Shape, Forecast]:
    """The shape with the best forecast, and the forecast; acceptance is guessed from the number of
    weights. `size`: bytes that a pass of the target reads; `curve`: its T(n) ÷ T(1), measured, from
    n = 1 on."""
    found = [(shape, _promise(shape, target, size, curve)) for shape in _candidates(target)]
    # On ties, the smallest, which trains fastest.
    return max(found, key=lambda pair: (round(pair[1].speed_up, 3), -pair[0].parameters))


def _candidates(target: Shape) -> Iterator[Shape]:
    step = max(BLOCK, target.head_width)
    widths = {max(step, round(target.width * part / step) * step) for part in PARTS}
    for width in sorted(widths):
        ratio = target.feed_forward / target.width
        feed_forward = max(BLOCK, round(width * ratio / BLOCK) * BLOCK)
        for layers in LAYERS:
            yield _draft_shape(target, width, layers, feed_forward)


def _draft_shape(target: Shape, width: int, layers: int, feed_forward: int) -> Shape:
    heads = max(1, width // target.head_width)
    # The target's number of query heads per key head, if it divides the heads.
    share = max(1, target.heads // max(1, target.kv_heads))
    kv_heads = heads // share if heads % share == 0 else heads
    size = target.head_width
    return Shape(
        target.vocabulary, width, layers, feed_forward, heads, kv_heads, size, rotated=size
    )


def _promise(shape: Shape, target: Shape, size: int, curve: Sequence[float]) -> Forecast:
    cost = 1.1 * shape.parameters * BYTES / max(1, size) + 0.01
    body = shape.parameters - shape.vocabulary * shape.width
    whole = max(1, target.parameters - target.vocabulary * target.width)
    return best(cost, guess(body / whole), curve)


def guess(share: float) -> float:
    """The expected acceptance of a draft with this share of the target's weights
    (dev/distill.md)."""
    return max(0.2, min(0.9, 0.85 + 0.12 * log10(max(1e-4, min(1.0, share)))))

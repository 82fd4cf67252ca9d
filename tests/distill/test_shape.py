"""Shapes: one that pays where one does, and none that llama.cpp would not load."""

from __future__ import annotations

import pytest

from localspec.distill.shape import BLOCK, ShapeTarget, choose, parse
from localspec.errors import UsageError

# Llama 3.2 1 B in Q4_0, nearly.
BILLION = ShapeTarget(128_256, 2048, 8192, 32, 8, 64, 760_000_000, 1_235_000_000)
FLAT = [1.0 + 0.03 * n for n in range(9)]
STEEP = [1.0, 2.0, 2.9, 3.8, 4.7, 5.6, 6.5, 7.4, 8.3]


def test_where_passes_over_more_tokens_are_cheap_a_shape_pays() -> None:
    shape, promise = choose(BILLION, FLAT)
    assert promise.pays
    assert promise.depth >= 2
    assert shape.parameters < BILLION.parameters / 4
    assert not choose(BILLION, STEEP)[1].pays


def test_shapes_can_be_built() -> None:
    for target in (BILLION, ShapeTarget(8192, 384, 1024, 6, 3, 64, 14_000_000, 13_000_000)):
        for curve in (FLAT, STEEP):
            shape, _ = choose(target, curve)
            assert shape.width % target.head_width == shape.feed_forward % BLOCK == 0
            assert shape.heads * shape.head_width == shape.width
            assert shape.heads % shape.kv_heads == 0


def test_a_shape_that_is_named() -> None:
    shape = parse("512x3x1536", BILLION)
    assert (shape.width, shape.layers, shape.feed_forward) == (512, 3, 1536)
    assert (shape.heads, shape.kv_heads, shape.vocabulary) == (8, 2, 128_256)


@pytest.mark.parametrize(
    "text", ["512", "512x3", "500x3x1536", "512x0x1536", "512x3x1000", "axbxc"]
)
def test_a_shape_that_cannot_be(text: str) -> None:
    with pytest.raises(UsageError, match=r"Write width|Give a width"):
        parse(text, BILLION)

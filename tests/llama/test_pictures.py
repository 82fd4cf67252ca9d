"""Rows that are no token's, in a cache."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from localspec import ModelOptions
from localspec.decoding.sampling import Row
from localspec.errors import NativeError
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.llama.pictures import MARK, Picture, PicturePart, marked, seen
from tests.support.ggufs import tiny_llama
from tests.support.images import png

LONG = 300


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    path = tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf")
    with Model(path, ModelOptions()) as opened:
        yield opened


def part(model: Model, count: int, *, causal: bool = True) -> PicturePart:
    rows = np.random.default_rng(count).normal(0, 1, (count, model.width)).astype(np.float32)
    return PicturePart(tuple(range(-count, 0)), lambda: rows, causal)


def behind(model: Model, shown: PicturePart, batch: int = 512) -> Row:
    """The row behind a text, what is shown, and another text."""
    with closing(Context(model, ModelOptions(context=512, batch=batch))) as context:
        context.extend([5, 6, 7])
        context.show(shown)
        assert context.tokens == [5, 6, 7, *shown.ids]
        return np.array(context.extend([8, 9])[-1])


def test_what_is_longer_than_a_pass_takes_several(model: Model) -> None:
    long = part(model, LONG)
    assert np.abs(behind(model, long) - behind(model, long, batch=128)).max() < 0.05
    assert np.abs(behind(model, long) - behind(model, part(model, LONG - 1))).max() > 0.5


def test_some_models_see_all_of_an_image_at_once(model: Model) -> None:
    causal, whole = part(model, 40), part(model, 40, causal=False)
    assert np.abs(behind(model, causal) - behind(model, whole)).max() > 0.5
    with closing(Context(model, ModelOptions(context=512, batch=128))) as context:
        context.show(whole)
        context.clear()
        # Texts are read as ever behind it.
        after = np.array(context.extend([5, 6, 7, 8, 9])[-1])
        with closing(Context(model, ModelOptions(context=512, batch=128))) as fresh:
            assert np.array_equal(after, fresh.extend([5, 6, 7, 8, 9])[-1])
        with pytest.raises(NativeError, match="need one pass, but a pass has 128 at most"):
            context.show(part(model, LONG, causal=False))


def test_a_prompt_as_the_cache_has_it() -> None:
    shown = PicturePart((-7, -8, -9), lambda: np.zeros((3, 1), np.float32), True)
    pictures = [Picture(1, shown), Picture(5, shown)]
    assert seen([1, 0, 0, 0, 2, 0, 0, 0, 3], pictures) == [1, -7, -8, -9, 2, -7, -8, -9, 3]
    # Another text, which ends before or within a picture.
    assert seen([4, 5], pictures) == [4, -7]
    assert seen([1], pictures) == [1]


def test_a_list_of_texts_is_a_text() -> None:
    """Most templates know no lists, and say that the roles are wrong; what has no images has
    none."""
    texts = [{"type": "text", "text": "Look:"}, {"type": "text", "text": "a cat."}]
    told, images = marked([{"role": "user", "content": texts}, {"role": "user", "content": []}])
    assert [message["content"] for message in told] == ["Look:\na cat.", []]
    assert images == {}
    strange = [{"type": "text", "text": "Listen:"}, {"type": "sound", "sound": b""}]
    assert marked([{"role": "user", "content": strange}])[0][0]["content"] == strange


def test_parts_of_a_message_are_on_lines_of_their_own() -> None:
    """As llama.cpp's server puts them; messages without images stay what they are."""
    said: list[dict[str, Any]] = [
        {"role": "system", "content": "x"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Before"},
                {"type": "image", "image": png(1)},
                {"type": "image", "image": png(2)},
                {"type": "text", "text": "behind"},
            ],
        },
    ]
    told, images = marked(said)
    assert told[0] == said[0]
    before, *marks, behind = told[1]["content"].split("\n")
    assert (before, behind) == ("Before", "behind")
    found = [MARK.fullmatch(mark) for mark in marks]
    assert [images[one[1]] for one in found if one] == [png(1), png(2)]
    assert isinstance(said[1]["content"], list), "what was given is not changed"

"""Whatever was done to a cache, the next row is a fresh one's, and no cell is lost."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from localspec import ModelOptions
from localspec.decoding.tree import ROOT, TokenTree
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.llama.shared_context import SharedContext
from tests.llama.rows import NOISE, distance, fresh, seats

LONGEST = 60


@pytest.fixture(params=["alone", "seats"])
def caches(request: pytest.FixtureRequest, model: Model) -> Iterator[list[Context]]:
    """One, or three that share their cells."""
    options = ModelOptions(context=512, batch=128)
    if request.param == "alone":
        opened = [Context(model, options)]
        yield opened
        opened[0].close()
        return
    shared = SharedContext(model, ModelOptions(context=512, batch=128, parallel=3))
    some = seats(shared)
    yield list(some)
    for cache in some:
        cache.clear()
    used = range(3 * shared.leaves + shared.kept)
    assert {shared.length(number) for number in used} == {0}
    shared.close()


def random_tree(dice: random.Random) -> TokenTree:
    tree = TokenTree()
    for _ in range(dice.randint(1, 9)):
        tree.add(dice.randint(100, 8000), dice.randint(ROOT, len(tree) - 1), "test")
    return tree


def change(cache: Context, text: list[int], dice: random.Random, reference: Context) -> None:
    """Do something to a cache, and to the text that it should have then. A node of a tree reads its
    path and nothing else."""
    tree = random_tree(dice)
    node = dice.randint(ROOT, len(tree) - 1)
    path, behind = tree.path(node), tree.path_tokens(node)
    what = dice.choice(("keep", "truncate", "discard", "extend", "clear"))
    row = cache.branch([42, 43], tree)[node + 1].copy()
    text += [42, 43]
    assert distance(row, fresh(reference, [*text, *behind])) < NOISE
    if what == "discard":
        cache.discard_branches()
        return
    cache.keep(tree, path)
    text += behind
    if what == "truncate":
        del text[dice.randint(1, len(text)) :]
        cache.truncate(len(text))
    elif what == "extend":
        more = [dice.randint(100, 8000) for _ in range(dice.randint(1, 5))]
        cache.extend(more)
        text += more
    elif what == "clear":
        cache.clear()
        text[:] = [1, dice.randint(100, 8000)]
        cache.extend(text)


@pytest.mark.parametrize("seed", range(2))
def test_what_is_left_reads_like_a_prompt(
    seed: int, caches: list[Context], reference: Context
) -> None:
    dice = random.Random(seed)
    texts = [[1, *(dice.randint(100, 8000) for _ in range(6))] for _ in caches]
    for cache, text in zip(caches, texts, strict=True):
        cache.extend(text)
    for turn in range(120):  # five nodes a turn would fill the cache, if any stayed
        number = dice.randrange(len(caches))
        cache, text = caches[number], texts[number]
        change(cache, text, dice, reference)
        assert cache.tokens == text
        if len(text) > LONGEST:
            del text[5:]
            cache.truncate(5)
        if turn % 6 == 0:
            text.append(77)
            assert distance(cache.extend([77])[-1].copy(), fresh(reference, text)) < NOISE
    for cache, text in zip(caches, texts, strict=True):
        row = cache.extend([77])[-1].copy()
        assert distance(row, fresh(reference, [*text, 77])) < NOISE

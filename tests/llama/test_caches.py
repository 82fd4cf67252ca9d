"""KV caches, single and shared: after any change, rows equal those of a fresh cache."""

import random
from collections.abc import Iterator
from contextlib import closing

import pytest

from localspec import ModelOptions, NativeError
from localspec.decoding.tree import ROOT, TokenTree
from localspec.llama.batch import PassPart, chain
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.llama.native_context import CacheFull, SharedContext
from tests.llama.conftest import NOISE, distance, fresh, slots
from tests.support.toys import token_tree

LONGEST = 60
ANSWERS = 3
OPTIONS = ModelOptions(context=512, batch=128, parallel=ANSWERS)


@pytest.fixture
def shared(model: Model) -> Iterator[SharedContext]:
    with closing(SharedContext(model, OPTIONS)) as opened:
        yield opened


@pytest.fixture(params=["alone", "slots"])
def caches(
    request: pytest.FixtureRequest, context: Context, shared: SharedContext
) -> Iterator[list[Context]]:
    """One, or three that share their cells."""
    some = [context] if request.param == "alone" else slots(shared)
    yield some
    for cache in some:
        cache.clear()
    used = range(ANSWERS * shared.leaves + shared.kept)
    assert {shared.length(number) for number in used} == {0}


def change(cache: Context, text: list[int], dice: random.Random, reference: Context) -> None:
    """Make a random change to a cache and its text. Rows of a tree depend on their path only."""
    tree = TokenTree()
    for _ in range(dice.randint(1, 9)):
        tree.add(dice.randint(100, 8000), dice.randint(ROOT, len(tree) - 1), "test")
    node = dice.randint(ROOT, len(tree) - 1)
    path, added = tree.path(node), tree.path_tokens(node)
    what = dice.choice(("keep", "truncate", "discard", "extend", "clear"))
    row = cache.branch([42, 43], tree)[node + 1].copy()
    text += [42, 43]
    assert distance(row, fresh(reference, [*text, *added])) < NOISE
    if what == "discard":
        cache.discard_branches()
        del text[len(text) - dice.choice((0, 1)) :]
        cache.truncate(len(text))
        return
    cache.commit(tree, path)
    text += added
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
def test_changed_caches_equal_fresh(seed: int, caches: list[Context], reference: Context) -> None:
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


@pytest.mark.parametrize("branches", [False, True])
def test_full_cache_raises_without_changes(
    context: Context, reference: Context, tokens: list[int], branches: bool
) -> None:
    full = (tokens * 40)[:508]
    context.extend(full)
    tree = token_tree((5, ROOT), (6, ROOT), (7, 0), (8, 1), (9, 1))
    with pytest.raises(NativeError, match=r"512 tokens is full.*--ctx"):
        _ = context.branch([4], tree) if branches else context.extend([1, 2, 3, 4, 5])
    assert context.tokens == full
    assert distance(context.extend([42])[-1].copy(), fresh(reference, [*full, 42])) < NOISE


def test_common_prefixes_share_cells(shared: SharedContext, reference: Context) -> None:
    """Four texts of 300 tokens that have 280 in common fit into 512 cells."""
    common = [1, *range(300, 579)]
    first, *others = slots(shared)
    first.extend(common)
    kept = shared.kept_sequences(0).first
    Context(shared, shared.kept_sequences(0)).begin_with(first.sequences.first, common)
    first.extend([5] * 20)
    for number, cache in enumerate(others):
        cache.begin_with(kept, common)
        row = cache.extend([50 + number] * 20)[-1].copy()
        assert distance(row, fresh(reference, [*common, *[50 + number] * 20])) < NOISE
    first.clear()
    others[0].clear()
    row = others[1].extend([9])[-1].copy()
    assert distance(row, fresh(reference, [*common, *[51] * 20, 9])) < NOISE


def test_full_shared_cache_and_undo(shared: SharedContext, reference: Context) -> None:
    first, second, _ = slots(shared)
    first.extend(list(range(100, 350)))
    second.extend(list(range(100, 350)))
    with pytest.raises(CacheFull):
        second.extend([7] * 20)
    assert len(second.tokens) == 250
    one, other = second.sequences.first, second.sequences.first + 1
    second.sequences.share(1, 250)
    tree = PassPart([7, 8, 9], [250, 251, 251], [[one, other], [one], [other]], 3)
    for failed in (chain([7] * 5, 1, 250, one), tree):
        shared.decode([failed])
        shared.undo([failed])
        assert [shared.length(one), shared.length(other)] == [250, 250]
    row = second.extend([42])[-1].copy()
    assert distance(row, fresh(reference, [*range(100, 350), 42])) < NOISE

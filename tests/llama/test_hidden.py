"""Hidden rows of passes of any shape."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from localspec import ModelOptions, NativeError
from localspec.decoding.sampling import Rows
from localspec.decoding.tree import ROOT
from localspec.llama import hidden
from localspec.llama.context import Context
from localspec.llama.model import Model
from tests.llama.conftest import NOISE
from tests.support import ggufs
from tests.support.heads import weights
from tests.support.toys import token_tree

TOKENS = list(range(300, 340))


@pytest.fixture(scope="module", params=["embedded", "tiny"])
def path(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, target_path: Path
) -> Path:
    """The built-in target (Q8_0) and a model of f16 weights, both of architecture llama."""
    if request.param == "embedded":
        return target_path
    return ggufs.tiny_llama(tmp_path_factory.mktemp("hidden") / "tiny.gguf")


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[Model]:
    with Model(path, ModelOptions()) as opened:
        yield opened


@pytest.fixture(scope="module")
def embeddings(path: Path) -> Rows:
    """The output matrix as well, in the models used here."""
    return weights(path)["token_embd.weight"]


def agree(a: Rows, b: Rows, tolerance: float) -> bool:
    return a.shape == b.shape and float(np.abs(a - b).max()) < tolerance


TREE = ((400, ROOT), (401, ROOT), (402, 0), (403, 0), (405, 1), (404, 4))


def test_rows_of_a_tree(context: Context, model: Model, embeddings: Rows) -> None:
    """The first are embeddings, the last give the logits, and those of a node depend on its
    path."""
    tree, last = token_tree(*TREE), model.layers
    layers = tuple(range(last + 1))
    context.request_hidden(layers)
    context.extend(TOKENS[:-3])
    rows = context.branch(TOKENS[-3:], tree).copy()
    found = context.hidden(1 + len(tree))
    assert agree(found[0], embeddings[[TOKENS[-1], *tree.tokens]], 1e-3)
    assert not agree(found[1], found[0], 1e-2)
    assert agree(found[last] @ embeddings.T, rows, NOISE)
    context.commit(tree, [1, 4, 5])
    again = context.extend([7, 8], 2).copy()
    assert agree(context.hidden(2)[last] @ embeddings.T, again, NOISE)
    for node in [ROOT, *range(len(tree))]:
        context.clear()
        for token in [*TOKENS, *tree.path_tokens(node)]:
            context.extend([token])
        alone = context.hidden(1)
        for layer in layers:
            scale = max(1.0, float(np.abs(alone[layer]).max()))
            assert agree(found[layer][node + 1 : node + 2], alone[layer], 0.05 * scale), layer


def test_long_prompts_are_read_in_chunks(context: Context, model: Model, embeddings: Rows) -> None:
    """With final states every token is an output, and too many make llama.cpp abort."""
    context.request_hidden((0, model.layers))
    long = (TOKENS * 10)[:300]  # three chunks
    seen: list[tuple[int, int]] = []
    rows = context.extend(long, 3, lambda done, total: seen.append((done, total))).copy()
    assert seen[-1] == (300, 300)
    assert context.tokens == long
    found = context.hidden(3)
    assert agree(found[model.layers] @ embeddings.T, rows, NOISE)
    context.extend([5, 6, 7], 0)
    assert context.tokens == [*long, 5, 6, 7]
    context.clear()
    context.request_hidden(())
    assert agree(context.extend(long, 3).copy(), rows, NOISE)


def test_architecture_without_layer_inputs(tmp_path: Path) -> None:
    path = ggufs.tiny_mamba(tmp_path / "mamba.gguf")
    output = weights(path)["token_embd.weight"]
    with Model(path, ModelOptions()) as model:
        context = Context.open(model, ModelOptions(context=256))
        with pytest.raises(NativeError, match=r"mamba.gguf \(architecture mamba\)"):
            context.request_hidden((0,))
        context.request_hidden((model.layers,))
        rows = context.extend(TOKENS, 2).copy()
        assert agree(context.hidden(2)[model.layers] @ output.T, rows, NOISE)
        context.close()


def test_missing_symbol_is_named(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hidden, "_SET_LAYER", "_Z9elsewherev")
    with pytest.raises(NativeError, match="does not export _Z9elsewherev"):
        context.request_hidden((0,))

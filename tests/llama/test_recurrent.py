"""Recurrent memories, which are restored from snapshots."""

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import llama_cpp
import numpy as np
import pytest

import localspec
from localspec import Drafting, ModelOptions, SamplingParams
from localspec.decoding.interfaces import PassRequest
from localspec.decoding.tree import TokenTree
from localspec.llama.context import Context
from localspec.llama.model import Model
from tests.support import ggufs, inside
from tests.support.patches import record_calls

NOISE = 0.02
AB = "root ::= [ab]{200}"
MAKERS = {"mamba": ggufs.tiny_mamba, "hybrid": ggufs.tiny_hybrid}


@pytest.fixture(scope="module", params=sorted(MAKERS))
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    make: Callable[[Path], Path] = MAKERS[request.param]
    return make(tmp_path_factory.mktemp("recurrent") / f"{request.param}.gguf")


@pytest.fixture
def contexts(path: Path) -> Iterator[tuple[Context, Context]]:
    options = ModelOptions(context=512)
    with (
        Model(path, options) as model,
        closing(Context.open(model, options)) as tested,
        closing(Context.open(model, options)) as reference,
    ):
        yield tested, reference


def test_drafts_are_rolled_back(contexts: tuple[Context, Context]) -> None:
    tested, reference = contexts
    rng = np.random.default_rng(3)
    committed = [int(t) for t in rng.integers(5, 8000, 12)]
    tested.extend(committed[:-1])
    for _ in range(30):
        drafts = [int(t) for t in rng.integers(5, 8000, rng.integers(0, 7))]
        tree = TokenTree.chain(drafts, "test")
        rows = tested.forward(PassRequest(committed, tree)).rows
        reference.clear()
        expected = reference.extend(committed)[-1]
        assert np.abs(rows[0] - expected).max() < NOISE
        accepted = int(rng.integers(0, len(drafts) + 1))
        tested.commit(tree, list(range(accepted)))
        committed += [*drafts[:accepted], int(rng.integers(5, 8000))]
        # Restoring may leave fewer tokens, to be decoded again, but never others.
        assert tested.tokens == committed[: len(tested.tokens)]


@pytest.mark.parametrize("left", [7, 38])
def test_truncation_before_the_snapshot(left: int, contexts: tuple[Context, Context]) -> None:
    """Snapshots cover one pass: llama.cpp would accept 38, and leave a wrong state."""
    tested, reference = contexts
    tokens = list(range(100, 140))
    for token in tokens:
        tested.extend([token])
    tested.truncate(left)
    assert tested.tokens == tokens[: len(tested.tokens)]
    assert len(tested.tokens) <= left
    row = tested.extend([*tokens[len(tested.tokens) : left], 500])[-1]
    assert np.abs(row - reference.extend([*tokens[:left], 500])[-1]).max() < NOISE


def test_greedy_answers_equal_plain_decoding(path: Path) -> None:
    """The model drafts for itself, and few letters repeat, so that drafts are accepted."""
    greedy = SamplingParams(temperature=0)
    with localspec.load(path, draft=path, options=ModelOptions(context=512)) as engine:
        answer = partial(engine.generate, "a b a b", max_tokens=40, sampling=greedy, grammar=AB)
        plain = answer(drafting=Drafting(drafter="none"))
        for drafter in ("ngram", "model", "cascade", "ngram+model"):
            drafted = answer(drafting=Drafting(drafter=drafter))
            assert drafted.text == plain.text
            assert drafted.stats.accepted > 0


def test_without_snapshots_only_named_drafters_draft(tmp_path: Path) -> None:
    path = ggufs.tiny_mamba(tmp_path / "mamba.gguf")
    with localspec.load(path, options=ModelOptions(context=512)) as engine:
        answer = partial(engine.generate, "a b a b a b a b", max_tokens=20, grammar=AB)
        stats = answer().stats
        assert stats.drafted == 0
        assert any("cannot be truncated" in reason for reason in stats.reasons)
        assert answer(drafting=Drafting(depth=4)).stats.drafted == 0
        reasons = answer(drafting=Drafting(drafter="none")).stats.reasons
        assert "drafting is turned off" in reasons
        assert answer(drafting=Drafting(drafter="ngram", depth=4)).stats.drafted > 0


class CostCounter:
    """Sizes of copied states in bytes, and the number of decoded tokens."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.read = 0
        inside.before_each_pass(patch, self._count)
        names = ("llama_state_seq_get_data", "llama_state_seq_get_data_ext")
        self._saves = [record_calls(patch, llama_cpp, name) for name in names]

    @property
    def saved(self) -> list[int]:
        return [int(arguments[2]) for calls in self._saves for arguments in calls]

    def _count(self, _: object, batch: llama_cpp.llama_batch) -> None:
        self.read += int(batch.n_tokens)


@pytest.mark.parametrize("depth", [4, 20])
def test_truncation_to_checkpoints_reads_little(
    depth: int, contexts: tuple[Context, Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As drafters use it: a checkpoint after each token, then some tokens are dropped."""
    tested, reference = contexts
    rng = np.random.default_rng(depth)
    committed = [int(token) for token in rng.integers(5, 8000, 200)]
    tested.extend(committed[:-1])
    steps, drafted = 10, 0
    with monkeypatch.context() as patch:
        counted = CostCounter(patch)
        for _ in range(steps):
            drafts = [int(token) for token in rng.integers(5, 8000, depth)]
            unread = committed[len(tested.tokens) :]
            for token in drafts:
                tested.extend(unread)
                tested.checkpoint()
                unread = [token]
                drafted += 1
            accepted = int(rng.integers(0, depth))
            committed += [*drafts[:accepted], int(rng.integers(5, 8000))]
            tested.truncate(min(len(tested.tokens), len(committed) - 1))
            assert tested.tokens == committed[: len(tested.tokens)]
        assert len(counted.saved) <= steps * (1 + depth // 8)
        assert max(counted.saved) - min(counted.saved) < 1000, "they do not grow with the text"
        assert counted.read < 3 * drafted + 2 * steps, "not 200 tokens per step"
    row = tested.extend(committed[len(tested.tokens) :])[-1]
    assert np.abs(row - reference.extend(committed)[-1]).max() < NOISE

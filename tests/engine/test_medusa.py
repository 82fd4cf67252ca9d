"""Medusa heads draft, and the text stays the target's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import localspec
from localspec import (
    Drafting,
    DraftMismatch,
    Engine,
    LocalspecError,
    ModelInvalid,
    ModelOptions,
    NativeError,
)
from localspec.llama import hidden, library
from localspec.llama.context import Context
from tests.engine.conftest import TINY_OPTIONS, ModelFiles
from tests.engine.test_exact_distribution import PROMPT, check_every_outcome
from tests.engine.test_heads import accepted_as_plain_says, followers, reference
from tests.engine.test_loading_failures import Alive, alive
from tests.support import heads
from tests.support.greedy import Reference
from tests.support.sessions import make_drafts_cheap

pytestmark = pytest.mark.nightly

__all__ = ["alive", "reference"]

OPTIONS = ModelOptions(context=256, threads=1)
WAYS = {
    "medusa": Drafting(drafter="medusa"),
    "medusa tree": Drafting(drafter="medusa", width=3),
    "auto": Drafting(),
}


@pytest.fixture(scope="module")
def headed(tmp_path_factory: pytest.TempPathFactory, reference: Reference) -> Iterator[Engine]:
    texts = zip(reference.prompts, reference.tokens, strict=True)
    follows = followers([[*prompt, *tokens] for prompt, tokens in texts])
    path = heads.medusa(tmp_path_factory.mktemp("medusa") / "heads.gguf", follows=follows)
    options = ModelOptions(context=1024, threads=library.default_threads())
    with localspec.load(draft=path, options=options) as engine:
        make_drafts_cheap(engine)
        yield engine


@pytest.mark.parametrize("way", sorted(WAYS))
def test_greedy_text_is_that_of_plain_decoding(
    headed: Engine, reference: Reference, prompts: list[str], way: str
) -> None:
    accepted = accepted_as_plain_says(headed, reference, prompts, WAYS[way], "medusa")
    assert accepted > (10 if WAYS[way].forced else 3)


@pytest.mark.parametrize("width", [1, 2])
def test_sampled_text_has_exactly_the_targets_distribution(
    tmp_path: Path, tiny_pair: ModelFiles, width: int
) -> None:
    with localspec.load(tiny_pair.target, draft=None, options=TINY_OPTIONS) as plain:
        text = plain.model.vocabulary.tokenize(PROMPT, special=True, add_bos=True)
        context = Context(plain.model, TINY_OPTIONS)
        best = [int(token) for token in context.extend(text)[-1].argsort()[:-4:-1]]
        follows = {}
        for token in best:
            follows[token] = int(context.extend([token])[-1].argmax())
            context.truncate(len(text))
        context.close()
    # Behind the prompt nothing is known yet; it has to be drafted for one token further on.
    path = heads.medusa(tmp_path / "heads.gguf", tiny_pair.target, follows=follows, cut=False)
    drafting = Drafting(drafter="medusa", depth=2, width=width, rule="token")
    with localspec.load(tiny_pair.target, draft=path, options=TINY_OPTIONS) as engine:
        check_every_outcome(engine, drafting, 2, 4)


def test_typical_acceptance_is_lossy_and_says_so(headed: Engine, prompts: list[str]) -> None:
    drafting = Drafting(drafter="medusa", rule="typical")
    stats = headed.generate(prompts[0], max_tokens=20, drafting=drafting).stats
    assert not stats.lossless
    assert headed.generate(prompts[0], max_tokens=5).stats.lossless


@pytest.mark.parametrize(
    ("made", "kind", "said"),
    [
        ({"embedding_length": 512}, DraftMismatch, "512 numbers, and those of .* have 384"),
        ({"vocab_size": 9000}, DraftMismatch, "another vocabulary"),
        ({"target_vocabulary": "0" * 24}, DraftMismatch, "another vocabulary"),
        ({"head_count": 4}, ModelInvalid, "medusa.output.weight is missing"),
        ({"head_count": 99}, ModelInvalid, "99 heads"),
        ({"block_count": None}, ModelInvalid, "lacks medusa.block_count"),
        ({"vocab_size": 6}, ModelInvalid, "d2t names tokens"),
    ],
)
def test_heads_that_do_not_fit_are_refused(
    tmp_path: Path, alive: Alive, made: dict[str, Any], kind: type[LocalspecError], said: str
) -> None:
    path = heads.medusa(tmp_path / "heads.gguf", **made)
    with pytest.raises(kind, match=said) as refused:
        localspec.load(draft=path, options=OPTIONS)
    assert str(refused.value).count(". ") >= 1, "a next step"


def test_a_truncated_file_is_refused(tmp_path: Path, alive: Alive) -> None:
    path = heads.medusa(tmp_path / "heads.gguf")
    data = path.read_bytes()
    for share in (0.001, 0.5, 0.99):
        path.write_bytes(data[: int(len(data) * share)])
        with pytest.raises(ModelInvalid, match="Download it again"):
            localspec.load(draft=path, options=OPTIONS)


def test_what_gives_no_last_state_is_refused(
    tmp_path: Path, alive: Alive, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = heads.medusa(tmp_path / "heads.gguf")
    with pytest.raises(DraftMismatch, match="parallel=1"):
        localspec.load(draft=path, options=ModelOptions(context=256, parallel=2))
    monkeypatch.setattr(hidden, "NO_FINAL", frozenset({"llama"}))
    with pytest.raises(NativeError, match=r"architecture llama.*--draft none"):
        localspec.load(draft=path, options=OPTIONS)

"""Draft models with a tokenizer that differs from the target's."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import localspec
from localspec import Engine, SamplingParams
from localspec.decoding.stats import GenerationStats
from tests.engine.conftest import TINY_OPTIONS, ModelFiles
from tests.engine.test_exact_distribution import PROMPT, SIZES, check_every_outcome
from tests.engine.test_exact_distribution import WAYS as EXACT_WAYS
from tests.support import ggufs, retokenised
from tests.support.asking import PLAIN, WAYS, ask, generate, tokens_of
from tests.support.greedy import Reference
from tests.support.sessions import drafting_pair

pytestmark = pytest.mark.nightly

COUNT, SPM = 24, retokenised.sentencepiece

Make = Callable[[Path, Path], Path]
PAIRS: dict[str, Make] = {
    "permuted": retokenised.permuted,
    "fewer": lambda path, source: retokenised.permuted(path, source, removed=0.3),
    "sentencepiece": SPM,
    "bytes": retokenised.bytewise,
}


@pytest.fixture(scope="module")
def drafts(tmp_path_factory: pytest.TempPathFactory, draft_path: Path) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("drafts")
    return {name: make(folder / f"{name}.gguf", draft_path) for name, make in PAIRS.items()}


def opened(draft: Path, way: str = "auto", model: Path | None = None) -> Engine:
    return drafting_pair(model, draft=draft, context=512, threads=1, cross_vocabulary=way)


USED = ("model", "model tree", "cascade", "auto")


@pytest.fixture(scope="module")
def reference(engine: Engine, prompts: list[str]) -> Reference:
    return Reference(engine, prompts[::8])


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("way", ["text", "shared"])
def test_greedy_output_equals_plain_decoding(
    kernels: None, drafts: dict[str, Path], reference: Reference, name: str, way: str
) -> None:
    accepted: Counter[str] = Counter()
    with opened(drafts[name], way) as engine:
        for text, wanted in zip(reference.texts, reference.tokens, strict=True):
            for by in USED:
                stream = ask(engine, text, WAYS[by])
                assert tokens_of(stream) == wanted, by
                for source, figures in stream.stats.by_drafter.items():
                    accepted[f"{by} {source}"] += figures.accepted
    least = 0 if name == "bytes" else 50
    for source in (f"model model:{way}", f"model tree model:{way}", f"cascade cascade:{way}"):
        assert accepted[source] > least, source


def test_permuted_vocabulary(drafts: dict[str, Path], engine: Engine, prompts: list[str]) -> None:
    """All its tokens are shared; only rounding can differ."""
    shared = "different vocabulary: 100% of tokens shared, drafting on the shared ones"
    with opened(drafts["permuted"]) as crossed:
        figures = []
        for pair, summary in ((engine, None), (crossed, shared)):
            found = [ask(pair, text, WAYS["model"], COUNT) for text in prompts[:5]]
            stats = [stream.completion().stats for stream in found]
            assert all(one.vocabulary == summary for one in stats)
            figures.append(sum(one.accepted for one in stats))
    assert abs(figures[0] - figures[1]) <= 0.1 * figures[0]


# Many tokens are missing, but by this seed not the likeliest ones after `PROMPT`.
SPARSE = partial(retokenised.permuted, seed=2, removed=0.3)


@pytest.mark.parametrize(
    ("make", "way", "drafting", "size"),
    [
        (SPARSE, "shared", "chain, block verification", "three tokens, short drafts"),
        (SPM, "text", "tree, speculative sampling", "two tokens, longer drafts"),
    ],
    ids=["shared", "text"],
)
def test_two_sampled_tokens_have_the_targets_probabilities(
    tiny_pair: ModelFiles, tmp_path: Path, make: Make, way: str, drafting: str, size: str
) -> None:
    """Every outcome over caches of llama.cpp, which detects a bias of any size."""
    target, draft = tiny_pair
    foreign = make(tmp_path / "foreign.gguf", draft)
    options = replace(TINY_OPTIONS, cross_vocabulary=way)
    with localspec.load(target, draft=foreign, options=options) as engine:
        check_every_outcome(engine, EXACT_WAYS[drafting], *SIZES[size])


def check_same_text(engine: Engine, prompt: str, count: int, **more: Any) -> GenerationStats:
    """Statistics of a drafted answer, which must equal plain decoding."""
    drafted = ask(engine, prompt, WAYS["model"], count, **more)
    assert tokens_of(drafted) == generate(engine, prompt, PLAIN, count=count, **more)
    return drafted.stats


def test_target_with_fewer_tokens(tmp_path: Path, target_path: Path, draft_path: Path) -> None:
    """Long tokens of the draft model then stand for several of the target's."""
    target = retokenised.permuted(tmp_path / "target.gguf", target_path, removed=0.5)
    with opened(draft_path, model=target) as engine:
        assert check_same_text(engine, "Once upon a time", 60).acceptance_rate > 0.4


def test_recurrent_draft_model_with_another_vocabulary(tmp_path: Path) -> None:
    source = ggufs.tiny_mamba(tmp_path / "mamba.gguf")
    foreign = retokenised.permuted(tmp_path / "foreign.gguf", source, removed=0.3)
    with opened(foreign, "text") as engine:
        assert check_same_text(engine, PROMPT, 24).drafted > 20


def test_penalties_bias_and_grammar(drafts: dict[str, Path]) -> None:
    sampling = SamplingParams(temperature=0, repeat_penalty=1.3, logit_bias={17: -100.0})
    with opened(drafts["fewer"]) as engine:
        stats = check_same_text(
            engine, PROMPT, 24, sampling=sampling, grammar='root ::= [a-z ]+ "."'
        )
        assert stats.accepted > 0


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("prompt", ["Zoë said: 😀😀 你好", "😀", "  \n\n\t x"])
def test_characters_of_several_tokens(drafts: dict[str, Path], name: str, prompt: str) -> None:
    """A token may end within a character that is one token of the draft model."""
    with opened(drafts[name], "text") as engine:
        assert check_same_text(engine, prompt, 12).drafted > 0

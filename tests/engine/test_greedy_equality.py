"""Greedy output with any drafter equals plain decoding, on 28 prompts of seven kinds: to the bit
with localspec's kernels where they work, and near ties aside as llama.cpp comes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

import localspec
from localspec import Drafting, Engine, ModelOptions, SamplingParams
from localspec.drafters.draft_model import DraftModel
from localspec.llama import library
from tests.support.greedy import COUNT, Reference, require_same_text
from tests.support.sessions import make_drafts_cheap

pytestmark = pytest.mark.nightly

WAYS = {
    "ngram": Drafting(drafter="ngram"),
    "ngram tree": Drafting(drafter="ngram", width=4, depth=4),
    "lookahead": Drafting(drafter="lookahead", width=4),
    "model": Drafting(drafter="model", depth=4),
    "model tree": Drafting(drafter="model", width=3, depth=3),
    "model, while confident": Drafting(
        drafter="model", depth=8, min_confidence=0.3, min_likelihood=0.1
    ),
    "cascade": Drafting(drafter="cascade", depth=6),
    "model+ngram": Drafting(drafter="model+ngram", depth=6),
    "ngram+model": Drafting(drafter="ngram+model", depth=6),
    "auto": Drafting(),
    "auto tree": Drafting(width=3),
    "token rule": Drafting(drafter="model", rule="token"),
}

TOGETHER = {
    "lookups": ("ngram", "ngram tree", "lookahead"),
    "models": ("model", "model tree", "model, while confident", "token rule"),
    "both": ("cascade", "model+ngram", "ngram+model"),
    "auto": ("auto", "auto tree"),
}
"""Ways that share what was read of a prompt: reading it takes about as long as answering."""


def test_every_way_is_tried() -> None:
    assert sorted(way for ways in TOGETHER.values() for way in ways) == sorted(WAYS)


PROMPTS, STOCK_PROMPTS = 28, 12


@pytest.fixture(scope="module")
def stock() -> Iterator[Engine]:
    """The embedded pair as llama.cpp comes."""
    options = ModelOptions(context=1024, threads=library.default_threads(), kernels="off")
    with localspec.load(options=options) as pair:
        make_drafts_cheap(pair)
        yield pair


@pytest.fixture(scope="module")
def stock_answers(stock: Engine, prompts: list[str]) -> Iterator[Reference]:
    yield (known := Reference(stock, prompts[:STOCK_PROMPTS]))
    known.context.close()


@pytest.fixture
def reference(plain_answers: Reference) -> Reference:
    return plain_answers.first(PROMPTS)


def test_with_kernels_the_embedded_pair_is_exact(
    kernels: None, engine: Engine, stock: Engine
) -> None:
    """What the tests below go by."""
    assert engine.batch_invariant
    assert not stock.batch_invariant


@pytest.mark.parametrize("together", sorted(TOGETHER))
def test_output_equals_plain_decoding(engine: Engine, reference: Reference, together: str) -> None:
    """One way after the other on a prompt, which is read for the first and kept for the others."""
    compare(engine, reference, TOGETHER[together])


def test_without_kernels_texts_part_at_near_ties_alone(
    stock: Engine, stock_answers: Reference
) -> None:
    compare(stock, stock_answers, ("ngram tree", "model", "model tree"))


def compare(engine: Engine, reference: Reference, ways: tuple[str, ...]) -> None:
    prompts = reference.texts
    parted: dict[str, list[float]] = {way: [] for way in ways}
    accepted = Counter[str]()
    make_drafts_cheap(engine)
    for prompt, ids, expected in zip(prompts, reference.prompts, reference.tokens, strict=True):
        for way in ways:
            stream = engine.stream(
                prompt,
                max_tokens=COUNT,
                sampling=SamplingParams(temperature=0),
                drafting=WAYS[way],
            )
            got = [token for chunk in stream for token in chunk.token_ids]
            accepted[way] += stream.stats.accepted
            gap = require_same_text(
                engine, reference.context, ids, expected, got, lambda: reference.noise
            )
            if gap is not None:
                print(f"{way}: {prompt[:40]!r} parts where the logits are {gap:.4f} apart")
                parted[way].append(gap)
    for way, gaps in parted.items():
        # Near-ties are rare; a fault that only showed in them would part more prompts than that.
        assert len(gaps) <= len(prompts) // 4, way
        assert accepted[way] > 2 * len(prompts) - 12, way


def test_plain_choice_of_the_planner_equals_plain_decoding(
    engine: Engine, reference: Reference
) -> None:
    """Same passes, same shapes: not a single token may differ, near-tie or not."""
    for prompt, expected in zip(reference.texts, reference.tokens, strict=True):
        engine.clear()  # no reuse: the prompt in one chunk, as in the reference
        stream = engine.stream(
            prompt,
            max_tokens=COUNT,
            sampling=SamplingParams(temperature=0),
            drafting=Drafting(drafter="none"),
        )
        assert [token for chunk in stream for token in chunk.token_ids] == expected


def test_drafting_with_the_target_itself_accepts_every_token(
    target_path: str, reference: Reference
) -> None:
    """Pinned: 41 tokens are the prompt's own, then ten full steps of three drafts and one more."""
    sampling, drafting = SamplingParams(temperature=0), Drafting(drafter="model", depth=3)
    with localspec.load(draft=target_path, options=ModelOptions(context=1024)) as engine:
        clear = [
            prompt
            for number, prompt in enumerate(reference.texts)
            if smallest_gap(reference, number) > 2 * reference.noise
            and len(engine.tokenize(prompt)) <= DraftModel.WINDOW  # of longer ones it reads the end
        ]
        assert len(clear) >= 3, "too few prompts without a near-tie to pin anything on"
        for prompt in clear:
            stats = (
                engine.stream(prompt, max_tokens=COUNT, sampling=sampling, drafting=drafting)
                .completion()
                .stats
            )
            assert stats.generated_tokens == 41
            assert stats.target_passes == 1 + 10
            assert stats.drafted == stats.tested == stats.accepted == 30
            assert stats.accepted_per_position == [10, 10, 10]


def smallest_gap(reference: Reference, number: int) -> float:
    """Between the two best logits, along a greedy text; 0 if the answer is shorter."""
    tokens = reference.tokens[number]
    if reference.context.model.vocabulary.ends(tokens[-1]):
        return 0.0
    return min(reference.gaps[number])

"""Greedy output with any drafter equals plain decoding, on 28 prompts of seven kinds: to the bit
with localspec's kernels, and near ties aside as llama.cpp comes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import pytest

import localspec
from localspec import Drafting, Engine, ModelOptions, SamplingParams
from localspec.llama import library
from tests.support.greedy import COUNT, Reference, divergence
from tests.support.sessions import make_drafts_cheap

pytestmark = pytest.mark.nightly

TOGETHER = {
    "lookups": {
        "ngram": Drafting(drafter="ngram"),
        "ngram tree": Drafting(drafter="ngram", width=4, depth=4),
        "lookahead": Drafting(drafter="lookahead", width=4),
    },
    "models": {
        "model": Drafting(drafter="model", depth=4),
        "model tree": Drafting(drafter="model", width=3, depth=3),
        "while confident": Drafting(
            drafter="model", depth=8, min_confidence=0.3, min_likelihood=0.1
        ),
        "token rule": Drafting(drafter="model", rule="token"),
    },
    "both": {
        "cascade": Drafting(drafter="cascade", depth=6),
        "model+ngram": Drafting(drafter="model+ngram", depth=6),
        "ngram+model": Drafting(drafter="ngram+model", depth=6),
    },
    "auto": {
        "auto": Drafting(),
        "auto tree": Drafting(width=3),
        "none": Drafting(drafter="none"),
    },
}
"""Ways that share what was read of a prompt: reading it takes about as long as answering."""
WAYS = {name: way for ways in TOGETHER.values() for name, way in ways.items()}
PROMPTS, STOCK_PROMPTS = 28, 12


@pytest.fixture
def reference(plain_answers: Reference) -> Reference:
    return plain_answers.first(PROMPTS)


def answers(
    engine: Engine, reference: Reference, ways: Iterable[str]
) -> Iterator[tuple[str, int, list[int]]]:
    """A way, the number of a prompt, and what is said to it, one way after the other on each: it is
    read for the first and kept for the others."""
    accepted = Counter[str]()
    make_drafts_cheap(engine)
    for number, prompt in enumerate(reference.texts):
        for way in ways:
            sampling = SamplingParams(temperature=0)
            stream = engine.stream(prompt, max_tokens=COUNT, sampling=sampling, drafting=WAYS[way])
            yield way, number, [token for chunk in stream for token in chunk.token_ids]
            accepted[way] += stream.stats.accepted
    for way in ways:
        assert way == "none" or accepted[way] > 2 * len(reference.texts) - 12, way


@pytest.mark.parametrize("together", sorted(TOGETHER))
def test_output_equals_plain_decoding(
    kernels: None, engine: Engine, reference: Reference, together: str
) -> None:
    assert engine.batch_invariant
    for way, number, got in answers(engine, reference, TOGETHER[together]):
        assert got == reference.tokens[number], way


def test_without_kernels_texts_part_at_near_ties_alone(prompts: list[str]) -> None:
    """Which are rare: a fault that only showed in them would part more prompts than that."""
    ways = ("ngram tree", "model", "model tree")
    options = ModelOptions(context=1024, threads=library.default_threads(), kernels="off")
    with localspec.load(options=options) as stock:
        assert not stock.batch_invariant
        known, parted = Reference(stock, prompts[:STOCK_PROMPTS]), Counter[str]()
        for way, number, got in answers(stock, known, ways):
            expected = known.tokens[number]
            found = divergence(known.context, known.prompts[number], expected, got)
            if found is None:
                assert got == expected, way
            else:
                assert abs(found[1]) <= known.noise, way
                parted[way] += 1
        assert all(count <= STOCK_PROMPTS // 4 for count in parted.values()), parted
        known.context.close()

"""llama-cpp-python's own decoding as a peer."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.bench.peers_python import LOOKUPS, PythonLlama
from localspec.bench.samples import BenchPrompt
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.llama.options import ModelOptions
from tests.support.greedy import divergence, greedy

pytestmark = pytest.mark.nightly

NEAR_TIE = 0.1
"""Logits; passes over batches move the gap between two tokens by 0.06 here."""

PROMPT = BenchPrompt("story-0", "story", "Once upon a time")


@pytest.mark.parametrize("lookup", LOOKUPS)
def test_llama_cpp_python_says_the_same(draft_path: Path, lookup: int | None) -> None:
    # One thread: two would spin for each other wherever the tests share a core.
    options = ModelOptions(context=256, threads=1)
    with Model(draft_path, options) as opened:

        def tokenize(text: str) -> list[int]:
            return opened.vocabulary.tokenize(text, special=True, add_bos=True)

        context = Context(opened, options)
        prompts = [
            BenchPrompt("a", "story", "<|user|>Tell me a story about a fox.<|end|><|assistant|>"),
            BenchPrompt("b", "copy", "One, two, three, four. One, two, three, four. One, two,"),
        ]
        arm = PythonLlama(draft_path, tokenize=tokenize, threads=1, context=256, lookup=lookup)
        try:
            for prompt in prompts:
                ids = tokenize(prompt.text)
                expected = greedy(context, ids, 40)
                sample = arm.generate(prompt, temperature=0, seed=1, max_tokens=40)
                # `Llama` attends without flash attention, which rounds otherwise: near-ties flip.
                parted = divergence(context, ids, expected, sample.token_ids)
                assert parted is None or (parted[0] > 5 and abs(parted[1]) < NEAR_TIE)
                written = b"".join(map(opened.vocabulary.piece, sample.token_ids))
                assert sample.text == written.decode("utf-8", "replace")
                assert sample.tokens == len(sample.token_ids) - 1
                assert sample.seconds > 0
                assert sample.passes is not None
                assert sample.accepted == sample.tokens - sample.passes
                assert bool(sample.drafted) == (lookup is not None)
            again = [
                arm.generate(prompts[0], temperature=0.8, seed=seed, max_tokens=20)
                for seed in (3, 3, 4)
            ]
        finally:
            arm.close()
            context.close()
    assert again[0].token_ids == again[1].token_ids != again[2].token_ids


def test_prompt_lookup_beyond_one_chunk(draft_path: Path) -> None:
    arm = PythonLlama(
        draft_path, tokenize=lambda _: [0, *range(300, 400)] * 6, threads=1, context=1024, lookup=2
    )
    assert arm.generate(PROMPT, temperature=0, seed=1, max_tokens=12).tokens > 0
    arm.close()

"""Generations leave nothing behind: neither in caches nor in Python."""

from __future__ import annotations

import gc

import psutil
import pytest

import localspec
from localspec import ModelOptions, SamplingParams
from tests.support.sessions import make_drafts_cheap

pytestmark = pytest.mark.nightly

GENERATIONS = 200
ALLOWED = 6 << 20
"""Bytes. A leak of one row of logits per generation (32 kB) would show as this much."""


def test_memory_does_not_grow_over_generations(prompts: list[str]) -> None:
    with localspec.load(options=ModelOptions(context=1024, threads=1)) as engine:
        make_drafts_cheap(engine)

        def generate(count: int) -> int:
            for n in range(count):
                sampling = SamplingParams(temperature=0.8 * (n % 2), seed=n)
                prompt = prompts[n % len(prompts)]
                engine.generate(prompt, max_tokens=8, sampling=sampling)
            gc.collect()
            return int(psutil.Process().memory_info().rss)

        before = generate(60)  # every prompt once: buffers have their final size
        assert generate(GENERATIONS) - before < ALLOWED

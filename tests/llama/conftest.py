"""The built-in target, contexts of it, a text, and the tolerance for rounding."""

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest

from localspec import ModelOptions
from localspec.decoding.sampling import Rows
from localspec.llama.batch import PassPart
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.llama.native_context import SharedContext
from localspec.llama.vocabulary import Vocabulary
from tests.support.sessions import module_model

STORY = "<|user|>Tell me a story about a fox.<|end|><|assistant|>Once upon a time, there was a"


model, smaller = module_model("target_path"), module_model("draft_path")


@pytest.fixture(scope="module")
def vocabulary(smaller: Model) -> Vocabulary:
    return smaller.vocabulary


@pytest.fixture
def context(model: Model) -> Iterator[Context]:
    with closing(Context.open(model, ModelOptions(context=512, batch=128))) as opened:
        yield opened


reference = context
"""Another one, for rows to compare with."""


@pytest.fixture
def tokens(model: Model) -> list[int]:
    return model.vocabulary.tokenize(STORY, special=True, add_bos=True)


NOISE = 0.3
"""Logits of other kernels and cell orders differ by 0.1 with 8-bit activations (a product of
floats differs from llama.cpp's as much); rows of another context differ by several units."""


def fresh(reference: Context, text: list[int]) -> Rows:
    reference.clear()
    row: Rows = reference.extend(text)[-1].copy()
    return row


def distance(a: Rows, b: Rows) -> float:
    return float(np.abs(a - b).max())


def slots(shared: SharedContext) -> list[Context]:
    """A context for each answer, whose passes are not shared."""

    def passes(part: PassPart) -> tuple[Rows, float]:
        return shared.decode([part])[0], 0.0

    return [
        Context(shared, shared.answer_sequences(n), passes, lambda: shared.batch)
        for n in range(shared.answers)
    ]

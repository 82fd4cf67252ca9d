"""The embedded target, contexts of it, and a text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec import ModelOptions
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.llama.vocabulary import Vocabulary

STORY = "<|user|>Tell me a story about a fox.<|end|><|assistant|>Once upon a time, there was a"


@pytest.fixture(scope="module")
def model(target_path: Path) -> Iterator[Model]:
    with Model(target_path, ModelOptions()) as opened:
        yield opened


@pytest.fixture(scope="module")
def vocabulary(draft_path: Path) -> Iterator[Vocabulary]:
    with Model(draft_path, ModelOptions()) as opened:
        yield opened.vocabulary


@pytest.fixture
def context(model: Model) -> Iterator[Context]:
    opened = Context(model, ModelOptions(context=512, batch=128))
    yield opened
    opened.close()


@pytest.fixture
def reference(model: Model) -> Iterator[Context]:
    """Reads fresh prompts."""
    opened = Context(model, ModelOptions(context=512, batch=128))
    yield opened
    opened.close()


@pytest.fixture
def tokens(model: Model) -> list[int]:
    return model.vocabulary.tokenize(STORY, special=True, add_bos=True)
